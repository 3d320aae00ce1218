//! The shoots that are probed, and the reasons for skipping the others.

use serde_json::{Value, json};
use watchdog_api::names::FAILURE_FRACTION_ANNOTATION;
use watchdog_proto::probe::v1::{Evidence, Outcome, SkipReason, Verdict};
use watchdog_test_support::simulation::SimulatedShoot;

use crate::fixture::{Fixture, real};
use crate::replica::{Replica, evidence, series};

/// Sets a field of the Shoot inside the Cluster.
fn set(shoot: &SimulatedShoot, pointer: &str, value: Value) {
    let pointer = format!("/spec/shoot{pointer}");
    let set = |cluster: &mut Value| *cluster.pointer_mut(&pointer).unwrap() = value;
    shoot.update_cluster(set).unwrap();
}

#[tokio::test]
async fn shoots_that_are_not_to_be_probed_say_why_and_are_left_alone() {
    let rows = [
        ("asleep", SkipReason::Hibernating, "hibernating"),
        ("waking", SkipReason::WakingUp, "waking_up"),
        ("leaving", SkipReason::Migrating, "migrating"),
        ("dying", SkipReason::Deleting, "deleting"),
        ("empty", SkipReason::NoWorkers, "no_workers"),
        ("unborn", SkipReason::NotReconciled, "not_reconciled"),
        ("broken", SkipReason::Malformed, "malformed"),
    ];
    let names: Vec<_> = rows.iter().map(|row| row.0).chain(["well"]).collect();
    let fixture = Fixture::new(real(), 1, &names).await;
    let [asleep, waking, leaving, dying, empty, unborn, broken] = rows.map(|row| fixture.shoot(row.0));
    asleep.set_hibernated(true).unwrap();
    set(&waking, "/status/hibernated", json!(true));
    leaving.set_last_operation("Migrate", "Processing").unwrap();
    dying.mark_deleting().unwrap();
    set(&empty, "/spec/provider/workers", json!([]));
    unborn.set_last_operation("Create", "Processing").unwrap();
    set(&broken, "", json!({"kind": "Shoot", "spec": "no specification"}));

    let replica = Replica::start(&fixture).await;
    let well = fixture.shoot("well");
    replica.until_outcome(&well, Outcome::Healthy).await;
    for (name, reason, label) in rows {
        let shoot = fixture.shoot(name);
        let verdict = replica.until_outcome(&shoot, Outcome::Skipped).await;
        assert_eq!(verdict.skip_reason(), reason, "{name}: {}", verdict.message);
        assert!(
            !verdict.message.is_empty() && verdict.evidence.is_none(),
            "{name}"
        );
        let skipped = format!("watchdog_shoots_skipped{{reason=\"{label}\"}}");
        assert_eq!(replica.metric(&skipped).await, Some(1.0), "{name}");
        let age = series(&shoot, "watchdog_shoot_verdict_age_seconds");
        assert_eq!(replica.metric(&age).await, None, "{name} is not probed");
    }
    let malformed = series(&broken, "watchdog_shoot_malformed");
    assert_eq!(replica.metric(&malformed).await, Some(1.0));
    assert_eq!(replica.metric("watchdog_active_probes").await, Some(1.0));
    // All shoots are skipped from the start: none was probed.
    for (name, ..) in rows {
        assert_eq!(fixture.shoot(name).api().counters().requests, 0, "{name}");
    }

    // Each is probed as soon as its reason is gone, also where the watches are open and silent meanwhile.
    fixture.seed().silence_watches();
    asleep.set_hibernated(false).unwrap();
    set(&waking, "/status/hibernated", json!(false));
    unborn.set_last_operation("Create", "Succeeded").unwrap();
    for shoot in [asleep, waking, unborn] {
        let verdict = replica.until_outcome(&shoot, Outcome::Healthy).await;
        assert_eq!(verdict.skip_reason(), SkipReason::Unspecified);
    }
}

#[tokio::test]
async fn a_probe_that_runs_takes_up_changes_and_stops_by_the_stop_rules_only() {
    let fixture = Fixture::new(real(), 2, &["alpha"]).await;
    let alpha = fixture.shoot("alpha");
    let replica = Replica::start(&fixture).await;
    let expiry_age = |seconds| {
        move |verdict: &Verdict| {
            let age = verdict.evidence.as_ref().and_then(|evidence| evidence.expiry_age);
            verdict.outcome() == Outcome::Healthy && age.is_some_and(|age| age.seconds == seconds)
        }
    };
    replica
        .until(&alpha, "judged by its grace period", expiry_age(33))
        .await;

    // In one write: a failed operation, which would not let it start, and another grace period. Where the second has
    // an effect, the first was seen.
    let write = |state: &str, grace: &str, fraction: &str| {
        alpha
            .update_cluster(|cluster| {
                let shoot = &mut cluster["spec"]["shoot"];
                shoot["status"]["lastOperation"] = json!({"type": "Create", "state": state});
                shoot["spec"]["kubernetes"]["kubeControllerManager"]["nodeMonitorGracePeriod"] = grace.into();
                shoot["metadata"]["annotations"][FAILURE_FRACTION_ANNOTATION] = fraction.into();
            })
            .unwrap();
    };
    write("Failed", "32s", "0.6");
    replica.until(&alpha, "judged by a shorter", expiry_age(29)).await;
    // A longer one waits for the end of the operation that gives it to kube-controller-manager.
    write("Failed", "80s", "0.7");
    replica
        .until(&alpha, "judged by the shorter and another share", |verdict| {
            let has_share = |evidence: &Evidence| (evidence.threshold - 0.7).abs() < 1e-9;
            expiry_age(29)(verdict) && verdict.evidence.as_ref().is_some_and(has_share)
        })
        .await;
    write("Succeeded", "80s", "0.7");
    replica
        .until(&alpha, "judged by the longer", expiry_age(60))
        .await;
    write("Failed", "80s", "0.7");
    write("Failed", "80s", "70%");
    let named = format!("{FAILURE_FRACTION_ANNOTATION} of the Shoot or its Cluster is \"70%\"");
    let verdict = replica.until_said(&alpha, Outcome::Healthy, &named).await;
    assert!((evidence(&verdict).threshold - 0.6).abs() < 1e-9, "{verdict:?}");
    // Without one of its own the configuration's counts.
    let own = "/spec/kubernetes/kubeControllerManager";
    set(&alpha, own, json!({}));
    fixture.configure(&[("kcmNodeMonitorGraceDuration", "120s")]);
    let verdict = replica
        .until(&alpha, "judged by the default", expiry_age(90))
        .await;
    assert_eq!(evidence(&verdict).leases, 2);

    alpha.set_hibernated(true).unwrap();
    let verdict = replica.until_outcome(&alpha, Outcome::Skipped).await;
    assert_eq!(verdict.skip_reason(), SkipReason::Hibernating);
    let age = series(&alpha, "watchdog_shoot_verdict_age_seconds");
    replica.until_metric(&age, |age| age.is_none()).await;
    let stopped = "watchdog_active_probes";
    replica.until_metric(stopped, |probes| probes == Some(0.0)).await;
    // Now the start rules count again.
    alpha.set_hibernated(false).unwrap();
    replica
        .until(&alpha, "skipped for its failed operation", |verdict| {
            verdict.skip_reason() == SkipReason::NotReconciled
        })
        .await;
}
