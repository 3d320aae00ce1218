use super::*;
use crate::policy::{LONGEST, parse_failure_fraction, parse_mode};
use kube::core::{ObjectList, Resource, WatchEvent};
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
    let manager = &shoot.workers[1].machine_controller_manager;
    assert_eq!(manager.node_conditions, ["KernelDeadlock", "DiskPressure"]);
}

#[test]
fn the_annotations_of_the_policy_are_kept_whatever_they_say() {
    let annotations = |metadata: serde_json::Value| {
        let cluster = json!({"metadata": {"name": "a"}, "spec": {"shoot": {"metadata": metadata}}});
        let cluster: Cluster = serde_json::from_value(cluster).unwrap();
        let shoot = cluster.shoot.unwrap();
        (shoot.mode, shoot.failure_fraction)
    };
    let (mode, fraction) = (names::MODE_ANNOTATION, names::FAILURE_FRACTION_ANNOTATION);
    for nothing in [
        json!({}),
        json!({"annotations": null}),
        json!({"annotations": 1}),
        json!({"annotations": {}}),
    ] {
        assert_eq!(annotations(nothing), (None, None));
    }
    assert_eq!(
        annotations(json!({"annotations": {mode: "off", fraction: 0.8, "other": "dropped"}})),
        (Some("off".into()), Some("0.8".into()))
    );
    let long = annotations(json!({"annotations": {mode: "x".repeat(1_000)}}))
        .0
        .unwrap();
    assert_eq!(long.len(), LONGEST + 1, "bounded");
    let cut = format!("off{}until=2026-12-01T06:00:00Z", " ".repeat(150));
    let cut = annotations(json!({"annotations": {mode: cut}})).0.unwrap();
    assert!(
        parse_mode(&cut).is_err(),
        "the part that is kept is no mode: {cut:?}"
    );
    let cut = format!("0.8{}x", " ".repeat(150));
    let cut = annotations(json!({"annotations": {fraction: cut}})).1.unwrap();
    assert!(parse_failure_fraction(&cut).is_err(), "{cut:?}");
}

#[test]
fn is_a_resource_of_the_extensions_group() {
    assert_eq!(Cluster::api_version(&()), "extensions.gardener.cloud/v1alpha1");
    assert_eq!(
        Cluster::url_path(&(), None),
        "/apis/extensions.gardener.cloud/v1alpha1/clusters"
    );
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
fn malformed_metadata_never_fails_the_object() {
    for metadata in [
        json!(null),
        json!(3),
        json!([]),
        json!({"name": 3, "labels": "x", "generation": "y"}),
    ] {
        let cluster: Cluster = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        assert_eq!(cluster.name(), "");
    }
    let odd = json!({"metadata": {"name": "x", "deletionTimestamp": "yesterday"}});
    let cluster: Cluster = serde_json::from_value(odd).unwrap();
    assert!(
        cluster.metadata.deletion_timestamp.is_some(),
        "a deletion that cannot be dated is still one"
    );
}

#[test]
fn one_bad_cluster_hides_no_other_in_lists_and_watches() {
    let list = json!({"metadata": {"resourceVersion": "12"}, "items": [
        {"metadata": {"name": "bad"}, "spec": {"shoot": {"spec": {"provider": {"workers": "none"}}}}},
        {"metadata": {"name": "good"}, "spec": {"shoot": {}}},
    ]});
    let list: ObjectList<Cluster> = serde_json::from_value(list).unwrap();
    let states: Vec<_> = list.items.iter().map(|c| (c.name(), c.shoot.is_ok())).collect();
    assert_eq!(states, [("bad", false), ("good", true)]);
    // With the type last, serde keeps the object until then.
    let event = r#"{"object": {"metadata": {"name": "bad"}, "spec": {"shoot": []}}, "type": "DELETED"}"#;
    let WatchEvent::Deleted(cluster) = serde_json::from_str::<WatchEvent<Cluster>>(event).unwrap() else {
        panic!("a deletion")
    };
    assert_eq!(cluster.name(), "bad");
}

#[test]
fn the_annotations_of_the_cluster_take_precedence() {
    let read = |own: serde_json::Value| {
        let of_shoot = json!({names::MODE_ANNOTATION: "observe", names::FAILURE_FRACTION_ANNOTATION: "0.8"});
        let cluster = json!({
            "metadata": { "name": "shoot--a", "annotations": own },
            "spec": { "shoot": { "metadata": { "annotations": of_shoot } } },
        });
        let shoot = serde_json::from_value::<Cluster>(cluster).unwrap().shoot.unwrap();
        (shoot.mode.unwrap(), shoot.failure_fraction.unwrap())
    };
    for (own, mode, fraction) in [
        (json!({}), "observe", "0.8"),
        (
            json!({ names::MODE_ANNOTATION: "off", "other": "x" }),
            "off",
            "0.8",
        ),
        (
            json!({ names::FAILURE_FRACTION_ANNOTATION: "0.5" }),
            "observe",
            "0.5",
        ),
        // It is no text.
        (json!({ names::MODE_ANNOTATION: 1 }), "observe", "0.8"),
    ] {
        assert_eq!(read(own), (mode.to_owned(), fraction.to_owned()));
    }
    let long = read(json!({ names::MODE_ANNOTATION: "x".repeat(1_000) }));
    assert_eq!(long.0.len(), LONGEST + 1);
}
