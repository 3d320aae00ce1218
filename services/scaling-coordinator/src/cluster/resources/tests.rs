use serde_json::{Value, json};
use watchdog_api::workload::RecordedReplicas;
use watchdog_runtime::work_queue::WorkItem;

use super::*;
use crate::domain::observed::ObservedResource;

fn kcm() -> ResourceRef {
    ResourceRef {
        api_version: "apps/v1".into(),
        kind: "Deployment".into(),
        name: "kcm".into(),
    }
}

fn listed() -> (Resources, Arc<WorkQueue>) {
    let work_queue = Arc::new(WorkQueue::default());
    let resources = Resources::new(work_queue.clone());
    resources.add(&kcm());
    (resources, work_queue)
}

fn workload(version: &str, spec: Value, status: Value) -> Workload {
    serde_json::from_value(json!({
        "metadata": { "name": "kcm", "namespace": "shoot--a", "uid": "u", "resourceVersion": version, "generation": 2 },
        "spec": spec,
        "status": status,
    }))
    .unwrap()
}

fn replicas(observed: &Observed) -> Option<i32> {
    observed.seen().and_then(|seen| seen.replicas)
}

#[test]
fn what_the_predecessor_holds_down_counts_as_the_coordinators_own() {
    let held: Workload = serde_json::from_value(json!({
        "metadata": {
            "name": "kcm", "namespace": "shoot--a", "resourceVersion": "5",
            "annotations": {
                "dependency-watchdog.gardener.cloud/meltdown-protection-active": "",
                "dependency-watchdog.gardener.cloud/replicas": "2",
            },
            "managedFields": [{
                "manager": "dependency-watchdog", "time": "2026-11-20T21:15:00Z",
                "fieldsV1": {
                    "f:metadata": { "f:annotations": {
                        "f:dependency-watchdog.gardener.cloud/meltdown-protection-active": {},
                    } },
                    "f:spec": { "f:replicas": {} },
                },
            }],
        },
        "spec": { "replicas": 0 },
    }))
    .unwrap();
    for (predecessor, expected) in [
        (None, "dependency-watchdog"),
        (Some("dependency-watchdog"), "scaling-coordinator"),
        (Some("another"), "dependency-watchdog"),
    ] {
        let (resources, _) = listed();
        let resources = resources.in_place_of(predecessor);
        resources.applied(&kcm(), &held);
        resources.synced(&kcm(), &["shoot--a".to_owned()].into());
        let observed = resources.observed(&kcm(), "shoot--a");
        let seen = observed.seen().unwrap();
        let writers = seen.writers.as_deref().unwrap();
        assert_eq!(writers.protection.as_deref(), Some(expected), "{predecessor:?}");
        assert_eq!(writers.replicas.as_deref(), Some(expected), "{predecessor:?}");
        assert_eq!(
            seen.is_protected_by_coordinator(),
            expected == "scaling-coordinator"
        );
    }
}

#[tokio::test]
async fn nothing_is_absent_before_the_list_is_complete() {
    let (resources, work_queue) = listed();
    resources.applied(&kcm(), &workload("5", json!({ "replicas": 2 }), json!({})));
    assert!(matches!(
        resources.observed(&kcm(), "shoot--a"),
        Observed::Unknown(_)
    ));
    resources.synced(&kcm(), &["shoot--a".to_owned()].into());
    assert_eq!(replicas(&resources.observed(&kcm(), "shoot--a")), Some(2));
    assert_eq!(resources.observed(&kcm(), "shoot--b"), Observed::Absent);
    assert_eq!(work_queue.next().await, WorkItem::All);
    // A relist that misses it: it was deleted while the watch was down.
    resources.list_begins(&kcm());
    resources.synced(&kcm(), &BTreeSet::new());
    assert_eq!(resources.observed(&kcm(), "shoot--a"), Observed::Absent);
    assert_eq!(work_queue.next().await, WorkItem::One("shoot--a".into()));
}

#[test]
fn an_object_never_goes_back_to_an_older_version() {
    let (resources, _) = listed();
    resources.synced(&kcm(), &BTreeSet::new());
    let at = |version: &str, n: i32| workload(version, json!({ "replicas": n }), json!({}));
    resources.applied(&kcm(), &at("10", 0));
    resources.applied(&kcm(), &at("9", 3));
    assert_eq!(
        replicas(&resources.observed(&kcm(), "shoot--a")),
        Some(0),
        "the watch is behind our own write"
    );
    let another = |version: &str, n: i32| {
        let mut object = at(version, n);
        object.metadata.uid = Some("another".into());
        object
    };
    resources.applied(&kcm(), &another("12", 1));
    for last in ["10", "11"] {
        resources.applied(&kcm(), &at(last, 3));
        resources.deleted(&kcm(), &at(last, 3));
    }
    assert_eq!(
        replicas(&resources.observed(&kcm(), "shoot--a")),
        Some(1),
        "the watch is behind a read that found another object of the same name"
    );
}

#[test]
fn what_the_rules_read() {
    let (resources, _) = listed();
    resources.synced(&kcm(), &BTreeSet::new());
    let status = json!({ "observedGeneration": 1, "readyReplicas": 2, "replicas": 3 });
    let mut object = workload("1", json!({ "replicas": 3 }), status);
    object.metadata.annotations = Some(
        [
            (
                "dependency-watchdog.gardener.cloud/replicas".to_owned(),
                "3".to_owned(),
            ),
            (
                "dependency-watchdog.gardener.cloud/meltdown-protection-active".to_owned(),
                String::new(),
            ),
        ]
        .into(),
    );
    resources.applied(&kcm(), &object);
    let expected = ObservedResource {
        resource_version: "1".into(),
        replicas: Some(3),
        ready: 2,
        current: false,
        recorded: RecordedReplicas::Count(3),
        protected: true,
        ignored: false,
        invalid_ignore_scaling: None,
        writers: Some(Box::default()),
    };
    assert_eq!(
        resources.observed(&kcm(), "shoot--a"),
        Observed::Present(expected)
    );
    assert_eq!(resources.about(&kcm(), "shoot--a").uid.as_deref(), Some("u"));
    resources.applied(&kcm(), &workload("2", json!({ "replicas": "many" }), json!({})));
    assert!(
        matches!(resources.observed(&kcm(), "shoot--a"), Observed::Unusable(why) if why.contains("replicas"))
    );
}

#[test]
fn replicas_come_from_the_scale_of_the_same_version() {
    let (resources, _) = listed();
    resources.synced(&kcm(), &BTreeSet::new());
    resources.applied(&kcm(), &workload("1", json!({ "size": 3 }), json!({})));
    assert_eq!(replicas(&resources.observed(&kcm(), "shoot--a")), None);
    let scale = ObservedScale {
        version: "1".into(),
        replicas: 3,
        existing: 2,
    };
    resources.scale_read(&kcm(), "shoot--a", scale);
    let observed = resources.observed(&kcm(), "shoot--a");
    assert_eq!(
        (replicas(&observed), observed.seen().unwrap().ready),
        (Some(3), 2)
    );
    resources.applied(&kcm(), &workload("2", json!({ "size": 3 }), json!({})));
    assert_eq!(
        replicas(&resources.observed(&kcm(), "shoot--a")),
        None,
        "it may have changed since"
    );
}
