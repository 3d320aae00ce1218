//! One cached connection to an API server, and the evidence that its end gives about the server.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, timeout};
use watchdog_kube::client::retry_after;

use super::kubeconfig::{Access, Kubeconfig};
use super::limits::{Answer, SharedLimits, begin};
use super::transport::{ApiRequest, Budget, Connector, Link, Suspicion};
use crate::domain::outcome::ProbeFailure;
use crate::metrics::{CONNECTIONS, CodeLabel, ConnectResult, SHOOT_REQUESTS};

/// TCP connect and TLS handshake together. Queueing for a permit never counts against the API server: this and every
/// other limit by which it is judged start when the connection attempt does.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// If an answer does not begin within this time, and twice the time of the last one, the API server or the way to it
/// may be away. An API server that is always slow is also slow for kubelets, but it answers.
const SLOW: Duration = Duration::from_millis(2_500);

/// When two connections in a row end this soon after their only answer, the server, or a proxy before it, closes every
/// connection, and its end is no evidence.
const HABITUAL: Duration = Duration::from_secs(1);

/// See [`CachedConnection::request`]: a task has to run for it.
const END_NOTED_WITHIN: Duration = Duration::from_millis(100);

/// The response of an API server.
#[derive(Debug)]
pub struct ApiResponse {
    /// When the request was sent that was answered, and when all of the answer was there.
    pub sent: Instant,
    /// See `sent`.
    pub received: Instant,
    /// Status code.
    pub status: StatusCode,
    /// `Retry-After` in seconds, where it is there.
    pub retry_after: Option<Duration>,
    /// The whole body.
    pub body: Answer,
}

/// Sends requests to one API server over one connection, which is opened when it is needed and kept.
pub struct CachedConnection<C: Connector> {
    connector: C,
    /// Those that it shares with all others.
    pub(super) limits: Arc<SharedLimits>,
    // None before the first.
    kubeconfig: Option<Arc<Kubeconfig>>,
    link: Option<C::Link>,
    // How long the head of the last response took.
    latency: Duration,
    // When the response came that is the only one over this connection.
    only_answer_at: Option<Instant>,
    // The last connection ended right after its only response.
    ended_after_answer: bool,
    suspicion: Option<Suspicion>,
}

impl<C: Connector> CachedConnection<C> {
    /// Prepares a connection; nothing is opened yet.
    pub fn new(connector: C, limits: Arc<SharedLimits>) -> Self {
        Self {
            connector,
            limits,
            kubeconfig: None,
            link: None,
            latency: Duration::ZERO,
            only_answer_at: None,
            ended_after_answer: false,
            suspicion: None,
        }
    }

