//! One cached connection to an API server, and the evidence that its end gives about the server.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http_body_util::BodyExt;
use tokio::time::Instant;
use watchdog_kube::client::retry_after;
use watchdog_runtime::failure::chain;

use super::answer_budget::{AnswerBuffer, SharedLimits};
use super::kubeconfig::Access;
use super::start_limiter::StartPermit;
use super::transport::{AnswerKind, ApiRequest, Connector, End, Link};
use crate::domain::outcome::{FailureEvidence, ProbeFailure, code_label, quote};
use crate::metrics::{CONNECTIONS, CodeLabel, ConnectResult, SHOOT_REQUESTS};

/// TCP connect and TLS handshake together. Queueing for a permit never counts against the API server: this and every
/// other limit by which it is judged start when the connection attempt does.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// When the request was sent that was answered.
    pub sent: Instant,
    /// Status code.
    pub status: StatusCode,
    /// `Retry-After` in seconds, where it is there.
    pub retry_after: Option<Duration>,
    /// The whole body.
    pub body: AnswerBuffer,
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
    const fn silent_at(since: Instant) -> Self {
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
}

/// The reason why a request waits that is not the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnWait {
    /// The addresses of the server.
    Lookup,
    /// A permit to open a connection.
    Permit,
    /// A place for a large answer.
    Place,
}

/// Sends requests to one API server over one connection, which is opened when it is needed and kept.
pub struct CachedConnection<C: Connector> {
    connector: C,
    /// Those that it shares with all others.
    pub(super) limits: Arc<SharedLimits>,
    // With the digest of its kubeconfig; none before the first.
    target: Option<(u64, C::Target)>,
    link: Option<C::Link>,
    // When the last response came, how long its head took, and how many came over this connection.
    answered_at: Option<Instant>,
    latency: Duration,
    // How large it was, and a little more.
    expected: usize,
    answers: u32,
    // The last connection ended right after its only response.
    ended_after_answer: bool,
    suspicion: Option<Suspicion>,
    /// The reason why the last request waits, or waited when it was cancelled.
    pub(super) waits_for: Option<OwnWait>,
    /// How long the answers of the last list waited for places.
    pub(super) waited: Duration,
}

impl<C: Connector> CachedConnection<C> {
    /// Prepares a connection; nothing is opened yet.
    pub fn new(connector: C, limits: Arc<SharedLimits>) -> Self {
        Self {
            connector,
            limits,
            target: None,
            link: None,
            answered_at: None,
            latency: Duration::ZERO,
            expected: 0,
            answers: 0,
            ended_after_answer: false,
            suspicion: None,
            waits_for: None,
            waited: Duration::ZERO,
        }
    }

