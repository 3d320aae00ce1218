//! Requests that leave this process before a time, or never.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Request;
use http_body::{Body as HttpBody, Frame, SizeHint};
use kube::client::Body;
use tokio::time::Instant;
use tower::BoxError;

/// An extension of a request with a body: it leaves before this time or never.
///
/// A deadline of the whole request does not make sure of that. A process that was frozen, or whose threads got no CPU,
/// goes on where it was. If the request had been handed to its connection, the connection sends it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendBefore(pub(crate) Instant);

/// The body of a request that may carry [`SendBefore`]. A connection asks for the body right before it writes head and
/// body, and drops both if there is none.
pub(super) struct TimedBody {
    body: Body,
    until: Option<Instant>,
}

#[derive(Debug, thiserror::Error)]
#[error("the request was not sent in time, and must not be sent later")]
struct TooLate;

// === impl TimedBody ===

impl TimedBody {
    pub(super) fn wrap(request: Request<Body>) -> Request<Self> {
        let until = request.extensions().get().map(|SendBefore(until)| *until);
        request.map(|body| Self { body, until })
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return Poll::Ready(Some(Err(TooLate.into())));
        }
        Pin::new(&mut self.body).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use futures::poll;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::{Patch, PatchParams};
    use kube::config::Config;
    use serde_json::json;
    use tokio::task::yield_now;

    use super::super::host_authorities;
    use super::super::transport::SeedEndpoint;
    use crate::leadership::Leadership;

    /// How long a replica may act in the test.
    const LEADS_FOR: Duration = Duration::from_millis(20);

    /// A request that left before is received within this time.
    const FROZEN_FOR: Duration = Duration::from_millis(300);

    /// Answers requests on a thread of its own, and counts them.
    fn serve() -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::new(AtomicUsize::new(0));
        let count = received.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, count) = (stream.unwrap(), count.clone());
                thread::spawn(move || answer(stream, &count));
            }
        });
        (url, received)
    }

    fn answer(mut stream: TcpStream, count: &AtomicUsize) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        loop {
            let mut length = 0;
            loop {
                let mut line = String::new();
                if !matches!(reader.read_line(&mut line), Ok(1..)) {
                    return;
                }
                if let Some((_, value)) = line.to_ascii_lowercase().split_once("content-length: ") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            if reader.read_exact(&mut vec![0; length]).is_err() {
                return;
            }
            count.fetch_add(1, Ordering::SeqCst);
            if stream
                .write_all(b"HTTP/1.1 200 X\r\ncontent-length: 2\r\n\r\n{}")
                .is_err()
            {
                return;
            }
        }
    }

    /// The process is frozen after each step of a request in turn: before there is a connection, when the request has
    /// been handed to it, when it has left.
    #[tokio::test]
    async fn a_leader_that_was_frozen_sends_nothing_that_had_not_left() {
        let (url, received) = serve();
        let endpoint = SeedEndpoint {
            config: Config::new(url.parse().unwrap()),
            trust: host_authorities().into(),
            proxy: None,
        };
        let client = endpoint.client(None).unwrap();
        let (setter, leadership) = Leadership::channel("me", None);
        let mut left = Vec::new();
        for steps in 0..12 {
            let until = tokio::time::Instant::now() + LEADS_FOR;
            setter.lead(Some(until));
            let permit = leadership.act().unwrap();
            let maps: Api<ConfigMap> = Api::namespaced(permit.client(&client), "garden");
            let (params, patch) = (PatchParams::default(), Patch::Merge(json!({ "data": {} })));
            let before = received.load(Ordering::SeqCst);
            let mut request = Box::pin(maps.patch("map", &params, &patch));
            let mut is_answered = false;
            for _ in 0..steps {
                is_answered = poll!(&mut request).is_ready();
                if is_answered {
                    break;
                }
                yield_now().await;
            }
            thread::sleep(LEADS_FOR + FROZEN_FOR);
            let frozen = received.load(Ordering::SeqCst);
            if !is_answered {
                let answer = tokio::time::timeout(10 * FROZEN_FOR, request).await.unwrap();
                assert_eq!(answer.is_ok(), frozen > before, "{steps}: {answer:?}");
            }
            assert_eq!(received.load(Ordering::SeqCst), frozen, "after {steps} steps");
            left.push(frozen > before);
        }
        assert!(left.contains(&true) && left.contains(&false), "{left:?}");
    }
}
