//! The seam between the rules for a connection and its socket.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Body;
use tokio::time::{Instant, timeout_at};

use super::kubeconfig::Kubeconfig;
use crate::domain::outcome::ProbeFailure;

/// The media type of the answers that are read seldom.
pub(super) const JSON: &str = "application/json";

/// The time that a probe, or a request by which a server is judged, has.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// How long it is.
    pub limit: Duration,
    /// When it is over.
    pub deadline: Instant,
}

impl Budget {
    /// From now on.
    #[must_use]
    pub fn starting_now(limit: Duration) -> Self {
        Self {
            limit,
            deadline: Instant::now() + limit,
        }
    }

    /// Waits for something that is not the server; `failure` says for what when the time is over.
    ///
    /// # Errors
    /// `failure`.
    pub async fn wait<T>(
        self,
        own: impl Future<Output = T>,
        failure: impl FnOnce(Duration) -> ProbeFailure,
    ) -> Result<T, ProbeFailure> {
        timeout_at(self.deadline, own)
            .await
            .map_err(|_| failure(self.limit))
    }
}

/// A GET of an API server.
#[derive(Debug, Clone)]
pub struct ApiRequest {
    /// Path and query, relative to the server URL of the kubeconfig.
    pub path: String,
    /// The media types of the answer.
    pub accept: &'static str,
    /// The most bytes of the answer.
    pub most: usize,
}

/// A reason to believe that the API server was away for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspicion {
    /// It may have been away since then.
    pub since: Instant,
    /// The connection fell silent, or a request got no answer in time. Connections of kubelets may also be dead.
    pub silent: bool,
    /// True if the start is unknown: something was noticed at `since`.
    pub noticed: bool,
}

impl Suspicion {
    /// The connection was alive until then. After that it brought no sign of life and was given up, or it was closed or
    /// reset.
    #[must_use]
    pub const fn ended_at(since: Instant, silent: bool) -> Self {
        Self {
            since,
            silent,
            noticed: false,
        }
    }
}

/// Opens connections to API servers.
pub trait Connector: Clone + Send + Sync + 'static {
    /// An open connection.
    type Link: Link;

    /// Finds the addresses of the server. It does not bound the time that this takes, which is the name server's and
    /// says nothing about the API server. Cancelling gives up waiting.
    ///
    /// # Errors
    /// [`ProbeFailure::NameLookup`], or [`ProbeFailure::LocalLimit`].
    fn resolve(&self, _server: &Kubeconfig) -> impl Future<Output = Result<(), ProbeFailure>> + Send {
        std::future::ready(Ok(()))
    }

    /// Opens a connection to the addresses that were resolved, TCP and TLS, and does not bound the time that this
    /// takes. Cancelling gives up the attempt.
    ///
    /// # Errors
    /// [`ProbeFailure::Connect`] or [`ProbeFailure::Tls`].
    fn open(&self, server: &Arc<Kubeconfig>)
    -> impl Future<Output = Result<Self::Link, ProbeFailure>> + Send;
}

/// An open connection.
pub trait Link: Send + Sync + 'static {
    /// The body of a response.
    type Body: Body<Data = Bytes, Error: std::error::Error + Send + 'static> + Send + Unpin;

    /// Sends a request and waits for the head of the response. Cancelling gives up the request; over HTTP/2 the
    /// connection can still be used, over HTTP/1.1 it ends.
    ///
    /// # Errors
    /// [`ProbeFailure::Connect`] when the connection breaks first.
    fn send(
        &mut self,
        request: &ApiRequest,
    ) -> impl Future<Output = Result<http::Response<Self::Body>, ProbeFailure>> + Send;

    /// How the connection ended; none while it can be used.
    fn end(&self) -> Option<Suspicion>;

    /// Waits until the connection has ended. Safe to cancel.
    fn ended(&self) -> impl Future<Output = ()> + Send;
}
