use super::super::fixtures::{lease_of, list_at};
use super::*;

const EXPIRY: Duration = Duration::from_secs(30);
const S: i64 = 1_000_000;

fn at(seconds: i64) -> UnixTime {
    UnixTime(1_700_000_000 * S + seconds * S)
}

fn lease(renewed: i64) -> LeaseItem {
    lease_of("n", Some(at(renewed)))
}

fn observe(renewals: &mut Renewals, seconds: i64, leases: &[LeaseItem]) {
    renewals.observe(&list_at(at(seconds), leases), EXPIRY / 2);
}

/// The knowledge after lists at these seconds, of a lease that was renewed then.
fn observed(lists: &[(i64, i64)]) -> Renewals {
    let mut renewals = Renewals::default();
    for (seconds, renewed) in lists {
        observe(&mut renewals, *seconds, &[lease(*renewed)]);
    }
    renewals
}

fn age_of(renewals: &Renewals, name: &str) -> Option<LeaseAge> {
    renewals.age(name, EXPIRY, false)
}

/// From when on the lease is expired.
fn expired_from(renewals: &Renewals) -> UnixTime {
    age_of(renewals, "n").unwrap().expired_from
}

#[test]
fn the_formula_is_exact_without_skew() {
    let renewals = observed(&[(0, -5), (10, 5), (20, 5)]);
    assert_eq!(expired_from(&renewals), at(35));
}

#[test]
fn a_lease_that_looks_expired_when_first_observed_is_watched_first() {
    let mut renewals = observed(&[(0, -100)]);
    let age = age_of(&renewals, "n").unwrap();
    assert_eq!(age.old_from, at(-70));
    assert_eq!(age.expired_from, at(32).after(Duration::from_millis(500)));
    // It was alive all the time: only its clock is 100 s behind.
    observe(&mut renewals, 10, &[lease(-91)]);
    assert_eq!(age_of(&renewals, "n").unwrap().old_from, at(30));
}

#[test]
fn after_an_outage_of_the_api_server_kubelets_get_the_time_to_renew() {
    let mut renewals = observed(&[(0, -5), (10, 5)]);
    // Nobody could renew for a minute; the first list afterwards comes before the first renewal.
    renewals.answered_mut().note_outage(at(10), false);
    observe(&mut renewals, 70, &[lease(5)]);
    let known = at(87).after(Duration::from_millis(500));
    assert_eq!(expired_from(&renewals), known);
    let urgent_from = |renewals: &Renewals| age_of(renewals, "n").unwrap().urgent_from;
    assert_eq!(urgent_from(&renewals), UnixTime::default());
    observe(&mut renewals, 75, &[lease(72)]);
    assert_eq!(age_of(&renewals, "n").unwrap().old_from, at(102));
    assert_eq!(urgent_from(&renewals), at(87));
}

/// The last list before an outage mostly comes before the last renewal before it.
#[test]
fn a_renewal_from_before_an_outage_is_no_evidence_after_it() {
    let mut renewals = observed(&[(0, -5), (4, -5)]);
    renewals.answered_mut().note_outage(at(6), false);
    observe(&mut renewals, 50, &[lease(5)]);
    assert_eq!(expired_from(&renewals), at(71).after(Duration::from_millis(500)));
}

#[test]
fn what_is_proven_stays_proven_over_a_failed_request() {
    let mut renewals = observed(&[(-8, -9), (0, 0), (10, 0), (20, 0), (24, 0)]);
    renewals.answered_mut().note_outage(at(24), false);
    observe(&mut renewals, 29, &[lease(0)]);
    assert_eq!(expired_from(&renewals), at(30), "24 s were proven");
}

/// A connection that falls silent before the proof makes it longer.
#[test]
fn what_is_proven_stays_proven_over_a_connection_that_falls_silent() {
    for (silent_from, expired) in [(19, 32), (26, 30)] {
        let mut renewals = observed(&[(-8, -9)]);
        for second in 0..29 {
            observe(&mut renewals, second, &[lease(0)]);
            if second == silent_from {
                renewals.answered_mut().note_outage(at(second), true);
            }
        }
        assert_eq!(expired_from(&renewals).since(at(0)).as_secs(), expired);
    }
}

#[test]
fn a_stale_list_renews_nothing() {
    let mut renewals = observed(&[(0, -1), (10, 9)]);
    for second in 11..40 {
        let shown = if second % 2 == 0 { 9 } else { -1 };
        observe(&mut renewals, second, &[lease(shown)]);
    }
    let known = age_of(&renewals, "n").unwrap();
    assert!(known.renewed <= at(10), "{known:?}");
}

#[test]
fn a_renewal_from_the_future_counts_from_when_it_was_seen() {
    let renewals = observed(&[(0, 60)]);
    assert_eq!(age_of(&renewals, "n").unwrap().old_from, at(30));
}

/// The prober knows its clock to be behind, and not by how much. It must not call a node connected for longer than it
/// would with the best clock, or it contradicts a prober that knows better.
#[test]
fn a_renewal_by_a_clock_that_is_ahead_shows_a_connected_node_from_its_earliest_arrival() {
    let renewals = observed(&[(0, 100), (10, 112)]);
    let age = age_of(&renewals, "n").unwrap();
    assert_eq!((age.old_from, age.doubtful_from), (at(40), at(30)));
}

#[test]
fn a_lease_that_is_first_observed_needs_the_longest_silence() {
    for renewed in [-50, -25, 0, 50] {
        let mut renewals = Renewals::default();
        observe(&mut renewals, 0, &[lease(renewed)]);
        let proven = age_of(&renewals, "n").unwrap().silence_proven_at;
        assert_eq!(proven, at(32).shifted(S / 2));
    }
}