    /// Uses this kubeconfig from now on. Another one than before closes the connection; only the suspicion stays, which
    /// is about the server.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn set_kubeconfig(&mut self, access: &Access) -> Result<(), ProbeFailure> {
        let kubeconfig = access.as_ref().map_err(Clone::clone)?;
        if self
            .target
            .as_ref()
            .is_none_or(|(digest, _)| *digest != kubeconfig.digest)
        {
            let suspicion = self.take_suspicion();
            *self = Self {
                suspicion,
                ..Self::new(self.connector.clone(), self.limits.clone())
            };
            self.target = Some((kubeconfig.digest, self.connector.target(&kubeconfig.access)?));
        }
        Ok(())
    }

    /// Sends a request and reads the whole answer over the cached connection. If that connection is dead, or brings no
    /// first byte within 2.5 s or twice the latency of the last answer, whichever is longer, the request is also sent
    /// over a new connection and the first answer wins. Therefore the request must not change anything on the server.
    /// The caller must bound the call with a timeout; `waits_for` then names what else it waited for. Cancelling drops
    /// the connection.
    ///
    /// # Errors
    /// When the API server cannot be reached or its answer breaks off.
    pub async fn request(&mut self, request: &ApiRequest) -> Result<ApiResponse, ProbeFailure> {
        self.waits_for = None;
        let limits = self.limits.clone();
        if let Some(mut link) = self.take_open() {
            let sent = Instant::now();
            let response = {
                let mut head = pin!(link.send(request));
                match tokio::time::timeout(SLOW.max(2 * self.latency), &mut head).await {
                    Ok(head) => head.ok(),
                    Err(_) => {
                        self.suspect(Suspicion::silent_at(sent));
                        // This is not queueing: the server may have the request.
                        let mut fresh = pin!(async {
                            self.resolve().await?;
                            let permit = limits.connect.acquire().await;
                            Box::pin(self.request_fresh(permit, request)).await
                        });
                        tokio::select! {
                            biased;
                            head = &mut head => match head {
                                Ok(response) => Some(response),
                                Err(_) => return fresh.await,
                            },
                            answer = &mut fresh => match answer {
                                Ok(answer) => return Ok(answer),
                                // The cached connection may still bring the answer.
                                Err(failure) => Some(head.await.map_err(|_| failure)?),
                            },
                        }
                    }
                }
            };
            if let Some(response) = response {
                return self.read(link, sent, response, request.answer).await;
            }
            // The server may have closed it while it was idle, or go away in the middle (GOAWAY): a new one shows
            // whether it lives. That the connection has ended, and how, is noted right after the request has failed.
            let _ = tokio::time::timeout(END_NOTED_WITHIN, link.ended()).await;
            self.note_end(&link);
        }
        match self.request_anew(request).await {
            // It may go away right after its answer, which is lost then. Once more is enough: it is alive.
            Err(ProbeFailure::WentAway) => self.request_anew(request).await,
            answer => answer,
        }
    }

    /// Looks the name up, waits for a permit, and sends a request over a new connection.
    async fn request_anew(&mut self, request: &ApiRequest) -> Result<ApiResponse, ProbeFailure> {
        self.waits_for = Some(OwnWait::Lookup);
        self.resolve().await?;
        self.waits_for = Some(OwnWait::Permit);
        let limits = self.limits.clone();
        let permit = limits.connect.acquire().await;
        self.waits_for = None;
        Box::pin(self.request_fresh(permit, request)).await
    }

    /// Like [`request`](Self::request), but sends a GET by which a server is judged. The server has `limit` to answer
    /// on a connection opened for the request, however the cached connection ended and however long the permit took.
    ///
    /// # Errors
    /// As [`request`](Self::request); [`ProbeFailure::Timeout`] when the server had its time,
    /// [`ProbeFailure::NameLookup`] when its addresses were not found in as much, [`ProbeFailure::QueueTimeout`] when
    /// no permit was free for as long.
    pub async fn get_within(&mut self, limit: Duration, path: &str) -> Result<ApiResponse, ProbeFailure> {
        let request = ApiRequest::get(path, AnswerKind::Small);
        self.waits_for = None;
        if let Some(mut link) = self.take_open() {
            let sent = Instant::now();
            let exchange = async {
                let response = link.send(&request).await?;
                self.read(link, sent, response, request.answer).await
            };
            match tokio::time::timeout(SLOW.min(limit), exchange).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(failure)) if failure.evidence() == FailureEvidence::None => return Err(failure),
                _ => self.suspect(Suspicion::noticed_at(sent)),
            }
        }
        let resolved = tokio::time::timeout(limit, self.resolve()).await;
        resolved.unwrap_or_else(|_| Err(ProbeFailure::slow_lookup(limit)))?;
        let limits = self.limits.clone();
        let permit = tokio::time::timeout(limit, limits.connect.acquire()).await;
        let permit = permit.map_err(|_| ProbeFailure::QueueTimeout(limit))?;
        let answer = tokio::time::timeout(limit, Box::pin(self.request_fresh(permit, &request))).await;
        answer.unwrap_or(Err(ProbeFailure::Timeout(limit)))
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
            let habitual = |at| self.ended_after_answer && self.is_after_only_answer(at);
            if !link
                .end()
                .is_some_and(|(at, end)| end == End::Closed && habitual(at))
            {
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

    /// Notes a reason to believe that the server was away; the first one counts.
    pub fn suspect(&mut self, suspicion: Suspicion) {
        self.suspicion.get_or_insert(suspicion);
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
        let Some((alive_until, end)) = link.end() else {
            // It broke right now, and its end is not recorded yet.
            return self.suspect(Suspicion::noticed_at(Instant::now()));
        };
        let after_answer = end == End::Closed && self.is_after_only_answer(alive_until);
        let before = std::mem::replace(&mut self.ended_after_answer, after_answer);
        match end {
            End::Closed if after_answer && before => {}
            End::Silent | End::Closed => self.suspect(Suspicion {
                since: alive_until,
                silent: end == End::Silent,
                noticed: false,
            }),
        }
    }

    fn is_after_only_answer(&self, at: Instant) -> bool {
        self.answers == 1
            && self
                .answered_at
                .is_some_and(|answered| at.saturating_duration_since(answered) < HABITUAL)
    }

    async fn resolve(&self) -> Result<(), ProbeFailure> {
        match &self.target {
            Some((_, target)) => self.connector.resolve(target).await,
            None => Ok(()),
        }
    }

    /// Sends a request over a new connection. Callers keep it on the heap: it is rare, and every probe would have room
    /// for it.
    async fn request_fresh(
        &mut self,
        permit: StartPermit<'_>,
        request: &ApiRequest,
    ) -> Result<ApiResponse, ProbeFailure> {
        let Some((_, target)) = &self.target else {
            return Err(ProbeFailure::Kubeconfig("there is none yet".to_owned()));
        };
        let began = Instant::now();
        let opening = tokio::time::timeout(CONNECT_TIMEOUT, self.connector.open(target));
        let opened = permit.during(opening).await;
        let (result, link) = match opened {
            Ok(Ok(link)) => (ConnectResult::Opened, Ok(link)),
            Ok(Err(failure)) => (ConnectResult::Failed, Err(failure)),
            Err(_) => (ConnectResult::Failed, Err(ProbeFailure::Timeout(CONNECT_TIMEOUT))),
        };
        CONNECTIONS.inc(result);
        if began.elapsed() > SLOW {
            self.suspect(Suspicion::silent_at(began));
        }
        let mut link = link?;
        self.answers = 0;
        let sent = Instant::now();
        let response = link.send(request).await?;
        self.read(link, sent, response, request.answer).await
    }

    async fn read(
        &mut self,
        link: C::Link,
        sent: Instant,
        response: http::Response<<C::Link as Link>::Body>,
        kind: AnswerKind,
    ) -> Result<ApiResponse, ProbeFailure> {
        self.latency = sent.elapsed();
        self.waits_for = None;
        let (head, mut parts) = response.into_parts();
        let mut body = AnswerBuffer::new(self.limits.clone(), kind, self.expected);
        while let Some(part) = body.next(parts.frame()).await? {
            let part = part.map_err(|e| {
                ProbeFailure::Connect(format!("the answer was cut off: {}", quote(&chain(&e))))
            })?;
            if let Ok(data) = part.into_data() {
                link.consumed(data.len());
                if body.needs_place(data.len()) {
                    let asked = Instant::now();
                    self.waits_for = Some(OwnWait::Place);
                    body.take_place().await;
                    self.waits_for = None;
                    self.waited += asked.elapsed();
                }
                body.append(&data)?;
            }
        }
        self.answered_at = Some(Instant::now());
        self.expected = body.as_slice().len() / 16 * 17;
        self.answers = self.answers.saturating_add(1);
        self.link = Some(link);
        SHOOT_REQUESTS.inc(CodeLabel(code_label(head.status.as_u16())));
        Ok(ApiResponse {
            sent,
            status: head.status,
            retry_after: retry_after(&head.headers, None),
            body,
        })
    }
}
