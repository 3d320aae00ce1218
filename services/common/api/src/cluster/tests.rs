use super::*;
use crate::policy::{LONGEST, parse_failure_fraction, parse_mode};
use serde_json::json;

const FIXTURE: &str = include_str!("../../tests/fixtures/cluster.json");

#[test]
fn reads_a_cluster_as_gardener_writes_it() {
    let cluster: Cluster = serde_json::from_str(FIXTURE).unwrap();
    assert_eq!(cluster.name(), "shoot--core--crazy");
    assert_eq!(cluster.metadata.resource_version.as_deref(), Some("8161234"));
    assert_eq!(cluster.metadata.managed_fields, None, "not read at all");
    assert_eq!(cluster.metadata.annotations, None);
    let shoot = cluster.shoot.unwrap();
    let pools: Vec<_> = shoot.workers.iter().map(|worker| worker.name.as_str()).collect();
    assert_eq!(pools, ["worker-a", "worker-b"]);
    assert_eq!(shoot.node_monitor_grace, Some(Duration::from_secs(120)));
    assert!(!shoot.is_hibernated);
    assert_eq!(
        (&*shoot.last_operation, &*shoot.last_operation_state),
        ("Reconcile", "Succeeded")
    );
    assert!(shoot.is_rolled_out);
    let manager = &shoot.workers[1].machine_controller_manager;
    assert_eq!(manager.node_conditions, ["KernelDeadlock", "DiskPressure"]);
}

/// Those of the Cluster itself come first, but only text is an annotation there.
#[test]
fn the_annotations_of_the_policy_are_kept_whatever_they_say() {
    let (mode, fraction) = (names::MODE_ANNOTATION, names::FAILURE_FRACTION_ANNOTATION);
    let read = |own: serde_json::Value, of_shoot: serde_json::Value| {
        let cluster = json!({
            "metadata": {"name": "a", "annotations": own},
            "spec": {"shoot": {"metadata": {"annotations": of_shoot}}},
        });
        let shoot = serde_json::from_value::<Cluster>(cluster).unwrap().shoot.unwrap();
        (shoot.mode, shoot.failure_fraction)
    };
    let both = json!({mode: "observe", fraction: 0.8, "other": "dropped"});
    for (own, of_shoot, expected) in [
        (json!({}), json!(null), (None, None)),
        (json!(null), json!(1), (None, None)),
        (json!(1), json!({}), (None, None)),
        (json!({}), both.clone(), (Some("observe"), Some("0.8"))),
        (json!({mode: "off"}), both.clone(), (Some("off"), Some("0.8"))),
        (
            json!({fraction: "0.5"}),
            both.clone(),
            (Some("observe"), Some("0.5")),
        ),
        (json!({mode: 1}), both, (Some("observe"), Some("0.8"))),
    ] {
        let (mode, fraction) = read(own.clone(), of_shoot);
        assert_eq!((mode.as_deref(), fraction.as_deref()), expected, "{own}");
    }
    // What is cut is longer than any valid text, so the part that is kept is not valid either.
    let long = |begin: &str, end: &str| format!("{begin}{}{end}", " ".repeat(150));
    let annotations = json!({mode: long("off", "until=2026-12-01T06:00:00Z"), fraction: long("0.8", "x")});
    for (own, of_shoot) in [(json!({}), annotations.clone()), (annotations, json!({}))] {
        let (mode, fraction) = read(own, of_shoot);
        let (mode, fraction) = (mode.unwrap(), fraction.unwrap());
        assert_eq!(
            (mode.len(), fraction.len()),
            (LONGEST + 1, LONGEST + 1),
            "bounded"
        );
        assert!(parse_mode(&mode).is_err() && parse_failure_fraction(&fraction).is_err());
    }
}

#[test]
fn a_malformed_shoot_leaves_the_name_and_says_where() {
    let cases = [
        (json!({}), "spec.shoot is absent"),
        (json!({"spec": null}), "spec.shoot is absent"),
        (json!({"spec": {}}), "spec.shoot is absent"),
        (json!({"spec": {"shoot": null}}), "spec.shoot is absent"),
        (json!({"spec": "x"}), "spec: must be an object"),
        (json!({"spec": {"shoot": 7}}), "spec.shoot: must be an object"),
        (
            json!({"spec": {"shoot": {"spec": {"provider": {"workers": [{}]}}}}}),
            "spec.shoot.spec.provider.workers[0]: missing field `name`",
        ),
        (
            json!({"spec": {"shoot": {"spec": {"hibernation": {"enabled": "yes"}}}}}),
            "spec.shoot.spec.hibernation.enabled: invalid type: string …, expected a boolean",
        ),
        (
            json!({"spec": {"shoot": {"spec": {"kubernetes": {"kubeControllerManager":
                {"nodeMonitorGracePeriod": "-5s"}}}}}}),
            "spec.shoot.spec.kubernetes.kubeControllerManager.nodeMonitorGracePeriod: … is negative; a duration here \
             must be zero or more",
        ),
    ];
    for (mut object, reason) in cases {
        object["metadata"] = json!({"name": "shoot--a--b", "deletionTimestamp": "2026-11-21T10:00:00Z"});
        let cluster: Cluster = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(cluster.shoot.as_ref().unwrap_err(), reason, "{object}");
        assert_eq!(cluster.name(), "shoot--a--b");
        assert!(cluster.metadata.deletion_timestamp.is_some());
    }
}

#[test]
fn a_deletion_that_cannot_be_dated_is_still_one() {
    let odd = json!({"metadata": {"name": "x", "deletionTimestamp": "yesterday"}});
    let cluster: Cluster = serde_json::from_value(odd).unwrap();
    assert!(cluster.metadata.deletion_timestamp.is_some());
}
