use proptest::prelude::*;

use super::*;

const EXPIRY: Duration = Duration::from_secs(30);
const S: i64 = 1_000_000;

fn at(seconds: i64) -> Moment {
    Moment(1_700_000_000 * S + seconds * S)
}

fn lease(renewed: i64) -> ListedLease {
    ListedLease {
        name: "n".into(),
        renew_time: Some(at(renewed)),
        duration_seconds: Some(40),
    }
}

fn listing(seconds: i64) -> Listing {
    Listing {
        sent: at(seconds),
        received: at(seconds),
    }
}

#[test]
fn the_formula_is_exact_without_skew() {
    let mut renewals = Renewals::default();
    renewals.observe(listing(0), &[lease(-5)]);
    renewals.observe(listing(10), &[lease(5)]);
    assert_eq!(
        renewals.freshness("n", at(34), EXPIRY),
        Some(Freshness::Fresh(at(35)))
    );
    assert_eq!(
        renewals.freshness("n", at(35), EXPIRY),
        Some(Freshness::Expired(at(35))),
        "the boundary belongs to expired"
    );
}

#[test]
fn a_lease_that_looks_expired_at_first_sight_is_watched_for_a_renew_interval_first() {
    let mut renewals = Renewals::default();
    renewals.observe(listing(0), &[lease(-100)]);
    assert_eq!(
        renewals.freshness("n", at(0), EXPIRY),
        Some(Freshness::Unconfirmed(at(12).after(Duration::from_millis(500))))
    );
    assert_eq!(
        renewals.freshness("n", at(13), EXPIRY),
        Some(Freshness::Expired(at(-70)))
    );
    // It was alive all the time: only its clock is 100 s behind.
    renewals.observe(listing(10), &[lease(-91)]);
    assert_eq!(
        renewals.freshness("n", at(13), EXPIRY),
        Some(Freshness::Fresh(at(30)))
    );
}

#[test]
fn after_an_outage_of_the_api_server_kubelets_get_the_time_to_renew() {
    let mut renewals = Renewals::default();
    renewals.observe(listing(0), &[lease(-5)]);
    renewals.observe(listing(10), &[lease(5)]);
    // Nobody could renew for a minute; the first list afterwards comes before the first renewal.
    renewals.interrupt();
    renewals.observe(listing(70), &[lease(5)]);
    let known = at(82).after(Duration::from_millis(500));
    assert_eq!(
        renewals.freshness("n", at(70), EXPIRY),
        Some(Freshness::Unconfirmed(known))
    );
    assert_eq!(
        renewals.freshness("n", known, EXPIRY),
        Some(Freshness::Expired(at(35)))
    );
    renewals.observe(listing(75), &[lease(72)]);
    assert_eq!(
        renewals.freshness("n", at(75), EXPIRY),
        Some(Freshness::Fresh(at(102)))
    );
    // A failure too short for a missed renewal excuses nobody.
    renewals.interrupt();
    renewals.observe(listing(83), &[lease(72)]);
    assert_eq!(
        renewals.freshness("n", at(103), EXPIRY),
        Some(Freshness::Expired(at(102)))
    );
}

#[test]
fn a_renewal_from_the_future_counts_from_when_it_was_seen() {
    let mut renewals = Renewals::default();
    renewals.observe(listing(0), &[lease(60)]);
    assert_eq!(
        renewals.freshness("n", at(0), EXPIRY),
        Some(Freshness::Fresh(at(30)))
    );
}

#[test]
fn a_lease_without_renew_time_is_not_judged_and_a_vanished_one_is_forgotten() {
    let mut renewals = Renewals::default();
    let without = ListedLease {
        renew_time: None,
        ..lease(0)
    };
    renewals.observe(listing(0), &[without]);
    assert_eq!(renewals.freshness("n", at(0), EXPIRY), None);
    renewals.observe(listing(1), &[lease(0)]);
    renewals.observe(listing(2), &[]);
    assert_eq!(renewals.freshness("n", at(2), EXPIRY), None);
}

#[test]
fn the_expiry_age_is_three_quarters_of_the_grace_period() {
    assert_eq!(expiry_age(Duration::from_secs(40)), Duration::from_secs(30));
}

/// A kubelet renews every 10 s until it dies; the prober lists at the given gaps. Returns, for each list, whether the
/// lease was judged expired, and when the kubelet last renewed in truth.
fn simulate(skew: i64, phase: i64, gaps: &[i64], dies_at: i64) -> Vec<(i64, bool, i64)> {
    let mut renewals = Renewals::default();
    let mut now = 0;
    let mut judged = Vec::new();
    for gap in gaps {
        now += gap;
        let alive = now.min(dies_at);
        let last = (alive - phase).div_euclid(10) * 10 + phase;
        renewals.observe(listing(now), &[lease(last + skew)]);
        let expired = matches!(
            renewals.freshness("n", at(now), EXPIRY),
            Some(Freshness::Expired(_))
        );
        judged.push((now, expired, last));
    }
    judged
}

proptest! {
    #[test]
    fn no_false_loss_whatever_the_clock_of_the_node(
        skew in -120_i64..=120,
        phase in 0_i64..10,
        gaps in prop::collection::vec(1_i64..=13, 1..40),
    ) {
        for (now, expired, _) in simulate(skew, phase, &gaps, i64::MAX) {
            prop_assert!(!expired, "a live node was judged expired at {now}");
        }
    }

    #[test]
    fn no_hidden_loss_whatever_the_clock_of_the_node(
        skew in -120_i64..=120,
        phase in 0_i64..10,
        gaps in prop::collection::vec(1_i64..=10, 40..60),
        lived in 60_i64..120,
    ) {
        for (now, expired, last) in simulate(skew, phase, &gaps, lived) {
            // kube-controller-manager acts 40 s after it saw the last renewal; the prober lists at least every 10 s.
            prop_assert!(expired || now - last <= 40, "a node dead for {} s is not judged expired", now - last);
        }
    }

    #[test]
    fn without_skew_the_formula_is_exact(
        phase in 0_i64..10,
        gaps in prop::collection::vec(1_i64..=10, 10..60),
        lived in 30_i64..300,
    ) {
        for (now, expired, last) in simulate(0, phase, &gaps, lived).into_iter().skip(3) {
            prop_assert_eq!(expired, now - last >= 30, "at {}", now);
        }
    }

    #[test]
    fn a_clock_that_is_set_causes_no_false_loss(
        from in -60_i64..=60, to in -60_i64..=60,
        phase in 0_i64..10,
        gaps in prop::collection::vec(1_i64..=13, 20..40),
        set_at in 30_i64..100,
    ) {
        let mut renewals = Renewals::default();
        let mut now = 0;
        for gap in gaps {
            now += gap;
            let last = (now - phase).div_euclid(10) * 10 + phase;
            let skew = if last < set_at { from } else { to };
            renewals.observe(listing(now), &[lease(last + skew)]);
            let judged = renewals.freshness("n", at(now), EXPIRY);
            prop_assert!(!matches!(judged, Some(Freshness::Expired(_))), "{judged:?} at {now}");
        }
    }
}
