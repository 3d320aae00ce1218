use super::*;
use crate::node_lifecycle_input::TimeSpan;
use crate::timeline::{Behaviour, Client, server};

const CUT: TimeSpan = TimeSpan::new(60 * SECOND, 120 * SECOND);

fn run(kubelet: &KubeletModel, segments: &[(i64, i64, Behaviour)], cuts: &[TimeSpan]) -> KubeletHistory {
    let path = NetworkPath {
        server: &server(segments),
        cuts,
        client: Client::Kubelet(0),
    };
    kubelet.run(&path, 300 * SECOND)
}

/// One of fifty kubelets, each with a phase of its own.
fn one_of_fifty(seed: u64) -> KubeletModel {
    KubeletModel::steady(seed, seed as i64 * 200 * MILLISECOND)
}

/// In seconds.
fn first_write_after(history: &KubeletHistory, at: i64) -> f64 {
    let mut writes = history.writes.iter();
    let first = writes.find(|write| write.at > at * SECOND).unwrap();
    first.at as f64 / SECOND as f64
}

fn gaps(history: &KubeletHistory) -> Vec<Micros> {
    let pairs = history.writes.windows(2);
    pairs.map(|pair| pair[1].at - pair[0].at).collect()
}

#[test]
fn renews_every_quarter_of_the_lease_duration() {
    for (duration, range) in [(40, 10_000_000..10_450_000), (20, 5_000_000..5_250_000)] {
        let kubelet = KubeletModel {
            lease_duration: duration * SECOND,
            ..KubeletModel::steady(3, 0)
        };
        let history = run(&kubelet, &[], &[]);
        let gaps = gaps(&history);
        assert!(gaps.iter().all(|gap| range.contains(gap)), "{gaps:?}");
        let mut delays = history.writes.iter().map(|write| write.at - write.renew_time);
        assert!(delays.all(|delay| delay < 20 * MILLISECOND));
    }
}

/// Refused, a turn is over at once and the pauses rule: it is back within 7 s.
#[test]
fn is_back_a_pause_after_a_server_that_refused() {
    for (length, most) in [(3, 3.3), (13, 7.1), (20, 7.1), (45, 7.1)] {
        for seed in 0..50 {
            let end = 60 + length;
            let history = run(&one_of_fifty(seed), &[(60, end, Behaviour::Refuses)], &[]);
            let back = first_write_after(&history, end) - end as f64;
            // Who did not have its turn within the outage has it afterwards.
            let met = gaps(&history).iter().any(|gap| *gap > 11 * SECOND);
            let most = if met { most } else { 10.5 };
            assert!(back < most, "{length} s, seed {seed}: {back}");
        }
    }
}

#[test]
fn pauses_double_from_200_milliseconds() {
    // Turns at 0, 10.x, ...; the one that meets the outage pauses 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 7 s.
    let outage = [(5, 24, Behaviour::Refuses)];
    let history = run(&KubeletModel::steady(1, 0), &outage, &[]);
    let turn = history.writes[0].at + 10 * SECOND;
    let sums = [0.2, 0.6, 1.4, 3.0, 6.2, 12.6, 19.6].map(|sum: f64| turn as f64 / 1e6 + sum);
    let back = first_write_after(&history, 5);
    let expected = sums.iter().find(|sum| **sum > 24.0).unwrap();
    assert!((back - expected).abs() < 0.6, "{back}, expected {expected}");
}

/// Against a server that hangs five PUTs take 50 s, and the one that waits when it thaws is answered.
#[test]
fn is_answered_when_a_server_thaws() {
    for seed in 0..50 {
        for length in [15, 28, 36, 45] {
            let end = 60 + length;
            let history = run(&one_of_fifty(seed), &[(60, end, Behaviour::Hangs)], &[]);
            let back = first_write_after(&history, end) - end as f64;
            assert!(back < 0.1, "{length} s, seed {seed}: {back}");
        }
    }
}

/// A restarted server that answers reads before it takes writes costs a whole interval.
#[test]
fn waits_a_whole_interval_when_the_writes_after_a_read_fail() {
    let outage = [(60, 80, Behaviour::Refuses), (80, 89, Behaviour::RefusesWrites)];
    let history = run(&KubeletModel::steady(4, 0), &outage, &[]);
    let back = first_write_after(&history, 80);
    assert!((90.0..98.0).contains(&back), "{back}");
}

#[test]
fn a_cut_kubelet_comes_back_by_the_network() {
    for seed in 0..50 {
        let history = run(&one_of_fifty(seed), &[], &[CUT]);
        let mut writes = history.writes.iter();
        let quiet = writes.all(|write| !CUT.contains(write.at - 20 * MILLISECOND));
        assert!(quiet, "renewed while it was cut off");
        let back = first_write_after(&history, 120) - 120.0;
        // A request that hangs (10 s) and a pause (7 s).
        assert!(back < 17.5, "seed {seed}: {back}");
    }
}

#[test]
fn a_write_that_the_server_finds_late_is_a_conflict_for_the_next() {
    let mut found = 0;
    for seed in 0..20 {
        let kubelet = KubeletModel {
            late_writes: 1.0,
            ..KubeletModel::steady(seed, 0)
        };
        let history = run(&kubelet, &[(60, 85, Behaviour::Hangs)], &[]);
        let late = |write: &&LeaseWrite| write.at - write.renew_time > 5 * SECOND;
        found += history.writes.iter().filter(late).count();
        assert!(history.writes.iter().any(|write| write.renew_time > 85 * SECOND));
        assert!(first_write_after(&history, 86) < 97.0);
    }
    assert!(found > 10, "{found}");
}

#[test]
fn the_clock_of_the_node_is_in_the_lease() {
    let kubelet = KubeletModel {
        clock: NodeClock {
            steps: vec![(-1_000 * SECOND, 30 * SECOND), (100 * SECOND, -60 * SECOND)],
        },
        ..KubeletModel::steady(1, 0)
    };
    for write in run(&kubelet, &[], &[]).writes {
        let expected = if write.at > 100 * SECOND { -60 } else { 30 };
        assert_eq!((write.renew_time - write.at).div_euclid(SECOND), expected - 1);
    }
}

#[test]
fn reports_can_be_written_every_ten_seconds_but_not_in_an_outage() {
    let outage = [(60, 100, Behaviour::Refuses)];
    let reports = run(&KubeletModel::steady(1, 0), &outage, &[]).reports;
    assert!(!reports.iter().any(|at| (60 * SECOND..100 * SECOND).contains(at)));
    assert!((23..28).contains(&reports.len()), "{reports:?}");
}

#[test]
fn is_silent_after_its_stop() {
    let kubelet = KubeletModel {
        stops: 100 * SECOND,
        ..KubeletModel::steady(1, 50 * SECOND)
    };
    let writes = run(&kubelet, &[], &[]).writes;
    let lives = 50 * SECOND..100 * SECOND;
    assert!(writes.iter().all(|write| lives.contains(&write.at)));
    assert_eq!(writes.len(), 5);
}
