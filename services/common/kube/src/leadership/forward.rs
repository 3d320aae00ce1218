//! A standby passes every call of its gRPC service on to the leader, and answers and streams back.
//!
//! The request goes on as it came, so nothing here knows the methods of a service. A call is passed on once at most.
//! Every answer ends when another replica leads from then on, or this one stops: who watches connects again and is
//! passed on to the leader.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, StreamBody};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::Channel;
use tower::{Service, ServiceExt as _};
use watchdog_runtime::failure::chain;
use watchdog_runtime::grpc_client::Dialer;
use watchdog_runtime::rpc_error::{self, ErrorReason, error};
use watchdog_runtime::rpc_metrics::Measured;

use super::{Leader, Leadership};

/// On a call that was passed on.
const FORWARDED: HeaderName = HeaderName::from_static("watchdog-forwarded");

/// Calls and streams that a standby passes on at one time: fewer than a connection carries, so that none waits for
/// another one to end.
const MAX_CALLS: usize = 100;

/// While none leads, a call waits this long for the next leader: longer than an election takes (5.2 s), and shorter
/// than followers wait for the beginning of a stream (10 s).
const WAIT_FOR_LEADER: Duration = Duration::from_secs(8);

/// The leader begins to answer within this time. It waits for what it does not know yet, for 10 s at most.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// A gRPC service that answers where its replica leads, and is passed on to the leader elsewhere.
#[derive(Debug, Clone)]
pub struct ForwardToLeader<S> {
    inner: S,
    path: Arc<PathToLeader>,
}

#[derive(Debug)]
struct PathToLeader {
    leadership: Leadership,
    dialer: Dialer,
    draining: CancellationToken,
    /// The last leader's address, and the channel to it.
    channel: Mutex<Option<(Arc<str>, Measured<Channel>)>>,
    calls: Arc<Semaphore>,
}

/// An answer that is sent.
struct Answering {
    body: Body,
    /// Ready when this replica may not answer any more.
    ended: BoxFuture<'static, Status>,
    _call: Option<OwnedSemaphorePermit>,
}

// === impl ForwardToLeader ===

impl<S> ForwardToLeader<S> {
    /// Passes the calls of `inner` on, unless this replica leads. `dialer` calls the other replicas of the program.
    /// Answers end when `draining` is cancelled.
    pub fn new(inner: S, leadership: Leadership, dialer: Dialer, draining: CancellationToken) -> Self {
        let path = PathToLeader {
            leadership,
            dialer,
            draining,
            channel: Mutex::default(),
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
        };
        Self {
            inner,
            path: Arc::new(path),
        }
    }
}

impl<S: NamedService> NamedService for ForwardToLeader<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for ForwardToLeader<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self { inner, path } = self.clone();
        async move {
            let mut leader = path.leadership.leader();
            // The first leader of a seed, or one after a crash, is found within seconds. The election ends with the
            // process.
            let elected = timeout(WAIT_FOR_LEADER, leader.wait_for(Option::is_some));
            path.draining.run_until_cancelled(elected).await;
            // Before the decision, so that no change after it is missed.
            let known = leader.borrow_and_update().clone();
            let mut ended = end_of_answers(leader, path.draining.clone()).boxed();
            let (answer, call) = if path.leadership.holds_lease() {
                (inner.oneshot(request).await?, None)
            } else {
                let forwarded = tokio::select! {
                    biased;
                    // The old one may be frozen.
                    status = &mut ended => Err(status),
                    forwarded = path.forward(known, request) => forwarded,
                };
                match forwarded {
                    Ok((answer, call)) => (answer, Some(call)),
                    Err(status) => return Ok(status.into_http()),
                }
            };
            if answer.body().is_end_stream() {
                return Ok(answer);
            }
            Ok(answer.map(|body| {
                let answering = Answering {
                    body,
                    ended,
                    _call: call,
                };
                Body::new(StreamBody::new(stream::unfold(Some(answering), Answering::next)))
            }))
        }
        .boxed()
    }
}

/// Why an answer ends early, once it must. At a drain the election ends too.
async fn end_of_answers(mut leader: watch::Receiver<Option<Leader>>, draining: CancellationToken) -> Status {
    tokio::select! {
        biased;
        () = draining.cancelled() => rpc_error::draining(),
        _ = leader.changed() => error(ErrorReason::NotLeading, "another replica leads now: connect again"),
    }
}

// === impl PathToLeader ===

impl PathToLeader {
    async fn forward(
        &self,
        leader: Option<Leader>,
        mut request: Request<Body>,
    ) -> Result<(Response<Body>, OwnedSemaphorePermit), Status> {
        let Some(Leader { name, address }) = leader else {
            let why = "this replica is a standby, and there is no leader: try again in a few seconds";
            return Err(error(ErrorReason::NotLeading, why));
        };
        let Some(address) = address else {
            let why = format!("this process is a standby: ask the leader, {name}");
            return Err(error(ErrorReason::NotLeading, why));
        };
        let forwarded = HeaderValue::from_static("1");
        if request.headers_mut().insert(FORWARDED, forwarded).is_some() {
            let why = format!("another replica mistook this standby for the leader {name}: try again");
            return Err(error(ErrorReason::NotLeading, why));
        }
        let Ok(call) = Arc::clone(&self.calls).try_acquire_owned() else {
            let why = format!(
                "this replica is a standby and forwards at most {MAX_CALLS} calls at a time: try again later, or \
                 ask {name}"
            );
            return Err(error(ErrorReason::TooManyStreams, why));
        };
        let unreachable = |why: String| {
            let why = format!("this replica is a standby, and the leader, {name}, does not answer: {why}");
            error(ErrorReason::NotLeading, why)
        };
        let channel = self.channel(address).map_err(unreachable)?;
        // What came with the connection of the caller.
        request.extensions_mut().clear();
        match timeout(ANSWER_TIMEOUT, channel.oneshot(request)).await {
            Ok(Ok(answer)) => Ok((answer, call)),
            Ok(Err(error)) => Err(unreachable(chain(&error))),
            Err(_) => Err(unreachable("no answer within 15 s".to_owned())),
        }
    }

    fn channel(&self, address: Arc<str>) -> Result<Measured<Channel>, String> {
        let mut last = self.channel.lock();
        if let Some((_, channel)) = last.as_ref().filter(|(of, _)| *of == address) {
            return Ok(channel.clone());
        }
        let channel = self.dialer.channel(&address).map_err(|error| chain(&error))?;
        let channel = Measured::client(channel);
        *last = Some((address, channel.clone()));
        Ok(channel)
    }
}

// === impl Answering ===

impl Answering {
    /// The next frame, and the rest if there is more.
    async fn next(this: Option<Self>) -> Option<(Result<Frame<Bytes>, Status>, Option<Self>)> {
        let mut this = this?;
        let status = tokio::select! {
            biased;
            status = &mut this.ended => status,
            frame = this.body.frame() => match frame? {
                Ok(frame) => return Some((Ok(frame), Some(this))),
                Err(lost) => {
                    let why = format!("the connection to the replica that leads was lost: {}", lost.message());
                    error(ErrorReason::NotLeading, why)
                }
            },
        };
        let mut trailers = HeaderMap::new();
        let ended = status.add_header(&mut trailers);
        Some((ended.map(|()| Frame::trailers(trailers)), None))
    }
}

#[cfg(test)]
mod tests;
