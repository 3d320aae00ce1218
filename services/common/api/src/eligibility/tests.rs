use super::*;
use proptest::prelude::*;
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
    use SkipReason::{Deleting, Hibernating, Migrating, NoWorkers};
    let malformed = |reason: &str| SkipReason::Malformed(reason.to_owned());
    let zero = "spec.shoot.spec.kubernetes.kubeControllerManager.nodeMonitorGracePeriod is zero";
    let rows = [
        (
            "/metadata/deletionTimestamp",
            json!("2026-11-21T10:00:00Z"),
            Deleting,
        ),
        (
            "/spec/shoot/metadata/deletionTimestamp",
            json!("2026-11-21T10:00:00Z"),
            Deleting,
        ),
        (
            "/spec/shoot/metadata/deletionTimestamp",
            json!({"not": "a time"}),
            Deleting,
        ),
        ("/spec/shoot/spec/hibernation/enabled", json!(true), Hibernating),
        (
            "/spec/shoot/status/lastOperation/type",
            json!("Migrate"),
            Migrating,
        ),
        ("/spec/shoot/spec/provider/workers", json!([]), NoWorkers),
        ("/spec/shoot/spec/provider/workers", json!(null), NoWorkers),
        ("/spec/shoot/spec/provider", json!({}), NoWorkers),
        ("/spec/shoot", json!(null), malformed("spec.shoot is absent")),
        (
            "/spec/shoot/spec/kubernetes/kubeControllerManager/nodeMonitorGracePeriod",
            json!("0s"),
            malformed(zero),
        ),
    ];
    for (pointer, value, reason) in rows {
        let cluster = with(pointer, value.clone());
        assert_eq!(may_continue(&cluster), Err(reason.clone()), "{pointer} = {value}");
        assert_eq!(may_start(&cluster), Err(reason), "{pointer} = {value}");
    }
}

#[test]
fn start_rules_prevent_a_probe_but_do_not_end_one() {
    let operation = "/spec/shoot/status/lastOperation";
    let mut rows = vec![
        (operation, json!(null)),
        (operation, json!({})),
        ("/spec/shoot/status", json!({})),
        ("/spec/shoot/status", json!(null)),
        (operation, json!({"type": "Delete", "state": "Succeeded"})),
        (operation, json!({"type": "Delete", "state": "Processing"})),
        (operation, json!({"type": "Rewind", "state": "Succeeded"})),
    ];
    for kind in ["Create", "Restore"] {
        for state in ["Processing", "Error", "Failed", "Pending", "Aborted", ""] {
            rows.push((operation, json!({"type": kind, "state": state})));
        }
    }
    for (pointer, value) in rows {
        let cluster = with(pointer, value.clone());
        let expected = Err(SkipReason::NotReconciled);
        assert_eq!(may_start(&cluster), expected, "{pointer} = {value}");
        assert!(may_continue(&cluster).is_ok(), "{pointer} = {value}");
    }
    let waking_up = with("/spec/shoot/status/hibernated", json!(true));
    assert_eq!(may_start(&waking_up), Err(SkipReason::WakingUp));
    assert!(may_continue(&waking_up).is_ok());
}

