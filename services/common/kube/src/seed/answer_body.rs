//! Watches that end too soon.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame};
use tokio::time::Instant;
use tower::BoxError;

/// A watch that ends sooner has failed. API servers end one after [`WATCH_SECONDS`](crate::client::WATCH_SECONDS), and
/// kube's watcher then opens the next at once. Where all of them end at once, it would open thousands in a second, and
/// nothing would show that the index is out of date.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);

/// The body of an answer. That of a watch which ends too soon ends with an error.
pub(super) struct AnswerBody<B> {
    body: B,
    too_soon_until: Option<Instant>,
}

// === impl AnswerBody ===

impl<B> AnswerBody<B> {
    /// Wraps the answer to this request. A refusal says itself what is wrong, and ends at once.
    pub(super) fn wrapper<T>(request: &Request<T>) -> impl FnOnce(Response<B>) -> Response<Self> + use<B, T> {
        let mut parts = request.uri().query().unwrap_or_default().split('&');
        let is_watch = parts.any(|part| part == "watch=true");
        move |answer| {
            let is_watching = is_watch && answer.status().is_success();
            let too_soon_until = is_watching.then(|| Instant::now() + SHORTEST_WATCH);
            answer.map(|body| Self { body, too_soon_until })
        }
    }
}

impl<B> HttpBody for AnswerBody<B>
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let has_ended = !matches!(frame, Some(Ok(_)));
        if has_ended
            && self
                .too_soon_until
                .take()
                .is_some_and(|until| Instant::now() < until)
        {
            let why = "the watch was ended within a second";
            let error = io::Error::new(io::ErrorKind::ConnectionAborted, why);
            return Poll::Ready(Some(Err(error.into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }
}
