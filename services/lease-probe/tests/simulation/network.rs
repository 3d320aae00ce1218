//! The network of one client: connections, requests and answers in virtual time.
//!
//! The whole future of a history is known, so every exchange is computed when it begins.

use crate::node_lifecycle_input::TimeSpan;
use crate::random::{MILLISECOND, Micros, SECOND, hashed};
use crate::timeline::{Behaviour, Client, Segment, ServerTimeline};

/// From one end to the other and back.
const ROUND_TRIP: Micros = 2 * MILLISECOND;

/// When Linux sends a SYN again, after the first (`tcp_syn_retries` 6: RFC 6298 with a first time-out of 1 s).
const SYN_RETRANSMISSIONS: [Micros; 7] = [0, 1, 3, 7, 15, 31, 63];

/// And when it gives up.
const SYN_GIVES_UP: Micros = 127 * SECOND;

/// The least retransmission time-out of Linux (`TCP_RTO_MIN`); it doubles, up to `TCP_RTO_MAX`, 15 times.
const RTO_MIN: Micros = 200 * MILLISECOND;
const RTO_MAX: Micros = 120 * SECOND;
const RETRANSMISSIONS: usize = 15;

/// How a client reaches an API server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NetworkPath<'a> {
    pub(crate) server: &'a ServerTimeline,
    pub(crate) cuts: &'a [TimeSpan],
    pub(crate) client: Client,
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// When the server did what was asked for, and with what status; none when it never did.
    pub(crate) processed: Option<(Micros, u16)>,
    pub(crate) ends: ExchangeEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExchangeEnd {
    /// The answer was there.
    Answered(Micros),
    /// The connection was reset.
    Reset(Micros),
    /// Nothing ever comes.
    Silent,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestKind {
    pub(crate) writes: bool,
    /// Distinguishes requests of the same instant.
    pub(crate) nonce: u64,
}

impl NetworkPath<'_> {
    fn is_up(&self, at: Micros) -> bool {
        !self.cuts.iter().any(|cut| cut.contains(at)) && self.server.is_reachable(at)
    }

    /// When a packet that is sent at `at` gets through, with the retransmissions of TCP.
    fn delivered(&self, at: Micros) -> Option<Micros> {
        let (mut sent, mut time_out) = (at, RTO_MIN);
        for _ in 0..=RETRANSMISSIONS {
            if self.is_up(sent) {
                return Some(sent);
            }
            sent += time_out;
            time_out = (2 * time_out).min(RTO_MAX);
        }
        None
    }

    fn nonce(&self, kind: u64) -> u64 {
        let client = match self.client {
            Client::Kubelet(node) => 16 + u64::from(node),
            Client::KubeControllerManager => 1,
            Client::LeaseProbe => 2,
        };
        client << 32 | kind
    }

    /// Opens a connection, TCP and TLS: when it is open, or when that has failed.
    pub(crate) fn open(&self, at: Micros) -> Result<Micros, Micros> {
        let attempts = SYN_RETRANSMISSIONS.map(|seconds| at + seconds * SECOND);
        let Some(syn) = attempts.into_iter().find(|sent| self.is_up(*sent)) else {
            return Err(at + SYN_GIVES_UP);
        };
        if self.leads_to_gone_replica(at, syn) {
            return Err(at + SYN_GIVES_UP);
        }
        if self.server.refuses(syn) {
            return Err(syn + ROUND_TRIP);
        }
        let hello = syn + ROUND_TRIP;
        let hello = self.delivered(hello).unwrap_or(hello + SYN_GIVES_UP);
        let shaken = self.server.thaws(hello) + 2 * MILLISECOND;
        if let Some(death) = self.server.next_death(syn, shaken) {
            return Err(death);
        }
        match self.delivered(shaken) {
            Some(opened) => Ok(opened + ROUND_TRIP / 2 + self.server.connects_late(at)),
            None => Err(shaken + SYN_GIVES_UP),
        }
    }

    /// Sends a request at `at` on a connection that was opened at `opened` and waits for its answer.
    pub(crate) fn request(&self, opened: Micros, at: Micros, kind: RequestKind) -> Exchange {
        let nothing = |ends| Exchange {
            processed: None,
            ends,
        };
        if let Some(closed) = self.closed(opened, at) {
            return nothing(ExchangeEnd::Reset(closed.max(at)));
        }
        let Some(delivered) = self.delivered(at) else {
            return nothing(ExchangeEnd::Silent);
        };
        if self.server.next_death(opened, delivered).is_some() {
            return nothing(ExchangeEnd::Reset(
                self.closed(opened, delivered).unwrap_or(delivered),
            ));
        }
        if self.is_forgotten(opened, delivered) || self.is_on_gone_replica(opened, delivered) {
            return nothing(ExchangeEnd::Silent);
        }
        let delivered = delivered + ROUND_TRIP / 2;
        let finished = { self.server }.finishes(delivered, self.nonce(kind.nonce), kind.writes);
        if let Some(death) = self.server.next_death(opened, finished) {
            return nothing(self.reset_at(death));
        }
        let failure = self
            .server
            .failure(self.client, finished, self.nonce(kind.nonce), kind.writes);
        let processed = Some((finished, failure.unwrap_or(200)));
        let ends = match self.delivered(finished) {
            Some(arrived) => match self.server.next_death(finished, arrived) {
                Some(death) => self.reset_at(death),
                None if self.is_forgotten(opened, arrived) => ExchangeEnd::Silent,
                None => ExchangeEnd::Answered(arrived + ROUND_TRIP / 2),
            },
            None => ExchangeEnd::Silent,
        };
        Exchange { processed, ends }
    }

    /// A reset is sent once: where it is lost, nothing ever comes.
    fn reset_at(&self, death: Micros) -> ExchangeEnd {
        match self.is_up(death) {
            true => ExchangeEnd::Reset(death),
            false => ExchangeEnd::Silent,
        }
    }

    /// When the client of an idle connection noticed, by `until`, that it was closed.
    pub(crate) fn closed(&self, opened: Micros, until: Micros) -> Option<Micros> {
        let mut after = opened;
        while let Some(death) = self.server.next_death(after, until) {
            if self.is_up(death) {
                return Some(death);
            }
            after = death;
        }
        None
    }

    /// Returns true if something on the way has forgotten the connection.
    fn is_forgotten(&self, opened: Micros, at: Micros) -> bool {
        self.server
            .segments
            .iter()
            .any(|segment| match segment.behaviour {
                Behaviour::BlackHole { forgets } => {
                    opened < segment.from
                        && segment.from <= at
                        && hashed(
                            self.server.seed ^ 0xF0_46E7,
                            self.nonce(0),
                            segment.from.unsigned_abs(),
                        ) < forgets
                }
                _ => false,
            })
    }

    /// Returns true if a connection that was begun or opened at `connected` leads to a replica that is gone at `at`.
    fn leads_to_gone_replica(&self, connected: Micros, at: Micros) -> bool {
        let draw = hashed(
            self.server.seed ^ 0x5E_71CA,
            self.nonce(0),
            connected.unsigned_abs(),
        );
        self.server.during(at).any(|segment| match segment.behaviour {
            Behaviour::OneReplicaAway { share } => draw < share,
            _ => false,
        })
    }

    /// Returns true if the replica that the connection leads to has gone since the connection was opened.
    fn is_on_gone_replica(&self, opened: Micros, at: Micros) -> bool {
        let since = |segment: &Segment| opened < segment.from;
        self.server.during(at).any(since) && self.leads_to_gone_replica(opened, at)
    }

    /// When the answer to an HTTP/2 PING that is sent at `at` comes; none when it never does. The process answers it
    /// without a handler, so that a slow one is not silent.
    pub(crate) fn pong(&self, opened: Micros, at: Micros) -> Option<Micros> {
        let delivered = self.delivered(at)?;
        if self.is_forgotten(opened, delivered)
            || self.is_on_gone_replica(opened, delivered)
            || self.server.next_death(opened, delivered).is_some()
        {
            return None;
        }
        let answered = self.server.thaws(delivered);
        let arrived = self.delivered(answered)?;
        let lives = self.server.next_death(opened, arrived).is_none() && !self.is_forgotten(opened, arrived);
        lives.then_some(arrived + ROUND_TRIP)
    }

    /// The first instant from `at` on at which the way to an answering process is not clear; what comes before needs no
    /// closer look.
    pub(crate) fn next_fault(&self, at: Micros) -> Option<Micros> {
        let segments = self.server.segments.iter().filter(|segment| {
            matches!(
                segment.behaviour,
                Behaviour::Refuses
                    | Behaviour::Hangs
                    | Behaviour::BlackHole { .. }
                    | Behaviour::OneReplicaAway { .. }
            )
        });
        let spans = segments.map(|segment| (segment.from, segment.to));
        let spans = spans.chain(self.cuts.iter().map(|cut| (cut.from, cut.to)));
        spans
            .filter(|(_, to)| *to > at)
            .map(|(from, _)| from.max(at))
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::server;

    const READ: RequestKind = RequestKind {
        writes: false,
        nonce: 0,
    };

    fn path<'a>(server: &'a ServerTimeline, cuts: &'a [TimeSpan]) -> NetworkPath<'a> {
        NetworkPath {
            server,
            cuts,
            client: Client::LeaseProbe,
        }
    }

    fn tenths(at: Micros) -> i64 {
        (at + 50 * MILLISECOND).div_euclid(100 * MILLISECOND)
    }

    #[test]
    fn a_black_hole_is_left_at_the_next_retransmission() {
        let server = server(&[(10, 12, Behaviour::BlackHole { forgets: 0.0 })]);
        let path = path(&server, &[]);
        // Sent again after 0.2, 0.6, 1.4, 3.0 s.
        let exchange = path.request(0, 10 * SECOND, READ);
        let ExchangeEnd::Answered(at) = exchange.ends else {
            panic!("{exchange:?}")
        };
        assert_eq!(tenths(at), 130);
        // A SYN after 1 and 3 s.
        let Ok(at) = path.open(10 * SECOND) else {
            panic!("not opened")
        };
        assert_eq!(tenths(at), 130);
        assert!(matches!(path.open(11 * SECOND + 1), Ok(at) if tenths(at) == 120));
    }

    #[test]
    fn a_forgotten_connection_is_silent_and_a_new_one_is_not() {
        let server = server(&[(10, 12, Behaviour::BlackHole { forgets: 1.0 })]);
        let path = path(&server, &[]);
        assert_eq!(path.request(0, 20 * SECOND, READ).ends, ExchangeEnd::Silent);
        assert_eq!(path.pong(0, 20 * SECOND), None);
        let exchange = path.request(13 * SECOND, 20 * SECOND, READ);
        assert!(matches!(exchange.ends, ExchangeEnd::Answered(_)));
    }

    #[test]
    fn a_request_that_is_under_way_when_the_process_dies_is_reset() {
        let server = server(&[(10, 12, Behaviour::Refuses)]);
        let almost = 10 * SECOND - 2 * MILLISECOND;
        let exchange = path(&server, &[]).request(0, almost, READ);
        assert_eq!(exchange.ends, ExchangeEnd::Reset(10 * SECOND));
    }

    /// A client that was cut off when the process died receives the close with the first packet that gets through.
    #[test]
    fn a_close_that_got_lost_is_found_out_later() {
        let server = server(&[(10, 12, Behaviour::Refuses)]);
        let cuts = [TimeSpan::new(9 * SECOND, 20 * SECOND)];
        let path = path(&server, &cuts);
        assert_eq!(path.closed(0, 30 * SECOND), None);
        assert_eq!(
            path.request(0, 21 * SECOND, READ).ends,
            ExchangeEnd::Reset(21 * SECOND)
        );
    }

    #[test]
    fn what_was_written_before_a_cut_stays_written() {
        let server = server(&[]);
        let cuts = [TimeSpan::new(10 * SECOND + 4 * MILLISECOND, 100 * SECOND)];
        let exchange = path(&server, &cuts).request(
            0,
            10 * SECOND,
            RequestKind {
                writes: true,
                nonce: 0,
            },
        );
        assert!(exchange.processed.is_some());
        assert!(!matches!(exchange.ends, ExchangeEnd::Answered(at) if at < 100 * SECOND));
    }
}