#[test]
fn probes_reconciled_created_and_restored_shoots() {
    let mut rows = vec![("Create", "Succeeded"), ("Restore", "Succeeded")];
    rows.extend(
        [
            "Processing",
            "Succeeded",
            "Error",
            "Failed",
            "Pending",
            "Aborted",
            "",
        ]
        .map(|s| ("Reconcile", s)),
    );
    for (kind, state) in rows {
        let cluster = with(
            "/spec/shoot/status/lastOperation",
            json!({"type": kind, "state": state}),
        );
        let settings = may_start(&cluster);
        assert!(settings.is_ok(), "{kind} {state}");
        assert_eq!(settings, may_continue(&cluster));
    }
    for (pointer, value) in [
        ("/spec/shoot/spec/hibernation", json!(null)),
        ("/spec/shoot/spec/hibernation", json!({})),
        (
            "/spec/shoot/spec/hibernation",
            json!({"enabled": null, "schedules": [{"start": "0 20 * * *"}]}),
        ),
    ] {
        assert!(may_start(&with(pointer, value)).is_ok());
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
    for pool in [
        Some("empty"),
        Some("null"),
        Some("other"),
        Some("plain"),
        Some("gone"),
        None,
    ] {
        assert!(settings.is_unhealthy_condition(pool, "DiskPressure"), "{pool:?}");
        assert!(!settings.is_unhealthy_condition(pool, "Z"), "{pool:?}");
    }
    let default = may_continue(&with("/spec/shoot/spec/kubernetes", json!({}))).unwrap();
    assert_eq!(default.node_monitor_grace, None);
}

#[test]
fn only_what_matters_changes_the_settings() {
    let base = may_continue(&with("/metadata/resourceVersion", json!("1"))).unwrap();
    let same = may_continue(&with("/spec/shoot/spec/region", json!("eu"))).unwrap();
    assert_eq!(base, same);
    let grace = "/spec/shoot/spec/kubernetes/kubeControllerManager/nodeMonitorGracePeriod";
    assert_ne!(base, may_continue(&with(grace, json!("40s"))).unwrap());
}

#[test]
fn reasons_have_a_label_and_a_sentence() {
    use SkipReason::{Deleting, Hibernating, Malformed, Migrating, NoWorkers, NotReconciled, WakingUp};
    let all = [
        Deleting,
        Hibernating,
        WakingUp,
        Migrating,
        NoWorkers,
        NotReconciled,
        Malformed("x".to_owned()),
    ];
    let labels: std::collections::BTreeSet<_> = all.iter().map(SkipReason::as_str).collect();
    assert_eq!(labels.len(), all.len());
    assert!(
        labels
            .iter()
            .all(|label| label.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
    );
    assert!(
        all.iter()
            .map(ToString::to_string)
            .all(|text| text.starts_with("The ") && text.ends_with('.'))
    );
}

prop_compose! {
    fn any_cluster()(
        cluster_deleted in any::<bool>(),
        shoot_deleted in any::<bool>(),
        malformed in prop::bool::weighted(0.1),
        hibernation in prop::option::of(prop::option::of(any::<bool>())),
        hibernated in any::<bool>(),
        kind in prop::sample::select(vec!["", "Create", "Reconcile", "Delete", "Migrate", "Restore", "Other"]),
        state in prop::sample::select(vec!["", "Processing", "Succeeded", "Error", "Failed", "Pending", "Aborted"]),
        workers in prop::collection::vec("[a-z]{1,3}", 0..3),
        grace in prop::option::of(prop::sample::select(vec!["0s", "40s", "2m", "-1s", "soon"])),
    ) -> Cluster {
        let deleted = |deleted| if deleted { json!("2026-11-21T10:00:00Z") } else { json!(null) };
        let workers: Vec<_> = workers.into_iter().map(|name| json!({"name": name})).collect();
        let shoot = json!({
            "metadata": {"deletionTimestamp": deleted(shoot_deleted)},
            "spec": {
                "hibernation": hibernation.map(|enabled| json!({"enabled": enabled})),
                "kubernetes": {"kubeControllerManager": {"nodeMonitorGracePeriod": grace}},
                "provider": {"workers": workers},
            },
            "status": {
                "hibernated": hibernated,
                "lastOperation": if kind.is_empty() { json!(null) } else { json!({"type": kind, "state": state}) },
            },
        });
        serde_json::from_value(json!({
            "metadata": {"name": "x", "deletionTimestamp": deleted(cluster_deleted)},
            "spec": {"shoot": if malformed { json!("oops") } else { shoot }},
        })).unwrap()
    }
}

proptest! {
    #[test]
    fn what_may_start_may_continue_with_the_same_settings(cluster in any_cluster()) {
        match may_start(&cluster) {
            Ok(settings) => prop_assert_eq!(may_continue(&cluster), Ok(settings)),
            // What may continue although it may not start fails a start rule.
            Err(reason) => match may_continue(&cluster) {
                Ok(_) => prop_assert!(matches!(reason, SkipReason::WakingUp | SkipReason::NotReconciled)),
                Err(stop) => prop_assert!(stop == reason || matches!(stop, SkipReason::Malformed(_))),
            },
        }
    }
}
