use kube::core::Status;

use super::*;

fn status(code: u16, retry_after: u32) -> RequestError {
    let status: Status = serde_json::from_value(json!({
        "code": code, "message": "no", "details": { "retryAfterSeconds": retry_after },
    }))
    .unwrap();
    RequestError::Refused(Box::new(status))
}

fn reference(api_version: &str, kind: &str) -> ResourceRef {
    ResourceRef {
        api_version: api_version.into(),
        kind: kind.into(),
        name: "kcm".into(),
    }
}

fn down(record: bool) -> ResourceWrite {
    ResourceWrite::Scale {
        from: 3,
        to: 0,
        record,
        unreadable: None,
    }
}

fn outcome(error: &RequestError) -> RequestOutcome {
    let served = ApiResource {
        group: "example.com".into(),
        version: "v1".into(),
        api_version: "example.com/v1".into(),
        kind: "Engine".into(),
        plural: "engines".into(),
    };
    let engine = reference("example.com/v1", "Engine");
    classify(error, &engine, &down(false), &served, "shoot--a")
}

#[test]
fn one_patch_scales_down_and_one_restores() {
    let deployment = reference("apps/v1", "Deployment");
    let patch = |write| patch(&deployment, "42", &write).unwrap();
    assert_eq!(
        patch(down(true)),
        json!({
            "metadata": {
                "resourceVersion": "42",
                "annotations": { REPLICAS_ANNOTATION: "3", MELTDOWN_PROTECTION_ANNOTATION: "" },
            },
            "spec": { "replicas": 0 },
        })
    );
    let up = ResourceWrite::Scale {
        from: 0,
        to: 3,
        record: false,
        unreadable: None,
    };
    assert_eq!(
        patch(up.clone()),
        json!({ "metadata": { "resourceVersion": "42", "annotations": {} }, "spec": { "replicas": 3 } })
    );
    assert_eq!(
        patch(ResourceWrite::CleanUp),
        json!({
            "metadata": { "resourceVersion": "42", "annotations": { MELTDOWN_PROTECTION_ANNOTATION: null } },
        })
    );
    let engine = reference("example.com/v1", "Engine");
    assert_eq!(
        super::patch(&engine, "42", &up),
        None,
        "only its scale sub-resource can"
    );
}

#[test]
fn what_a_failed_write_means() {
    assert_eq!(outcome(&status(409, 0)), RequestOutcome::Conflict);
    assert_eq!(outcome(&status(404, 0)), RequestOutcome::Conflict);
    let write = "the request to update engines.example.com/scale in namespace shoot--a is forbidden: ";
    for message in [
        "engines \"kcm\" is forbidden: User \"u\" cannot update resource",
        "admission webhook \"w\" denied the request: not now",
    ] {
        let forbidden = serde_json::from_value(json!({ "code": 403, "message": message })).unwrap();
        let forbidden = RequestError::Refused(Box::new(forbidden));
        let RequestOutcome::Refused { why, .. } = outcome(&forbidden) else {
            panic!("403 is a refusal");
        };
        assert!(why.starts_with(write) && why.contains(message), "{why}");
    }
    let retry_after = Some(Duration::from_secs(7));
    assert!(
        matches!(outcome(&status(429, 7)), RequestOutcome::Refused { retry_after: r, .. } if r == retry_after)
    );
    assert!(matches!(outcome(&status(422, 0)), RequestOutcome::Refused { .. }));
    assert!(matches!(outcome(&status(500, 0)), RequestOutcome::Unknown { .. }));
    assert!(
        matches!(outcome(&status(503, 7)), RequestOutcome::Unknown { retry_after: r, .. } if r == retry_after)
    );
    assert!(matches!(
        outcome(&RequestError::Deadline(Duration::from_secs(1))),
        RequestOutcome::Unknown { .. }
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
fn deadlines_are_bounded_both_ways() {
    assert_eq!(deadline(Duration::ZERO), LEAST_DEADLINE);
    assert_eq!(deadline(Duration::from_secs(3)), Duration::from_secs(3));
    assert_eq!(deadline(Duration::from_secs(300)), REQUEST_DEADLINE);
}
