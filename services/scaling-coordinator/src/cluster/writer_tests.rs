use kube::core::Status;

use super::*;

fn status(code: u16, retry_after: u32) -> RequestError {
    let status: Status = serde_json::from_value(json!({
        "code": code, "message": "no", "details": { "retryAfterSeconds": retry_after },
    }))
    .unwrap();
    RequestError::Refused(Box::new(status))
}

fn outcome(error: &RequestError) -> Outcome {
    let served = ApiResource {
        group: "apps".into(),
        version: "v1".into(),
        api_version: "apps/v1".into(),
        kind: "Deployment".into(),
        plural: "deployments".into(),
    };
    classify(
        error,
        &Write::Scale {
            from: 1,
            to: 0,
            unreadable: None,
        },
        &served,
        "shoot--a",
    )
}

#[test]
fn what_a_failed_write_means() {
    assert_eq!(outcome(&status(409, 0)), Outcome::Conflict);
    assert_eq!(outcome(&status(404, 0)), Outcome::Conflict);
    let Outcome::Refused { why, .. } = outcome(&status(403, 0)) else {
        panic!("a missing permission is a refusal");
    };
    assert!(
        why.contains("update deployments.apps/scale in namespace shoot--a"),
        "{why}"
    );
    let retry_after = Some(Duration::from_secs(7));
    assert!(matches!(outcome(&status(429, 7)), Outcome::Refused { retry_after: r, .. } if r == retry_after));
    assert!(matches!(outcome(&status(422, 0)), Outcome::Refused { .. }));
    assert!(matches!(outcome(&status(500, 0)), Outcome::Unknown { .. }));
    assert!(matches!(outcome(&status(503, 7)), Outcome::Unknown { retry_after: r, .. } if r == retry_after));
    assert!(matches!(
        outcome(&RequestError::Deadline(Duration::from_secs(1))),
        Outcome::Unknown { .. }
    ));
}

#[test]
fn a_scale_carries_its_precondition() {
    let value = serde_json::to_value(scale("shoot--a", "kcm", "42", 0)).unwrap();
    assert_eq!(value["metadata"]["resourceVersion"], "42");
    assert_eq!(value["spec"]["replicas"], 0, "a zero must be sent");
    assert_eq!(value["apiVersion"], "autoscaling/v1");
}

#[test]
fn a_scale_without_replicas_means_zero() {
    let read: Scale = serde_json::from_value(json!({
        "apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": { "resourceVersion": "7" }, "spec": {}, "status": { "replicas": 0 },
    }))
    .unwrap();
    assert_eq!(
        scale_seen(&read),
        Some(ScaleSeen {
            version: "7".into(),
            replicas: 0,
            existing: 0
        })
    );
}

#[test]
fn deadlines_are_bounded_both_ways() {
    assert_eq!(deadline(Duration::ZERO), LEAST_DEADLINE);
    assert_eq!(deadline(Duration::from_secs(3)), Duration::from_secs(3));
    assert_eq!(deadline(Duration::from_secs(300)), REQUEST_DEADLINE);
}
