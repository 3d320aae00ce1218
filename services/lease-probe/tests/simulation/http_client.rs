//! The HTTP client of a Kubernetes component in virtual time: one connection, a time-out for each request.

use crate::network::{Exchange, ExchangeEnd, NetworkPath, RequestKind};
use crate::random::{Micros, SECOND};

/// client-go sends a request again that was answered with 429 and `Retry-After`, which API servers set to 1 s, up to
/// ten times (k8s.io/client-go/rest/with_retry.go).
const RETRIES_OF_THROTTLED: usize = 10;
const RETRY_AFTER: Micros = SECOND;

#[derive(Debug, Clone)]
pub(crate) struct HttpClient {
    time_out: Micros,
    opened: Option<Micros>,
    requests: u64,
}

/// How a request ended for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Response {
    /// When it knew.
    pub(crate) at: Micros,
    /// The status; none without an answer.
    pub(crate) status: Option<u16>,
    /// When the server processed the request, even if the client never received the answer. It may be after the client
    /// gave up: a frozen process finds the request when it thaws.
    pub(crate) processed: Option<Micros>,
}

impl Response {
    pub(crate) fn is_ok(&self) -> bool {
        self.status == Some(200)
    }
}

impl HttpClient {
    pub(crate) const fn new(time_out: Micros) -> Self {
        Self {
            time_out,
            opened: None,
            requests: 0,
        }
    }

    pub(crate) fn close_connections(&mut self) {
        self.opened = None;
    }

    /// Sends a request at `at`.
    pub(crate) fn call(&mut self, path: &NetworkPath<'_>, at: Micros, writes: bool) -> Response {
        let mut at = at;
        for _ in 0..RETRIES_OF_THROTTLED {
            let response = self.attempt(path, at, writes);
            if response.status != Some(429) {
                return response;
            }
            at = response.at + RETRY_AFTER;
        }
        self.attempt(path, at, writes)
    }

    fn attempt(&mut self, path: &NetworkPath<'_>, at: Micros, writes: bool) -> Response {
        self.requests += 1;
        let gives_up = at + self.time_out;
        let unanswered = |at, processed| Response {
            at,
            status: None,
            processed,
        };
        let reused = self.opened.filter(|opened| path.closed(*opened, at).is_none());
        let (opened, sent) = match reused {
            Some(opened) => (opened, at),
            None => match path.open(at) {
                Ok(opened) if opened < gives_up => (opened, opened),
                Ok(_) => return unanswered(gives_up, None),
                Err(failed) => return unanswered(failed.min(gives_up), None),
            },
        };
        self.opened = Some(opened);
        let kind = RequestKind {
            writes,
            nonce: self.requests,
        };
        let Exchange { processed, ends } = path.request(opened, sent, kind);
        let done = processed.filter(|(_, status)| *status == 200).map(|(at, _)| at);
        match ends {
            ExchangeEnd::Answered(answered) if answered <= gives_up => {
                if path.server.closes_after_answers(answered) {
                    self.close_connections();
                }
                Response {
                    at: answered,
                    status: processed.map(|(_, status)| status),
                    processed: done,
                }
            }
            ExchangeEnd::Reset(reset) if reset <= gives_up => {
                self.close_connections();
                unanswered(reset, done)
            }
            _ => {
                // HTTP/1.1 cannot give up a request without its connection.
                if !path.server.speaks_http2 {
                    self.close_connections();
                }
                unanswered(gives_up, done)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{Behaviour, Client, FailsFor, ServerTimeline, server};

    fn calls(server: &ServerTimeline, at: &[i64]) -> Vec<(i64, Option<u16>)> {
        let path = NetworkPath {
            server,
            cuts: &[],
            client: Client::Kubelet(0),
        };
        let mut client = HttpClient::new(10 * SECOND);
        let call = |at: &i64| client.call(&path, at * SECOND, true);
        let responses: Vec<_> = at.iter().map(call).collect();
        responses
            .iter()
            .map(|response| (response.at / SECOND, response.status))
            .collect()
    }

    #[test]
    fn gives_up_after_its_time_out() {
        let server = server(&[(10, 40, Behaviour::Hangs)]);
        assert_eq!(
            calls(&server, &[5, 12, 22, 32]),
            [(5, Some(200)), (22, None), (32, None), (40, Some(200))]
        );
    }

    #[test]
    fn a_closed_connection_is_replaced() {
        let server = server(&[(10, 12, Behaviour::Refuses)]);
        assert_eq!(
            calls(&server, &[5, 11, 12]),
            [(5, Some(200)), (11, None), (12, Some(200))]
        );
    }

    #[test]
    fn what_is_throttled_is_sent_again() {
        let throttles = Behaviour::Fails {
            share: 1.0,
            status: 429,
            of: FailsFor::Everybody,
        };
        let server = server(&[(10, 14, throttles)]);
        assert_eq!(calls(&server, &[10]), [(14, Some(200))]);
    }
}