/// It was written since the list before, so nothing about it is unknown but the clock of the node.
#[test]
fn a_node_that_joins_is_judged_like_any_other() {
    let age_of_first = |first: LeaseItem| {
        let mut renewals = Renewals::default();
        observe(&mut renewals, 0, &[]);
        observe(&mut renewals, 9, &[first]);
        age_of(&renewals, "n").unwrap()
    };
    let joined = age_of_first(lease(1));
    assert_eq!((joined.renewed, joined.expired_from), (at(1), at(31)));
    let behind = LeaseItem {
        revision: lease(1).revision,
        ..lease(-90)
    };
    assert_eq!(age_of_first(behind).renewed, at(0));
    let shown_late = age_of_first(lease(-1));
    assert_eq!(
        shown_late.silence_proven_at,
        at(9).after(Duration::from_millis(32_500))
    );
}

#[test]
fn a_lease_that_vanishes_is_remembered_until_it_is_gone_for_good() {
    let mut renewals = observed(&[(-8, -9), (1, 0)]);
    for second in [10, 20, 24, 30] {
        observe(&mut renewals, second, &[]);
    }
    assert_eq!(renewals.missing().count(), 1);
    assert_eq!(expired_from(&renewals), at(30));
    renewals.forget_missing(|_| false);
    assert_eq!(renewals.missing().count(), 1);
    renewals.forget_missing(|_| true);
    assert_eq!(age_of(&renewals, "n"), None);
}

/// Two renewals waited for etcd and were stored with a third.
#[test]
fn a_renewal_arrived_after_those_that_were_written_before() {
    let renewed = |order: [i64; 3]| {
        let mut renewals = Renewals::default();
        let leases = |of: [(i64, i64); 3]| {
            let lease = |(i, (renewed, revision)): (usize, (i64, i64))| LeaseItem {
                name: format!("n{i}").into(),
                revision: at(revision).0.unsigned_abs(),
                ..lease(renewed)
            };
            of.into_iter().enumerate().map(lease).collect::<Vec<_>>()
        };
        observe(&mut renewals, 0, &leases([(-9, -9), (-8, -8), (-7, -7)]));
        let [a, b, c] = order;
        observe(&mut renewals, 15, &leases([(1, a), (2, b), (9, c)]));
        ["n0", "n1", "n2"].map(|name| (age_of(&renewals, name).unwrap().renewed.0 - at(0).0) / S)
    };
    assert_eq!(renewed([10, 11, 12]), [1, 2, 9]);
    assert_eq!(renewed([11, 12, 10]), [9, 9, 9]);
}

/// Renewals that waited for etcd are stored when a list is answered that waited for it too.
#[test]
fn a_list_that_was_held_up_dates_renewals_by_its_answer() {
    let arrived = |shown| {
        let mut renewals = observed(&[(0, -5)]);
        let held_up = LeaseList {
            received: at(9),
            ..list_at(at(7), &[lease(shown)])
        };
        renewals.observe(&held_up, EXPIRY / 2);
        observe(&mut renewals, 10, &[lease(1)]);
        age_of(&renewals, "n").unwrap().renewed
    };
    assert_eq!(arrived(1), at(9), "the first to show it");
    assert_eq!(arrived(-5), at(9), "the last not to show it");
}

/// A stale list, or data that were restored.
#[test]
fn nothing_is_concluded_from_data_that_went_back_but_that_silence_begins_anew() {
    let mut renewals = observed(&[(-8, -9), (0, 0), (10, 0), (20, 0), (24, 0), (30, 0)]);
    assert_eq!(expired_from(&renewals), at(30));
    observe(&mut renewals, 40, &[lease(-9)]);
    let age = age_of(&renewals, "n").unwrap();
    assert_eq!(
        (age.renewed, age.silence_proven_at),
        (at(0), at(62).shifted(S / 2))
    );
    // A lease that was never seen renewed still needs the longest silence.
    let renewals = observed(&[(0, -5), (10, -9)]);
    let proven = age_of(&renewals, "n").unwrap().silence_proven_at;
    assert_eq!(proven, at(42).shifted(S / 2));
}

/// A server that was behind shows renewals long after they were made. They came late for a loss, and prove no health.
#[test]
fn a_renewal_that_is_seen_late_is_dated_twice() {
    let renewals = observed(&[(0, -1), (40, -1), (41, 9)]);
    let age = age_of(&renewals, "n").unwrap();
    assert_eq!((age.old_from, age.doubtful_from), (at(70), at(39)));
}

#[test]
fn the_expiry_age_is_three_quarters_of_the_grace_period_and_longer_than_a_connected_kubelet_is_silent() {
    let age = |grace, renew_interval| {
        let [grace, renew_interval] = [grace, renew_interval].map(Duration::from_secs);
        expiry_age(grace, renew_interval).as_secs_f64()
    };
    let ages = [16, 30, 36, 40, 50, 60].map(|grace| age(grace, 10));
    assert_eq!(ages, [13.0, 27.0, 33.0, 33.0, 37.5, 45.0]);
    let ages = [5, 10, 15, 20].map(|renew_interval| age(40, renew_interval));
    assert_eq!(ages, [30.0, 33.0, 38.0, 43.0]);
}

#[test]
fn the_largest_skew_is_the_furthest_from_zero() {
    for (far, near) in [(-110, 60), (110, -60)] {
        let mut renewals = Renewals::default();
        for second in (0..50).step_by(10) {
            let node = |(name, skew): (&str, i64)| LeaseItem {
                name: name.into(),
                ..lease(second + skew)
            };
            observe(&mut renewals, second, &[("far", far), ("near", near)].map(node));
        }
        let known = renewals.largest_skew() / S;
        // A clock that is behind is called so by a renew interval less.
        assert!(known == far || known == far + 10, "{known} instead of {far}");
    }
}
