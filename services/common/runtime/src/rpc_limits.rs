//! Limits on the RPCs of callers: their number, the time to read a request and to write an answer, and the memory of
//! answers that wait for their reader.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tokio::time::{Sleep, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use crate::accept::{CloseConnection, Peer};
use crate::caller_quota::{CallerQuota, QuotaExceeded, QuotaLimits, QuotaPermit};
use crate::rpc_error::{ErrorReason, error};

/// RPCs under way, streams included.
const RPCS: QuotaLimits = QuotaLimits {
    total: 2048,
    reserved: 512,
    per_caller: 32,
};

/// The same without TLS, where all programs of a host are one caller.
const PLAINTEXT_RPCS: QuotaLimits = QuotaLimits {
    per_caller: 512,
    ..RPCS
};

/// Bytes of answers that are not written yet.
const ANSWER_BYTES: QuotaLimits = QuotaLimits {
    total: 48 * 1024 * 1024,
    reserved: 24 * 1024 * 1024,
    per_caller: 8 * 1024 * 1024,
};

/// A request arrives, and an answer that is no stream is written, within this time.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An answer is handed to the transport in parts of this size.
const PART_BYTES: usize = 16 * 1024;

/// A layer that limits RPCs. Those that come over no connection have no limit.
#[derive(Debug, Clone)]
pub(crate) struct RpcLimits {
    rpcs: CallerQuota,
    answers: CallerQuota,
    /// Paths with one request and one answer.
    unary: Arc<BTreeSet<String>>,
    /// Paths whose requests take as long as they like.
    streamed_requests: Arc<BTreeSet<String>>,
}

impl RpcLimits {
    /// For the methods in these encoded descriptor sets.
    ///
    /// # Errors
    /// When one of them cannot be decoded.
    pub(crate) fn new(with_tls: bool, descriptors: &[&[u8]]) -> Result<Self, prost::DecodeError> {
        let (mut unary, mut streamed_requests) = (BTreeSet::new(), BTreeSet::new());
        for set in descriptors {
            for file in FileDescriptorSet::decode(*set)?.file {
                for service in &file.service {
                    for method in &service.method {
                        let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                        if method.client_streaming() {
                            streamed_requests.insert(path);
                        } else if !method.server_streaming() {
                            unary.insert(path);
                        }
                    }
                }
            }
        }
        Ok(Self {
            rpcs: CallerQuota::new(if with_tls { RPCS } else { PLAINTEXT_RPCS }),
            answers: CallerQuota::new(ANSWER_BYTES),
            unary: Arc::new(unary),
            streamed_requests: Arc::new(streamed_requests),
        })
    }

    fn admit(&self, peer: &Peer) -> Result<QuotaPermit, Status> {
        if let Some(why) = &peer.refused {
            return Err(error(ErrorReason::ClientNotAllowed, &**why));
        }
        self.rpcs.acquire(&peer.caller).map_err(|exceeded| {
            let why = match exceeded {
                QuotaExceeded::Caller(most) => {
                    format!("you already have {most} calls and streams to this replica: close some")
                }
                QuotaExceeded::Total(total) => {
                    format!("all {total} calls of this replica are in use or reserved: try another replica")
                }
            };
            error(ErrorReason::TooManyStreams, why)
        })
    }

    /// Takes an answer out of its handler, so that its size is known.
    async fn collect(&self, mut body: Body, peer: &Peer) -> Result<Collected, Status> {
        let mut collected = Collected {
            data: Bytes::new(),
            trailers: None,
            permits: Vec::new(),
        };
        while let Some(frame) = body.frame().await {
            match frame?.into_data() {
                Ok(data) => {
                    let permit = self.answers.acquire_many(&peer.caller, data.len());
                    collected.permits.push(permit.map_err(|_| {
                        let why = "too many answers are unread: read them first, or request smaller pages";
                        error(ErrorReason::TooManyStreams, why)
                    })?);
                    // There is one message in an answer, and it comes in one frame.
                    collected.data = if collected.data.is_empty() {
                        data
                    } else {
                        [collected.data, data].concat().into()
                    };
                }
                Err(frame) => collected.trailers = frame.into_trailers().ok(),
            }
        }
        Ok(collected)
    }
}

