use super::*;
use serde_json::{Value, json};

/// A shoot that is probed; each row changes one thing.
fn healthy() -> Value {
    json!({
        "metadata": {"name": "shoot--core--crazy"},
        "spec": {"shoot": {
            "metadata": {"name": "crazy"},
            "spec": {
                "hibernation": {"enabled": false},
                "kubernetes": {"kubeControllerManager": {"nodeMonitorGracePeriod": "2m"}},
                "provider": {"workers": [{"name": "a"}]},
            },
            "status": {"hibernated": false, "lastOperation": {"type": "Reconcile", "state": "Succeeded"}},
        }},
    })
}

fn with(pointer: &str, value: Value) -> Cluster {
    let mut object = healthy();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    object
        .pointer_mut(parent)
        .unwrap()
        .as_object_mut()
        .unwrap()
        .insert(field.to_owned(), value);
    serde_json::from_value(object).unwrap()
}

#[test]
fn stop_rules_end_and_prevent_a_probe() {
    use SkipReason::{Deleting, Hibernating, Migrating, NoWorkers, SelfHosted};
    let malformed = |reason: &str| SkipReason::Malformed(reason.to_owned());
    let zero = "spec.shoot.spec.kubernetes.kubeControllerManager.nodeMonitorGracePeriod is zero";
    let (deleted, grace) = (
        "metadata/deletionTimestamp",
        "spec/kubernetes/kubeControllerManager",
    );
    for (pointer, value, reason) in [
        (deleted, json!("2026-11-21T10:00:00Z"), Deleting),
        (deleted, json!({"not": "a time"}), Deleting),
        ("spec/hibernation/enabled", json!(true), Hibernating),
        ("status/lastOperation/type", json!("Migrate"), Migrating),
        ("spec/provider/workers", json!([]), NoWorkers),
        ("spec/provider/workers", json!(null), NoWorkers),
        ("spec/provider", json!({}), NoWorkers),
        (
            "spec/provider/workers",
            json!([{"name": "a"}, {"name": "cp", "controlPlane": {}}]),
            SelfHosted,
        ),
        (grace, json!({"nodeMonitorGracePeriod": "0s"}), malformed(zero)),
    ] {
        let cluster = with(&format!("/spec/shoot/{pointer}"), value.clone());
        assert_eq!(may_continue(&cluster), Err(reason.clone()), "{pointer} = {value}");
        assert_eq!(may_start(&cluster), Err(reason), "{pointer} = {value}");
    }
    let absent = with("/spec/shoot", json!(null));
    assert_eq!(may_start(&absent), Err(malformed("spec.shoot is absent")));
    assert_eq!(may_continue(&absent), Err(malformed("spec.shoot is absent")));
}

#[test]
fn start_rules_prevent_a_probe_but_do_not_end_one() {
    let operation = |kind, state| json!({"lastOperation": {"type": kind, "state": state}});
    let states = [
        "Processing",
        "Succeeded",
        "Error",
        "Failed",
        "Pending",
        "Aborted",
        "",
    ];
    let mut rows = vec![
        (json!(null), false),
        (json!({}), false),
        (json!({"lastOperation": null}), false),
        (json!({"lastOperation": {}}), false),
    ];
    for state in states {
        rows.push((operation("Reconcile", state), true));
        for kind in ["Create", "Restore"] {
            rows.push((operation(kind, state), state == "Succeeded"));
        }
        for kind in ["Delete", "Rewind"] {
            rows.push((operation(kind, state), false));
        }
    }
    for (status, may) in rows {
        let cluster = with("/spec/shoot/status", status.clone());
        let runs_on = may_continue(&cluster).unwrap();
        let expected = if may {
            Ok(runs_on)
        } else {
            Err(SkipReason::NotReconciled)
        };
        assert_eq!(may_start(&cluster), expected, "{status}");
    }
    let waking_up = with("/spec/shoot/status/hibernated", json!(true));
    assert_eq!(may_start(&waking_up), Err(SkipReason::WakingUp));
    assert!(may_continue(&waking_up).is_ok());
    let scheduled = json!({"enabled": null, "schedules": [{"start": "0 20 * * *"}]});
    for hibernation in [json!(null), json!({}), scheduled] {
        assert!(may_start(&with("/spec/shoot/spec/hibernation", hibernation)).is_ok());
    }
}