    /// Uses this kubeconfig from now on. Another one than before closes the connection; only the suspicion stays, which
    /// is about the server.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn set_kubeconfig(&mut self, access: &Access) -> Result<(), ProbeFailure> {
        let kubeconfig = access.as_ref().map_err(Clone::clone)?;
        if self.kubeconfig.as_ref() != Some(kubeconfig) {
            *self = Self {
                suspicion: self.take_suspicion(),
                kubeconfig: Some(kubeconfig.clone()),
                ..Self::new(self.connector.clone(), self.limits.clone())
            };
        }
        Ok(())
    }

    /// Sends a request and reads the whole answer over the cached connection. If that connection is dead, or brings no
    /// first byte within 2.5 s or twice the latency of the last answer, whichever is longer, the request is also sent
    /// over a new one, and the first answer wins. Therefore the request must not change anything on the server. What it
    /// waits for in this process may take until the deadline. The server has the whole limit on a new connection,
    /// however the cached one ended: a caller that must be on time bounds the call. Cancelling drops the connection.
    ///
    /// # Errors
    /// When the API server cannot be reached, its answer breaks off or takes longer than the limit, or this process is
    /// the reason why there is none.
    pub async fn request(
        &mut self,
        request: &ApiRequest,
        budget: Budget,
    ) -> Result<ApiResponse, ProbeFailure> {
        if let Some(mut link) = self.take_open() {
            let sent = Instant::now();
            let head = {
                let mut head = pin!(link.send(request));
                match timeout(SLOW.max(2 * self.latency), &mut head).await {
                    Ok(head) => head.ok(),
                    Err(_) => {
                        self.suspect(sent, true);
                        let mut anew = Box::pin(self.request_anew(request, budget));
                        tokio::select! {
                            biased;
                            head = &mut head => match head {
                                Ok(response) => Some(response),
                                Err(_) => return anew.await,
                            },
                            answer = &mut anew => return answer,
                        }
                    }
                }
            };
            if let Some(response) = head {
                let answer = self.read(link, sent, response, request.most, budget);
                let answer = within(budget.limit, answer).await;
                self.only_answer_at = None;
                return answer;
            }
            // The server may have closed it while it was idle, or go away in the middle (GOAWAY): a new one shows
            // whether it lives. That the connection has ended, and how, is noted right after the request has failed.
            let _ = timeout(END_NOTED_WITHIN, link.ended()).await;
            self.note_end(&link);
        }
        match Box::pin(self.request_anew(request, budget)).await {
            // It may go away right after its answer, which is lost then. Once more is enough: it is alive.
            Err(ProbeFailure::WentAway) => Box::pin(self.request_anew(request, budget)).await,
            answer => answer,
        }
    }

    /// Looks the name up, waits for a permit, and sends a request over a new connection. Callers keep this on the heap:
    /// it is rare, and every probe would have room for it.
    async fn request_anew(
        &mut self,
        request: &ApiRequest,
        budget: Budget,
    ) -> Result<ApiResponse, ProbeFailure> {
        let none = || ProbeFailure::Kubeconfig("there is none yet".to_owned());
        let kubeconfig = self.kubeconfig.clone().ok_or_else(none)?;
        let resolved = self.connector.resolve(&kubeconfig);
        budget.wait(resolved, ProbeFailure::slow_lookup).await??;
        let limits = self.limits.clone();
        let permit = limits.connect.acquire();
        let permit = budget.wait(permit, ProbeFailure::QueueTimeout).await?;
        let answer = async {
            let began = Instant::now();
            let opened = within(CONNECT_TIMEOUT, self.connector.open(&kubeconfig));
            let opened = begin(permit, opened).await;
            CONNECTIONS.inc(match opened {
                Ok(_) => ConnectResult::Opened,
                Err(_) => ConnectResult::Failed,
            });
            if began.elapsed() > SLOW {
                self.suspect(began, true);
            }
            let mut link = opened?;
            let sent = Instant::now();
            let response = link.send(request).await?;
            let answer = self.read(link, sent, response, request.most, budget).await?;
            self.only_answer_at = Some(answer.received);
            Ok(answer)
        };
        within(budget.limit, answer).await
    }

    /// Drops the connection, so that the next request opens another.
    pub fn close(&mut self) {
        self.link = None;
    }

    /// Waits until the connection ends in a way that is evidence about the server; without a connection, never returns.
    /// Safe to cancel.
    pub async fn disconnected(&self) {
        if let Some(link) = &self.link {
            link.ended().await;
            if !(self.ended_after_answer && link.end().is_some_and(|end| self.is_after_only_answer(end))) {
                return;
            }
        }
        std::future::pending().await
    }

    /// Why the server may have been away since the last call.
    pub fn take_suspicion(&mut self) -> Option<Suspicion> {
        if self.link.as_ref().is_some_and(|link| link.end().is_some()) {
            self.take_open();
        }
        self.suspicion.take()
    }

    /// Notes that something failed at that time, or that a request of that time got no answer in time. The first reason
    /// to believe that the server was away counts.
    pub fn suspect(&mut self, since: Instant, silent: bool) {
        self.suspicion.get_or_insert(Suspicion {
            since,
            silent,
            noticed: true,
        });
    }

    /// The cached connection if it can be used.
    fn take_open(&mut self) -> Option<C::Link> {
        let link = self.link.take()?;
        if link.end().is_none() {
            return Some(link);
        }
        self.note_end(&link);
        None
    }

    /// Draws conclusions from the end of a connection.
    fn note_end(&mut self, link: &C::Link) {
        let Some(end) = link.end() else {
            // It broke right now, and its end is not recorded yet.
            return self.suspect(Instant::now(), false);
        };
        let after_answer = self.is_after_only_answer(end);
        let before = std::mem::replace(&mut self.ended_after_answer, after_answer);
        if !(before && after_answer) {
            self.suspicion.get_or_insert(end);
        }
    }

    /// Returns true if a connection was closed right after its only answer.
    fn is_after_only_answer(&self, end: Suspicion) -> bool {
        let is_soon = |answered| end.since.saturating_duration_since(answered) < HABITUAL;
        !end.silent && self.only_answer_at.is_some_and(is_soon)
    }

    async fn read(
        &mut self,
        link: C::Link,
        sent: Instant,
        response: http::Response<<C::Link as Link>::Body>,
        most: usize,
        budget: Budget,
    ) -> Result<ApiResponse, ProbeFailure> {
        self.latency = sent.elapsed();
        let (head, body) = response.into_parts();
        let body = self.limits.read(body, most, budget).await?;
        self.link = Some(link);
        SHOOT_REQUESTS.inc(CodeLabel(code_label(&head.status)));
        Ok(ApiResponse {
            sent,
            received: Instant::now(),
            status: head.status,
            retry_after: retry_after(&head.headers, None),
            body,
        })
    }
}

async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, ProbeFailure>>,
) -> Result<T, ProbeFailure> {
    timeout(limit, answer)
        .await
        .unwrap_or(Err(ProbeFailure::Timeout(limit)))
}

/// A status code as a label value, of a closed set: a server may answer with any number.
fn code_label(status: &StatusCode) -> &str {
    match status.canonical_reason() {
        Some(_) => status.as_str(),
        None => "other",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn any_status_code_has_one_of_some_labels() {
        let status = |code| StatusCode::from_u16(code).unwrap();
        let labels: BTreeSet<_> = { (100..1_000).map(status) }
            .map(|status| code_label(&status).to_owned())
            .collect();
        assert!(labels.len() < 70, "{labels:?}");
        for (code, label) in [
            (200, "200"),
            (429, "429"),
            (504, "504"),
            (599, "other"),
            (777, "other"),
        ] {
            assert_eq!(code_label(&status(code)), label);
        }
    }
}
