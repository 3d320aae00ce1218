//! Limits on the RPCs of callers: their number, the size of a request, the time to read it and to write the answer, and
//! the memory of answers that wait for their reader.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use axum::{BoxError, Extension};
use futures::{StreamExt as _, stream};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, BodyStream, Full, LengthLimitError, Limited, StreamBody};
use hyper::body::Bytes;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

use crate::accept::Peer;
use crate::caller_quota::{CallerQuota, QuotaLimits};
use crate::rpc_error::{ErrorReason, error};
use crate::rpc_metrics::Methods;

/// RPCs under way, streams included. A stream holds a cursor and at most one batch of shared values. 64 replicas with
/// two streams each, and as many of the coordinator with one, fit into what is reserved.
const RPCS: QuotaLimits = QuotaLimits {
    what: "calls and streams",
    total: 1024,
    reserved: 256,
    per_client: 32,
    per_address: 256,
};

/// Bytes of answers that are not written yet.
const ANSWER_BYTES: QuotaLimits = QuotaLimits {
    what: "bytes of unread answers",
    total: 48 * 1024 * 1024,
    reserved: 24 * 1024 * 1024,
    per_client: 8 * 1024 * 1024,
    per_address: 8 * 1024 * 1024,
};

/// Largest request in bytes, its length included: the largest legal one names 1,000 shoots of at most 63 characters.
pub const MAX_REQUEST_BYTES: usize = 128 * 1024;

/// A request arrives, and an answer that is no stream is written, within this time.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An answer is handed to the transport in parts of this size.
const PART_BYTES: usize = 16 * 1024;

/// The quotas of a server.
#[derive(Debug, Clone)]
pub(crate) struct RpcLimits {
    rpcs: CallerQuota,
    answers: CallerQuota,
    methods: Arc<Methods>,
}

/// The middleware of a server.
pub(crate) async fn limit(
    State(limits): State<RpcLimits>,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let answer = limits.run(&peer, request, next).await;
    answer.unwrap_or_else(|status| status.into_http())
}

impl RpcLimits {
    pub(crate) fn new(methods: Arc<Methods>) -> Self {
        Self {
            rpcs: CallerQuota::new(RPCS),
            answers: CallerQuota::new(ANSWER_BYTES),
            methods,
        }
    }

    async fn run(&self, peer: &Peer, request: Request, next: Next) -> Result<Response, Status> {
        let caller = peer.caller.clone()?;
        let permit = self.rpcs.acquire(&caller, 1);
        let permit = permit.map_err(|why| error(ErrorReason::TooManyStreams, why))?;
        let method = self.methods.get(request.uri().path());
        let streams_request = method.is_some_and(|method| method.client_streaming());
        let is_unary = method.is_some_and(|method| !method.client_streaming() && !method.server_streaming());
        let request = if streams_request {
            request
        } else {
            read(request).await?
        };
        let (head, body) = next.run(request).await.into_parts();
        // The status of a call that failed is in the head.
        if !is_unary || body.is_end_stream() {
            return Ok(Response::from_parts(head, in_parts(body, permit)));
        }
        // Out of its handler, so that its size is known.
        let collected = body.collect().await;
        let collected = collected.map_err(|error| Status::from_error(error.into_inner()))?;
        let trailers = collected.trailers().cloned();
        let data = collected.to_bytes();
        let bytes = self.answers.acquire(&caller, data.len()).map_err(|_| {
            let why = "too many answers are unread: read them first, or request smaller pages";
            error(ErrorReason::TooManyStreams, why)
        })?;
        let close = peer.close.clone();
        let close_if_unread = AbortOnDropHandle::new(tokio::spawn(async move {
            sleep(TIMEOUT).await;
            close.cancel();
        }));
        let answer = Full::new(data).with_trailers(async { trailers.map(Ok) });
        let answer = in_parts(Body::new(answer), (permit, bytes, close_if_unread));
        Ok(Response::from_parts(head, answer))
    }
}

/// The request once all of it is there.
async fn read(request: Request) -> Result<Request, Status> {
    let (head, body) = request.into_parts();
    let read = timeout(TIMEOUT, copy(body)).await;
    let read = read.map_err(|_| Status::deadline_exceeded("the request did not arrive within 10 s"))?;
    let bytes = read.map_err(|error| {
        if error.is::<LengthLimitError>() {
            Status::out_of_range(format!("the request has more than {MAX_REQUEST_BYTES} bytes"))
        } else {
            Status::from_error(error)
        }
    })?;
    Ok(Request::from_parts(head, bytes.into()))
}

/// Copies, because a frame of one byte would keep the whole buffer in memory in which it arrived.
async fn copy(body: Body) -> Result<Vec<u8>, BoxError> {
    let mut body = Limited::new(body, MAX_REQUEST_BYTES);
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}

/// The body of an answer in parts. What is held for it is given back when the transport has taken the last one.
pub(crate) fn in_parts(body: Body, held: impl Send + 'static) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let frames = BodyStream::new(body).flat_map(move |frame| {
        let _held = &held;
        stream::iter(parts(frame))
    });
    Body::new(StreamBody::new(frames))
}

/// Copies, because a part would keep the whole answer in memory until it is written.
fn parts<E>(frame: Result<Frame<Bytes>, E>) -> Vec<Result<Frame<Bytes>, E>> {
    match frame.map(Frame::into_data) {
        Ok(Ok(data)) => data
            .chunks(PART_BYTES)
            .map(|part| Ok(Frame::data(Bytes::copy_from_slice(part))))
            .collect(),
        Ok(Err(trailers)) => vec![Ok(trailers)],
        Err(error) => vec![Err(error)],
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn a_request_keeps_no_buffer_of_its_connection() {
        let buffer: Arc<[u8]> = Arc::from([0; PART_BYTES]);
        let frame = Bytes::from_owner(buffer.clone()).slice(..1);
        let sent = stream::iter([Ok::<_, Infallible>(frame)]).chain(stream::pending());
        let mut reading = pin!(read(Request::new(Body::from_stream(sent))));
        assert!(futures::poll!(reading.as_mut()).is_pending());
        assert_eq!(Arc::strong_count(&buffer), 1);
    }

    #[tokio::test]
    async fn a_request_of_128_kib_is_read_and_one_byte_more_is_refused() {
        let read = async |length| read(Request::new(Body::from(vec![0; length]))).await;
        let whole = read(MAX_REQUEST_BYTES).await.unwrap().into_body();
        assert_eq!(whole.collect().await.unwrap().to_bytes().len(), MAX_REQUEST_BYTES);
        let refused = read(MAX_REQUEST_BYTES + 1).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::OutOfRange, "{refused}");
    }
}
