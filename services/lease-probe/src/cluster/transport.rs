//! The seam between the rules for a connection and its socket.

use std::future::Future;

use bytes::Bytes;
use http::Method;
use hyper::body::Body;
use tokio::time::Instant;
use watchdog_api::kubeconfig::ShootAccess;

use super::answer_budget::{LARGEST_ANSWER, SMALL_ANSWER};
use crate::domain::outcome::ProbeFailure;

/// A request to an API server that changes nothing there.
#[derive(Debug, Clone)]
pub struct ApiRequest {
    /// GET, or POST for reviews.
    pub method: Method,
    /// Path and query, relative to the server URL of the kubeconfig.
    pub path: String,
    /// JSON; empty for a GET.
    pub body: Bytes,
    /// The content of its answer, which bounds the size.
    pub answer: AnswerKind,
}

/// The content of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    /// The version, or the review of a permission.
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
            method: Method::GET,
            path: path.into(),
            body: Bytes::new(),
            answer,
        }
    }
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The server or something on the way closed or reset it. Until then it was alive.
    Closed,
    /// It brought no sign of life and was given up.
    Silent,
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

    /// Until when the connection was known to be alive, and how it ended; none while it can be used.
    fn end(&self) -> Option<(Instant, End)>;

    /// Waits until the connection has ended. Safe to cancel.
    fn ended(&self) -> impl Future<Output = ()> + Send;
}
