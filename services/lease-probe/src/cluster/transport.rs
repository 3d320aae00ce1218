//! The seam between the rules for a connection and its socket.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Body;
use tokio::time::{Instant, timeout_at};
use watchdog_api::kubeconfig::ShootAccess;

use super::answer_budget::{LARGEST_ANSWER, SMALL_ANSWER};
use crate::domain::outcome::ProbeFailure;

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
    /// The content of its answer, which bounds the size.
    pub answer: AnswerKind,
}

/// The content of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    /// The version.
    Small,
    /// A page of leases.
    Leases,
    /// A page of nodes.
    Nodes,
}

impl AnswerKind {
    /// The most bytes of an answer.
    #[must_use]
    pub const fn limit(self) -> usize {
        match self {
            Self::Small => SMALL_ANSWER,
            Self::Leases | Self::Nodes => LARGEST_ANSWER,
        }
    }
}

impl ApiRequest {
    /// A GET of this path.
    #[must_use]
    pub fn get(path: impl Into<String>, answer: AnswerKind) -> Self {
        Self {
            path: path.into(),
            answer,
        }
    }
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
    /// A request that was sent then got no answer in time. Its connection may be dead.
    pub(super) const fn silent_at(since: Instant) -> Self {
        Self {
            since,
            silent: true,
            noticed: true,
        }
    }

    /// Something failed at that time.
    pub(super) const fn noticed_at(since: Instant) -> Self {
        Self {
            since,
            silent: false,
            noticed: true,
        }
    }

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
    /// The parts of a kubeconfig that a connection needs.
    type Target: Send + Sync;
    /// An open connection.
    type Link: Link;

    /// Prepares a kubeconfig; opens nothing.
    ///
    /// # Errors
    /// [`ProbeFailure::Kubeconfig`] when it cannot be used.
    fn target(&self, access: &ShootAccess) -> Result<Self::Target, ProbeFailure>;

    /// Finds the addresses of the server. It does not bound the time that this takes, which is the name server's and
    /// says nothing about the API server. Cancelling gives up waiting.
    ///
    /// # Errors
    /// [`ProbeFailure::NameLookup`], or [`ProbeFailure::LocalLimit`].
    fn resolve(&self, _target: &Self::Target) -> impl Future<Output = Result<(), ProbeFailure>> + Send {
        std::future::ready(Ok(()))
    }

    /// Opens a connection to the addresses that were resolved, TCP and TLS, and does not bound the time that this
    /// takes. Cancelling gives up the attempt.
    ///
    /// # Errors
    /// [`ProbeFailure::Connect`] or [`ProbeFailure::Tls`].
    fn open(&self, target: &Self::Target) -> impl Future<Output = Result<Self::Link, ProbeFailure>> + Send;
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

    /// This many bytes of the answer were taken. The server may send as many more.
    fn consumed(&self, _bytes: usize) {}

    /// How the connection ended; none while it can be used.
    fn end(&self) -> Option<Suspicion>;

    /// Waits until the connection has ended. Safe to cancel.
    fn ended(&self) -> impl Future<Output = ()> + Send;
}
