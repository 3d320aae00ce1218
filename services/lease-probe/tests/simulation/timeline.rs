//! How an API server behaves over time, and when the network between it and a client is cut.

use crate::node_lifecycle_input::TimeSpan;
use crate::random::{MILLISECOND, Micros, SECOND, hashed};

/// Later than everything.
pub(crate) const FOREVER: Micros = Micros::MAX / 4;

/// A client of an API server. All clients share one network, except for the cuts of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    Kubelet(u32),
    KubeControllerManager,
    LeaseProbe,
}

/// A fault of an API server. Outside of all segments the server answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Behaviour {
    /// The process is gone: connections are closed at the start, connects are refused.
    Refuses,
    /// The process is frozen: connections stay, the kernel accepts more, requests are answered when it thaws.
    Hangs,
    /// Packets are dropped, and sent again by TCP. With `forgets`, what was on the way (NAT, load balancer) has
    /// forgotten about that share of the connections afterwards, without notice to either side.
    BlackHole { forgets: f64 },
    /// The API server runs, answers pings and opens connections; etcd does not answer. Requests wait, and all that are
    /// still waited for are worked on at the end, in random order.
    EtcdHangs,
    /// Every request takes longer by this much.
    Slow { by: Micros },
    /// Every write takes longer by this much: a disk of etcd that is slow. Reads are fast.
    SlowWrites { by: Micros },
    /// Every new connection takes longer by this much.
    SlowConnects { by: Micros },
    /// etcd was restored from a backup that was this old, at the start of the segment.
    Restored { by: Micros },
    /// A share of the requests fails at random.
    Fails { share: f64, status: u16, of: FailsFor },
    /// Lists show the state of this long ago: an API server whose watch cache lags.
    ListsStale { by: Micros },
    /// Lists show the state at the start of the segment: an API server whose watch cache has stopped.
    ListsFrozen,
    /// Reads are answered, writes are not: an API server that has just started.
    RefusesWrites,
    /// Every answer is the last on its connection.
    ClosesAfterAnswers,
    /// Connections are closed when they have been idle for this long.
    ClosesIdle { after: Micros },
    /// This share of the connections, old and new, leads to a replica that is gone without a sign.
    OneReplicaAway { share: f64 },
}

/// Whose requests fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailsFor {
    Everybody,
    /// Such as a webhook, or a priority level of its own.
    Kubelets,
    /// Such as a token that is not accepted: kubelets and kube-controller-manager have credentials of their own.
    LeaseProbe,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Segment {
    pub(crate) from: Micros,
    pub(crate) to: Micros,
    pub(crate) behaviour: Behaviour,
}

/// An API server.
#[derive(Debug, Clone)]
pub(crate) struct ServerTimeline {
    pub(crate) seed: u64,
    /// Of an answer; up to twice as much at random.
    pub(crate) latency: Micros,
    /// May overlap.
    pub(crate) segments: Vec<Segment>,
    pub(crate) speaks_http2: bool,
    /// Leaders of elections, which write every 2 s, kube-controller-manager among them. Where there is none, only
    /// kubelets and the API server itself write, and no kube-controller-manager can mark a node.
    pub(crate) elections: u64,
}

impl Segment {
    pub(crate) const fn contains(&self, at: Micros) -> bool {
        self.from <= at && at < self.to
    }
}

impl TimeSpan {
    pub(crate) const fn from_on(from: Micros) -> Self {
        Self { from, to: FOREVER }
    }
}