#[test]
fn a_deletion_counts_before_all_else() {
    let object =
        json!({"metadata": {"name": "x", "deletionTimestamp": "2026-11-21T10:00:00Z"}, "spec": {"shoot": 1}});
    let cluster: Cluster = serde_json::from_value(object).unwrap();
    assert_eq!(may_continue(&cluster), Err(SkipReason::Deleting));
}

#[test]
fn settings_follow_the_shoot() {
    let workers = json!([
        {"name": "own", "machineControllerManager": {"nodeConditions": ["Z", "A", "Z"]}},
        {"name": "empty", "machineControllerManager": {"nodeConditions": []}},
        {"name": "null", "machineControllerManager": {"nodeConditions": null}},
        {"name": "other", "machineControllerManager": {"machineDrainTimeout": "10m"}},
        {"name": "plain"},
    ]);
    let settings = may_continue(&with("/spec/shoot/spec/provider/workers", workers)).unwrap();
    assert_eq!(settings.node_monitor_grace, Some(Duration::from_secs(120)));
    assert_eq!(
        settings.unhealthy_conditions,
        BTreeMap::from([("own".into(), vec!["A".into(), "Z".into()])])
    );
    assert!(settings.is_unhealthy_condition(Some("own"), "Z"));
    assert!(
        !settings.is_unhealthy_condition(Some("own"), "DiskPressure"),
        "its own list replaces the default one"
    );
    let named = ["empty", "null", "other", "plain", "gone"].map(Some);
    for pool in named.into_iter().chain([None]) {
        assert!(settings.is_unhealthy_condition(pool, "DiskPressure"), "{pool:?}");
        assert!(!settings.is_unhealthy_condition(pool, "Z"), "{pool:?}");
    }
    let default = may_continue(&with("/spec/shoot/spec/kubernetes", json!({}))).unwrap();
    assert_eq!(default.node_monitor_grace, None);
}

/// gardenlet writes the Cluster at the start of an operation, and kube-controller-manager gets its grace period later.
#[test]
fn a_longer_grace_period_counts_when_it_is_rolled_out() {
    let with_grace = |seconds: Option<u64>| ShootSettings {
        node_monitor_grace: seconds.map(Duration::from_secs),
        ..ShootSettings::default()
    };
    for (before, now, is_rolled_out, expected) in [
        (Some(40), Some(120), false, Some(40)),
        (Some(40), Some(120), true, Some(120)),
        (Some(120), Some(40), false, Some(40)),
        // Without one of its own, the shoot has the default.
        (None, Some(120), false, None),
        (None, Some(30), false, Some(30)),
        (Some(120), None, false, None),
        (Some(30), None, false, Some(30)),
        (Some(30), None, true, None),
    ] {
        let default = Duration::from_secs(40);
        let followed = with_grace(now).following(&with_grace(before), is_rolled_out, default);
        assert_eq!(
            followed,
            with_grace(expected),
            "{before:?} {now:?} {is_rolled_out}"
        );
    }
    let is_rolled_out = |pointer: &str, value: Value| with(pointer, value).shoot.unwrap().is_rolled_out;
    assert!(is_rolled_out("/spec/shoot/spec/region", json!("eu")));
    let state = "/spec/shoot/status/lastOperation/state";
    assert!(!is_rolled_out(state, json!("Processing")));
    // The Shoot is ignored, or waits for its maintenance time window: the operation that succeeded was an earlier one.
    assert!(!is_rolled_out("/spec/shoot/metadata/generation", json!(2)));
}
