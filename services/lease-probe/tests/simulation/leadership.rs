//! When a kube-controller-manager leads, and when what it knows of the cluster is up to date.
//!
//! Written after k8s.io/client-go/tools/leaderelection and tools/cache/reflector.go of Kubernetes 1.36.

use crate::http_client::HttpClient;
use crate::network::NetworkPath;
use crate::node_lifecycle_input::TimeSpan;
use crate::random::{MILLISECOND, Micros, Random, SECOND};
use crate::timeline::{Behaviour, Client, FOREVER, ServerTimeline};

/// `--leader-elect-retry-period`, `--leader-elect-renew-deadline`, `--leader-elect-lease-duration`.
const RETRY_PERIOD: Micros = 2 * SECOND;
const RENEW_DEADLINE: Micros = 10 * SECOND;
const LEASE_DURATION: Micros = 15 * SECOND;

/// The time-out of the client for the leader Lease: half of the renew deadline.
const TIME_OUT: Micros = RENEW_DEADLINE / 2;

/// A watch that was closed is opened again after a pause that doubles from 0.8 s, and up to twice that at random
/// (`NewReflector`'s back-off manager); KCM does not lead for long enough without its server to see longer ones.
const LONGEST_WATCH_PAUSE: Micros = 8 * SECOND;

/// The terms of all processes between `from` and `until`. After `keeps_from` no leadership is lost any more.
pub(crate) fn terms(
    server: &ServerTimeline,
    from: Micros,
    until: Micros,
    keeps_from: Micros,
) -> Vec<TimeSpan> {
    let path = NetworkPath {
        server,
        cuts: &[],
        client: Client::KubeControllerManager,
    };
    let mut random = Random::stream(server.seed, 0x1EAD);
    let mut terms = Vec::new();
    let mut starts = from;
    while starts < until {
        let mut client = HttpClient::new(TIME_OUT);
        let lost = loses(&path, &mut client, starts, until, keeps_from);
        terms.push(TimeSpan::new(starts, lost));
        if lost >= until {
            break;
        }
        starts = succeeds(&path, lost, &mut random);
    }
    terms
}

/// When a process that leads since `from` loses its leadership.
fn loses(
    path: &NetworkPath<'_>,
    client: &mut HttpClient,
    from: Micros,
    until: Micros,
    keeps_from: Micros,
) -> Micros {
    let mut now = from;
    while now < until && now < keeps_from {
        let deadline = now + RENEW_DEADLINE;
        loop {
            let renewed = client.call(path, now, true);
            if renewed.is_ok() && renewed.at <= deadline {
                now = renewed.at + RETRY_PERIOD;
                break;
            }
            now = renewed.at.max(now + RETRY_PERIOD);
            if now >= deadline {
                if deadline < keeps_from {
                    return deadline;
                }
                break;
            }
        }
    }
    FOREVER
}

/// When a successor leads: another replica that waits for the Lease to end, or the same one started again, whose Lease
/// is given up sooner where the object was deleted or released. Either needs a server that takes writes.
fn succeeds(path: &NetworkPath<'_>, lost: Micros, random: &mut Random) -> Micros {
    let takeover = match random.chance(0.5) {
        true => LEASE_DURATION - RENEW_DEADLINE + random.between(0, RETRY_PERIOD),
        false => random.seconds(2.0, 5.0),
    };
    let mut client = HttpClient::new(TIME_OUT);
    let mut now = lost + takeover;
    loop {
        let acquired = client.call(path, now, true);
        if acquired.is_ok() {
            return acquired.at;
        }
        now = acquired.at.max(now + RETRY_PERIOD);
        client.close_connections();
    }
}

/// When the watches of kube-controller-manager bring nothing.
pub(crate) fn watch_gaps(server: &ServerTimeline) -> Vec<TimeSpan> {
    let mut random = Random::stream(server.seed, 0x3A7C);
    let mut gaps = Vec::new();
    for segment in &server.segments {
        let length = segment.to - segment.from;
        let share = random.unit();
        let to = match segment.behaviour {
            // The connection stays, what was queued comes at once.
            Behaviour::Hangs | Behaviour::EtcdHangs => segment.to + 10 * MILLISECOND,
            Behaviour::Refuses | Behaviour::BlackHole { .. } => {
                segment.to + (length.min(LONGEST_WATCH_PAUSE) as f64 * share) as Micros
            }
            _ => continue,
        };
        gaps.push(TimeSpan::new(segment.from, to));
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{self, Segment};

    fn server(seed: u64, from: i64, millis: i64, behaviour: Behaviour) -> ServerTimeline {
        ServerTimeline {
            seed,
            segments: vec![Segment {
                from: from * SECOND,
                to: from * SECOND + millis * MILLISECOND,
                behaviour,
            }],
            ..timeline::server(&[])
        }
    }

    fn count(length: i64, behaviour: Behaviour) -> Vec<usize> {
        let lost = |seed: u64| {
            let server = server(seed, 50 + (seed % 7) as i64, length, behaviour);
            let all = terms(&server, seed as i64 * 100 * MILLISECOND, 200 * SECOND, FOREVER);
            all.len()
        };
        let mut counts: Vec<_> = (0..50).map(lost).collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    #[test]
    fn a_server_that_is_away_for_more_than_ten_seconds_ends_the_process() {
        for behaviour in [
            Behaviour::Refuses,
            Behaviour::Hangs,
            Behaviour::BlackHole { forgets: 0.0 },
        ] {
            assert_eq!(count(7_000, behaviour), [1], "{behaviour:?}");
            assert_eq!(count(14_000, behaviour), [2], "{behaviour:?}");
        }
    }

    /// Between 15 s after the last renewal and a few more, or a few seconds after the end of the process, and never
    /// while the server is away.
    #[test]
    fn a_successor_starts_when_the_server_is_back() {
        for seed in 0..50 {
            let server = server(seed, 50, 20_000, Behaviour::Refuses);
            let all = terms(&server, 0, 200 * SECOND, FOREVER);
            let [first, second] = all[..] else {
                panic!("{all:?}")
            };
            assert!((58 * SECOND..=62 * SECOND).contains(&first.to), "{first:?}");
            assert!((70 * SECOND..74 * SECOND).contains(&second.from), "{second:?}");
            assert_eq!(second.to, FOREVER);
        }
    }

    #[test]
    fn leadership_that_is_kept_is_not_lost() {
        let server = server(1, 50, 60_000, Behaviour::Refuses);
        assert_eq!(terms(&server, 0, 200 * SECOND, 45 * SECOND).len(), 1);
    }

    #[test]
    fn a_watch_is_back_some_time_after_the_server() {
        let gaps = watch_gaps(&server(1, 50, 4_000, Behaviour::Refuses));
        let [gap] = gaps[..] else { panic!("{gaps:?}") };
        assert_eq!(gap.from, 50 * SECOND);
        assert!((54 * SECOND..=58 * SECOND).contains(&gap.to));
    }
}