impl ServerTimeline {
    pub(crate) fn during(&self, at: Micros) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(move |segment| segment.contains(at))
    }

    pub(crate) fn refuses(&self, at: Micros) -> bool {
        self.during(at)
            .any(|segment| matches!(segment.behaviour, Behaviour::Refuses))
    }

    /// Returns true if packets reach the server, apart from the cuts of single clients.
    pub(crate) fn is_reachable(&self, at: Micros) -> bool {
        !self
            .during(at)
            .any(|segment| matches!(segment.behaviour, Behaviour::BlackHole { .. }))
    }

    /// When the process next dies after `after`, up to `until`: all connections end.
    pub(crate) fn next_death(&self, after: Micros, until: Micros) -> Option<Micros> {
        let deaths = self
            .segments
            .iter()
            .filter(|segment| matches!(segment.behaviour, Behaviour::Refuses));
        deaths
            .map(|segment| segment.from)
            .filter(|from| after < *from && *from <= until)
            .min()
    }

    /// When a process that can go on at `at` does: at once, or when it thaws.
    pub(crate) fn thaws(&self, at: Micros) -> Micros {
        self.ends(at, |behaviour| matches!(behaviour, Behaviour::Hangs))
    }

    /// When a request that can be worked on at `at` is: at once, or when the process or etcd answers again.
    pub(crate) fn etcd_answers(&self, at: Micros) -> Micros {
        self.ends(at, |behaviour| {
            matches!(behaviour, Behaviour::Hangs | Behaviour::EtcdHangs)
        })
    }

    /// The first instant from `at` on without such a behaviour.
    fn ends(&self, at: Micros, is_such: fn(Behaviour) -> bool) -> Micros {
        let mut at = at;
        while let Some(segment) = self.during(at).find(|segment| is_such(segment.behaviour)) {
            at = segment.to;
        }
        at
    }

    /// By how much a connection that is begun at `at` is late.
    pub(crate) fn connects_late(&self, at: Micros) -> Micros {
        let late = self.during(at).map(|segment| match segment.behaviour {
            Behaviour::SlowConnects { by } => by,
            _ => 0,
        });
        late.sum()
    }

    /// When a request that is delivered at `at` has been worked on, if the process does not die before.
    pub(crate) fn finishes(&self, at: Micros, nonce: u64, writes: bool) -> Micros {
        let slow = self.during(at).map(|segment| match segment.behaviour {
            Behaviour::Slow { by } => by,
            Behaviour::SlowWrites { by } if writes => by,
            _ => 0,
        });
        let slow: Micros = slow.sum();
        let takes = self.latency as f64 * (1.0 + hashed(self.seed, nonce, at.unsigned_abs())) + slow as f64;
        let started = self.etcd_answers(at);
        let finished = started + (takes as Micros).max(MILLISECOND);
        // Frozen while at work: what is left is done after the thaw.
        match self.etcd_answers(finished) {
            thawed if thawed > finished => thawed + MILLISECOND,
            _ => finished,
        }
    }

    /// The status of an answer, if it is not the one that was asked for.
    pub(crate) fn failure(&self, client: Client, at: Micros, nonce: u64, writes: bool) -> Option<u16> {
        self.during(at).find_map(|segment| match segment.behaviour {
            Behaviour::Fails { share, status, of } => {
                let concerned = match of {
                    FailsFor::Everybody => true,
                    FailsFor::Kubelets => matches!(client, Client::Kubelet(_)),
                    FailsFor::LeaseProbe => client == Client::LeaseProbe,
                };
                (concerned && hashed(self.seed ^ 0xFA11, nonce, at.unsigned_abs()) < share).then_some(status)
            }
            Behaviour::RefusesWrites => writes.then_some(500),
            _ => None,
        })
    }

    /// By how much a list that is made at `at` is behind.
    pub(crate) fn staleness(&self, at: Micros) -> Micros {
        let stale = self.during(at).map(|segment| match segment.behaviour {
            Behaviour::ListsStale { by } => by,
            Behaviour::ListsFrozen => at - segment.from,
            _ => 0,
        });
        stale.max().unwrap_or(0)
    }

    /// Returns true if a list that is made at `at` shows what was written at `written`.
    pub(crate) fn shows(&self, written: Micros, at: Micros) -> bool {
        let lost = self.segments.iter().any(|segment| match segment.behaviour {
            Behaviour::Restored { by } => {
                segment.from <= at && segment.from - by < written && written <= segment.from
            }
            _ => false,
        });
        written <= at - self.staleness(at) && !lost
    }

    pub(crate) fn closes_after_answers(&self, at: Micros) -> bool {
        self.during(at)
            .any(|segment| matches!(segment.behaviour, Behaviour::ClosesAfterAnswers))
    }

    /// How long a connection may be idle before it is closed.
    pub(crate) fn closes_idle(&self, at: Micros) -> Option<Micros> {
        self.during(at).find_map(|segment| match segment.behaviour {
            Behaviour::ClosesIdle { after } => Some(after),
            _ => None,
        })
    }

    /// For how long of the time between `from` and `to` it served everybody.
    pub(crate) fn served(&self, from: Micros, to: Micros) -> Micros {
        let fails = |segment: &&Segment| match segment.behaviour {
            Behaviour::Refuses
            | Behaviour::Hangs
            | Behaviour::BlackHole { .. }
            | Behaviour::EtcdHangs
            | Behaviour::RefusesWrites => true,
            // Of the ten PUTs of a turn one gets through in 97 of 100 turns where this share of the requests fails.
            Behaviour::Fails { of, share, .. } => of != FailsFor::LeaseProbe && share > 0.7,
            Behaviour::Slow { .. }
            | Behaviour::SlowWrites { .. }
            | Behaviour::SlowConnects { .. }
            | Behaviour::Restored { .. }
            | Behaviour::ListsStale { .. }
            | Behaviour::ListsFrozen
            | Behaviour::ClosesAfterAnswers
            | Behaviour::ClosesIdle { .. }
            | Behaviour::OneReplicaAway { .. } => false,
        };
        let mut failing: Vec<_> = self.segments.iter().filter(fails).collect();
        failing.sort_unstable_by_key(|segment| segment.from);
        let (mut served, mut counted_to) = (0, from);
        for segment in failing {
            served += (segment.from.min(to) - counted_to).max(0);
            counted_to = counted_to.max(segment.to);
        }
        served + (to - counted_to).max(0)
    }

    /// The same server if nothing began to fail from `at` on: what is under way ends as planned.
    pub(crate) fn frozen_at(&self, at: Micros) -> Self {
        let under_way = self.segments.iter().filter(|segment| segment.from <= at);
        Self {
            segments: under_way.copied().collect(),
            ..self.clone()
        }
    }
}

