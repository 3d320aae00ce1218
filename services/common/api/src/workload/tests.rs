use super::*;
use serde_json::json;

fn workload(object: serde_json::Value) -> Workload {
    serde_json::from_value(object).unwrap()
}

fn annotated(key: &str, value: &str) -> Workload {
    workload(
        json!({"metadata": {"name": "w", "annotations": {key: value, "deployment.kubernetes.io/revision": "3"}}}),
    )
}

#[test]
fn reads_a_deployment() {
    let workload = workload(json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "name": "kube-controller-manager", "namespace": "shoot--a--b", "uid": "u", "resourceVersion": "9",
            "generation": 4, "labels": {"app": "kubernetes"}, "managedFields": [{}],
            "annotations": {
                names::REPLICAS_ANNOTATION: "2", names::MELTDOWN_PROTECTION_ANNOTATION: "", "other": "dropped",
            },
        },
        "spec": {"replicas": 0, "template": {"spec": {"containers": []}}},
        "status": {"observedGeneration": 4, "replicas": 1, "readyReplicas": 1, "conditions": []},
    }));
    assert_eq!(workload.replicas, Ok(Some(0)));
    assert_eq!(workload.ready_replicas(), Ok(1));
    assert_eq!(workload.recorded_replicas(), RecordedReplicas::Count(2));
    assert!(workload.is_meltdown_protected());
    assert_eq!(workload.ignore_scaling(), IgnoreScaling::No);
    assert!(workload.is_observed());
    assert_eq!(workload.metadata.resource_version.as_deref(), Some("9"));
    assert_eq!(
        workload
            .metadata
            .annotations
            .as_ref()
            .map(std::collections::BTreeMap::len),
        Some(2)
    );
    assert_eq!(
        (&workload.metadata.labels, &workload.metadata.managed_fields),
        (&None, &None)
    );
}

#[test]
fn the_writers_are_those_of_managed_fields() {
    let protection = format!("f:{}", names::MELTDOWN_PROTECTION_ANNOTATION);
    let workload = workload(json!({"metadata": {"name": "w", "managedFields": [
        {"manager": "gardenlet", "time": "2026-11-20T21:14:55Z", "fieldsV1": {
            "f:metadata": {"f:annotations": {"f:other": {}}}, "f:spec": {"f:replicas": {}, "f:template": {}},
        }},
        {"manager": "kube-controller-manager", "fieldsV1": {"f:status": {}}, "subresource": "status"},
        {"manager": "dependency-watchdog", "time": "2026-11-20T21:15:00Z", "fieldsV1": {
            "f:metadata": {"f:annotations": {protection: {}}},
        }},
        {"manager": "scaler", "time": "2026-11-20T21:15:01Z", "subresource": "scale", "fieldsV1": {
            "f:spec": {"f:replicas": {}},
        }},
        {"manager": 1, "fieldsV1": "none"},
    ]}}));
    let expected = FieldWriters {
        replicas: Some("scaler".into()),
        protection: Some("dependency-watchdog".into()),
    };
    assert_eq!(workload.writers(), expected);
    assert_eq!(annotated("a", "b").writers(), FieldWriters::default());
    assert!(PROTECTION_FIELD.ends_with(names::MELTDOWN_PROTECTION_ANNOTATION));
    assert_eq!(
        PROTECTION_POINTER,
        format!(
            "/f:metadata/f:annotations/{}",
            PROTECTION_FIELD.replace('/', "~1")
        )
    );
}

#[test]
fn absent_counts_are_no_malformed_ones() {
    for object in [json!({}), json!({"spec": {}, "status": {}})] {
        let workload = workload(object);
        assert_eq!(
            (&workload.replicas, workload.ready_replicas()),
            (&Ok(None), Ok(0))
        );
        assert_eq!(workload.recorded_replicas(), RecordedReplicas::Absent);
        assert!(workload.is_observed());
    }
}

#[test]
fn unreadable_counts_are_told_apart_from_zero() {
    let workload = workload(json!({"metadata": {"name": "w"}, "spec": {"replicas": "two"}, "status": 1}));
    let reason = workload.replicas.as_ref().unwrap_err();
    assert_eq!(reason, "spec.replicas: invalid type: string …, expected i32");
    assert!(workload.ready_replicas().is_err());
    assert_eq!(workload.metadata.name.as_deref(), Some("w"));
}

#[test]
fn recorded_counts_are_read_strictly() {
    let recorded = |text: &str| annotated(names::REPLICAS_ANNOTATION, text).recorded_replicas();
    for (text, count) in [("1", 1), (" 3 ", 3), ("10000", 10_000)] {
        assert_eq!(recorded(text), RecordedReplicas::Count(count), "{text:?}");
    }
    for text in ["0", "-1", "", "two", "10001", "2147483647", "99999999999", "1.0"] {
        assert_eq!(recorded(text), RecordedReplicas::Unreadable(text.to_owned()));
    }
    let cut = RecordedReplicas::Unreadable("x".repeat(64));
    assert_eq!(recorded(&"x".repeat(1000)), cut);
}

#[test]
fn ignore_scaling_is_read_with_the_words_of_go() {
    for (words, expected) in [
        (["1", "t", "T", "TRUE", "true", "True"], IgnoreScaling::Yes),
        (["0", "f", "F", "FALSE", "false", "False"], IgnoreScaling::No),
    ] {
        for word in words {
            let workload = annotated(names::IGNORE_SCALING_ANNOTATION, word);
            assert_eq!(workload.ignore_scaling(), expected, "{word:?}");
        }
    }
    for text in ["", " true", "true ", "tRUE", "yes", "on", "2", "\"true\""] {
        let workload = annotated(names::IGNORE_SCALING_ANNOTATION, text);
        assert_eq!(workload.ignore_scaling(), IgnoreScaling::Invalid(text.to_owned()));
    }
    let long = annotated(names::IGNORE_SCALING_ANNOTATION, &"x".repeat(1000)).ignore_scaling();
    assert_eq!(long, IgnoreScaling::Invalid("x".repeat(64)));
}

#[test]
fn an_older_status_is_noticed() {
    let of = |observed, generation| {
        workload(json!({"metadata": {"generation": generation}, "status": {"observedGeneration": observed}}))
    };
    assert!(!of(3, 4).is_observed());
    assert!(of(4, 4).is_observed());
}
