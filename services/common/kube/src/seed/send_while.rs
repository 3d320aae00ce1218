//! Requests that leave this process while they may, or never.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Request;
use http_body::{Body as HttpBody, Frame, SizeHint};
use kube::client::Body;
use tower::BoxError;

/// An extension of a request with a body: it leaves while this is true or never.
///
/// A deadline of the whole request does not make sure of that. A process that was frozen, or whose threads got no CPU,
/// goes on where it was. If the request had been handed to its connection, the connection sends it.
#[derive(Clone)]
pub(crate) struct SendWhile(pub(crate) Arc<dyn Fn() -> bool + Send + Sync>);

/// The body of a request that may carry [`SendWhile`]. A connection asks for the body right before it writes head and
/// body, and drops both if there is none.
pub(super) struct TimedBody {
    body: Body,
    may_send: Option<SendWhile>,
}

#[derive(Debug, thiserror::Error)]
#[error("the request was not sent in time, and must not be sent later")]
struct TooLate;

// === impl TimedBody ===

impl TimedBody {
    pub(super) fn wrap(request: Request<Body>) -> Request<Self> {
        let may_send = request.extensions().get().cloned();
        request.map(|body| Self { body, may_send })
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self
            .may_send
            .as_ref()
            .is_some_and(|SendWhile(may_send)| !may_send())
        {
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
    use std::collections::BTreeSet;
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::Duration;

    use futures::poll;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::{Patch, PatchParams};
    use kube::config::Config;
    use serde_json::json;
    use tokio::task::yield_now;
    use tokio::time::{Instant, timeout};

    use super::super::transport::SeedEndpoint;
    use super::super::trust::host_authorities;
    use super::*;
    use crate::leadership::Leadership;

    /// For a request to end, however busy the machine is.
    const BOUND: Duration = Duration::from_secs(30);

    /// The body of the request, which comes last.
    const BODY: &[u8] = br#"{"data":{}}"#;

    /// A server on the thread of the test, so that nothing happens while that sleeps. The kernel hands over what is
    /// written to a socket of this machine at once.
    struct Server {
        listener: TcpListener,
        open: Vec<(TcpStream, Vec<u8>)>,
    }

    impl Server {
        fn bind() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            Self {
                listener,
                open: Vec::new(),
            }
        }

        /// Reads what was sent up to now; returns true if a request is there that is not answered.
        fn has_request(&mut self) -> bool {
            while let Ok((stream, _)) = self.listener.accept() {
                stream.set_nonblocking(true).unwrap();
                self.open.push((stream, Vec::new()));
            }
            for (stream, received) in &mut self.open {
                match stream.read_to_end(received) {
                    Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
                    _ => {}
                }
            }
            self.open.iter().any(|(_, received)| received.ends_with(BODY))
        }

        fn answer(&mut self) {
            for (stream, received) in &mut self.open {
                if received.ends_with(BODY) {
                    received.clear();
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                    stream.write_all(answer).unwrap();
                }
            }
        }
    }

    /// The process is frozen after each step of a request in turn: before there is a connection, when the request has
    /// been handed to it, when it has left.
    #[tokio::test]
    async fn a_leader_that_was_frozen_sends_nothing_that_had_not_left() {
        let mut server = Server::bind();
        let url = format!("http://{}", server.listener.local_addr().unwrap());
        let endpoint = SeedEndpoint {
            config: Config::new(url.parse().unwrap()),
            trust: host_authorities().into(),
            proxy: None,
        };
        let client = endpoint.client(None).unwrap();
        let (setter, leadership) = Leadership::channel("me", None);
        // On a busy machine, a short time may be over before anything was sent, or even before the request began.
        let mut leads_for = Duration::from_millis(20);
        let mut left = BTreeSet::new();
        while left.len() < 2 {
            assert!(leads_for < BOUND, "{left:?}");
            for steps in 0..12 {
                setter.lead(Some(Instant::now() + leads_for));
                let Some(permit) = leadership.act() else {
                    continue;
                };
                let maps: Api<ConfigMap> = Api::namespaced(permit.client(&client), "garden");
                let (params, patch) = (PatchParams::default(), Patch::Merge(json!({ "data": {} })));
                let mut request = Box::pin(maps.patch("map", &params, &patch));
                let mut polled = Poll::Pending;
                for _ in 0..steps {
                    polled = poll!(&mut request);
                    if polled.is_ready() {
                        break;
                    }
                    yield_now().await;
                }
                let has_left = server.has_request();
                thread::sleep(leads_for);
                let goes_on = async {
                    loop {
                        if let Poll::Ready(answer) = polled {
                            break answer;
                        }
                        if server.has_request() {
                            assert!(has_left, "after {steps} steps");
                            server.answer();
                        }
                        yield_now().await;
                        polled = poll!(&mut request);
                    }
                };
                let answer = timeout(BOUND, goes_on).await.unwrap();
                assert_eq!(answer.is_ok(), has_left, "after {steps} steps: {answer:?}");
                left.insert(has_left);
            }
            leads_for *= 2;
        }
    }
}
