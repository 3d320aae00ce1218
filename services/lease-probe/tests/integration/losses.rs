//! Losses and recoveries, as consumers receive them and as /metrics shows them.

use jiff::SignedDuration;
use watchdog_proto::probe::v1::Outcome;
use watchdog_proto::stream::v1::Scope;
use watchdog_test_support::simulation::Cut;

use crate::fixture::{Fixture, fast};
use crate::replica::{IDENTITY, Replica, evidence, micros, series};

#[tokio::test]
async fn a_loss_and_its_end_are_reported_with_their_evidence() {
    let fixture = Fixture::new(fast(), 5, &["alpha", "beta"]).await;
    let alpha = fixture.shoot("alpha");
    let ahead = SignedDuration::from_secs(60);
    alpha.set_clock_skew(&alpha.nodes()[0].name, ahead).unwrap();
    let name = alpha.namespace();
    let replica = Replica::start(&fixture).await;
    let mut stream = replica.watch(Scope::Replica, &[name]).await;
    let snapshot = stream.snapshot().await;
    assert!(snapshot.keys().all(|shoot| shoot == name), "{snapshot:?}");
    let healthy = replica.until_outcome(&alpha, Outcome::Healthy).await;
    assert_eq!((evidence(&healthy).leases, evidence(&healthy).candidates), (5, 5));
    assert!(
        healthy.message.contains("5 eligible leases"),
        "{}",
        healthy.message
    );

    let corrected = "ahead; this was corrected";
    let skewed = replica.until_said(&alpha, Outcome::Healthy, corrected).await;
    let skew = evidence(&skewed).largest_skew;
    assert!(skew.is_some_and(|skew| skew.seconds > 50), "{skew:?}");
    let skew = series(&alpha, "watchdog_shoot_clock_skew_seconds");
    let is_known = |skew: Option<f64>| skew.is_some_and(|skew| skew > 50.0);
    replica.until_metric(&skew, is_known).await;

    // A correction hides no loss.
    alpha.cut(Cut::All);
    let lost = stream.until_outcome(name, Outcome::LeasesExpired).await;
    let found = evidence(&lost);
    assert_eq!((found.nodes, found.leases, found.candidates), (Some(5), 5, 5));
    assert!(
        found.expired >= 3 && found.expired_fraction() >= found.threshold,
        "{found:?}"
    );
    assert!((found.threshold - 0.6).abs() < 1e-9, "{found:?}");
    assert_eq!(found.expiry_age.map(|age| (age.seconds, age.nanos)), Some((3, 0)));
    let zones: Vec<_> = found
        .zones
        .iter()
        .map(|zone| (&*zone.zone, zone.candidates))
        .collect();
    assert_eq!(zones, [("zone-1", 2), ("zone-2", 2), ("zone-3", 1)]);
    assert!(
        lost.message.contains("have not been renewed for 3s"),
        "{}",
        lost.message
    );
    assert_eq!(lost.observer, IDENTITY);
    assert!(micros(lost.expire_time.as_ref()) > micros(lost.observe_time.as_ref()));
    assert!(micros(lost.outcome_change_time.as_ref()) <= micros(lost.observe_time.as_ref()));
    assert!(lost.age.is_some() && lost.valid_for.is_some());

    // A list shows the same as the stream.
    replica.until_outcome(&alpha, Outcome::LeasesExpired).await;
    let fraction = series(&alpha, "watchdog_shoot_expired_lease_fraction");
    let dead_zones = series(&alpha, "watchdog_shoot_zones_expired");
    replica.until_metric(&fraction, |share| share == Some(1.0)).await;
    replica
        .until_metric(&dead_zones, |zones| zones == Some(3.0))
        .await;
    let detected = "watchdog_detection_lag_seconds_count";
    replica.until_counted(detected, 1.0).await;
    let lost_shoots = "watchdog_shoots{outcome=\"leases_expired\"}";
    replica.until_counted(lost_shoots, 1.0).await;

    alpha.heal();
    let again = stream.until_outcome(name, Outcome::Healthy).await;
    assert!(micros(again.outcome_change_time.as_ref()) > micros(lost.outcome_change_time.as_ref()));
    replica.until_metric(&fraction, |share| share == Some(0.0)).await;
    replica.until_metric(&dead_zones, |zones| zones.is_none()).await;
    replica
        .until_metric("watchdog_active_probes", |probes| probes == Some(2.0))
        .await;
    let age = series(&alpha, "watchdog_shoot_verdict_age_seconds");
    replica
        .until_metric(&age, |age| age.is_some_and(|age| age >= 0.0))
        .await;
}