/// An answer in memory.
struct Collected {
    data: Bytes,
    trailers: Option<HeaderMap>,
    permits: Vec<QuotaPermit>,
}

impl<S> Layer<S> for RpcLimits {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited {
            inner,
            limits: self.clone(),
        }
    }
}

/// A gRPC service with limits.
#[derive(Debug, Clone)]
pub(crate) struct Limited<S> {
    inner: S,
    limits: RpcLimits,
}

impl<S> Service<Request<Body>> for Limited<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let extensions = request.extensions();
        let Some(peer) = extensions.get::<Peer>().cloned() else {
            return Box::pin(self.inner.call(request));
        };
        let close = extensions.get::<CloseConnection>().cloned().unwrap_or_default();
        let permit = match self.limits.admit(&peer) {
            Ok(permit) => permit,
            Err(status) => return Box::pin(async move { Ok(status.into_http()) }),
        };
        let limits = self.limits.clone();
        let is_unary = limits.unary.contains(request.uri().path());
        let request = if limits.streamed_requests.contains(request.uri().path()) {
            request
        } else {
            request.map(|body| {
                Body::new(ReadInTime {
                    body,
                    deadline: Box::pin(sleep(TIMEOUT)),
                })
            })
        };
        let response = self.inner.call(request);
        Box::pin(async move {
            let (parts, body) = response.await?.into_parts();
            let mut answer = Answer {
                data: Bytes::new(),
                trailers: None,
                rest: None,
                permits: vec![permit],
                written: None,
            };
            if is_unary {
                let collected = match limits.collect(body, &peer).await {
                    Ok(collected) => collected,
                    Err(status) => return Ok(status.into_http()),
                };
                answer.data = collected.data;
                answer.trailers = collected.trailers;
                answer.permits.extend(collected.permits);
                let written = CancellationToken::new();
                answer.written = Some(written.clone().drop_guard());
                tokio::spawn(async move {
                    if timeout(TIMEOUT, written.cancelled()).await.is_err() {
                        close.close();
                    }
                });
            } else {
                answer.rest = Some(body);
            }
            Ok(Response::from_parts(parts, Body::new(answer)))
        })
    }
}

/// The body of a request, which fails when it has not arrived in time.
struct ReadInTime {
    body: Body,
    deadline: Pin<Box<Sleep>>,
}

impl http_body::Body for ReadInTime {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_pending() && self.deadline.as_mut().poll(context).is_ready() {
            let late = Status::deadline_exceeded("the request did not arrive within 10 s");
            return Poll::Ready(Some(Err(late)));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer, in parts. What it holds is given back when the transport has taken the last one.
struct Answer {
    data: Bytes,
    trailers: Option<HeaderMap>,
    /// The frames to come of a stream.
    rest: Option<Body>,
    #[allow(dead_code, reason = "given back with the body")]
    permits: Vec<QuotaPermit>,
    #[allow(dead_code, reason = "ends the timeout with the body")]
    written: Option<DropGuard>,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        while self.data.is_empty()
            && let Some(rest) = &mut self.rest
        {
            match ready!(Pin::new(rest).poll_frame(context)?) {
                Some(frame) => match frame.into_data() {
                    Ok(data) => self.data = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                None => self.rest = None,
            }
        }
        if !self.data.is_empty() {
            let size = self.data.len().min(PART_BYTES);
            let part = self.data.split_to(size);
            // A copy, because a part would keep the whole answer in memory until it is written.
            let part = Bytes::copy_from_slice(&part);
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        let ended = self.rest.as_ref().is_none_or(http_body::Body::is_end_stream);
        self.data.is_empty() && self.trailers.is_none() && ended
    }
}