/// A server that behaves like that in these spans, in seconds, and answers within 10 ms otherwise. For tests of the
/// models.
pub(crate) fn server(segments: &[(i64, i64, Behaviour)]) -> ServerTimeline {
    let segment = |(from, to, behaviour): &(i64, i64, Behaviour)| Segment {
        from: from * SECOND,
        to: to * SECOND,
        behaviour: *behaviour,
    };
    ServerTimeline {
        seed: 1,
        latency: 5 * MILLISECOND,
        segments: segments.iter().map(segment).collect(),
        speaks_http2: true,
        elections: 3,
    }
}

/// The same cuts if the network stayed as it is at `at`.
pub(crate) fn frozen_cuts(cuts: &[TimeSpan], at: Micros) -> Vec<TimeSpan> {
    let so_far = cuts.iter().filter(|cut| cut.from <= at);
    let frozen = |cut: &TimeSpan| {
        if cut.contains(at) {
            TimeSpan::from_on(cut.from)
        } else {
            *cut
        }
    };
    so_far.map(frozen).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_process_goes_on_when_it_thaws() {
        let server = server(&[(10, 20, Behaviour::Hangs), (20, 25, Behaviour::Hangs)]);
        assert!((5..11).contains(&(server.finishes(SECOND, 0, false) / MILLISECOND - 1_000)));
        assert_eq!(server.finishes(12 * SECOND, 0, false) / SECOND, 25);
        assert_eq!(
            server.finishes(10 * SECOND - MILLISECOND, 0, false),
            25 * SECOND + MILLISECOND
        );
    }

    #[test]
    fn what_is_served_lies_outside_of_all_failures() {
        let away = [
            (10, 20, Behaviour::Hangs),
            (15, 25, Behaviour::Refuses),
            (30, 40, Behaviour::Slow { by: SECOND }),
        ];
        let served = |from: i64, to: i64| server(&away).served(from * SECOND, to * SECOND) / SECOND;
        assert_eq!(
            [served(0, 10), served(5, 50), served(12, 22), served(24, 26)],
            [10, 30, 0, 1]
        );
    }

    #[test]
    fn nothing_new_fails_in_a_frozen_history() {
        let server = server(&[(10, 20, Behaviour::Refuses), (30, 40, Behaviour::Refuses)]);
        assert_eq!(server.frozen_at(15 * SECOND).segments, server.segments[..1]);
        let cuts = [(0, 5), (10, 20), (30, 40)].map(|(from, to)| TimeSpan::new(from * SECOND, to * SECOND));
        let expected = [cuts[0], TimeSpan::from_on(10 * SECOND)];
        assert_eq!(frozen_cuts(&cuts, 15 * SECOND), expected);
    }
}
