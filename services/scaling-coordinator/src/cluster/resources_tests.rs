use serde_json::{Value, json};
use watchdog_api::workload::RecordedReplicas;

use super::*;
use crate::wake::Wake;

fn kcm() -> ResourceRef {
    ResourceRef {
        api_version: "apps/v1".into(),
        kind: "Deployment".into(),
        name: "kcm".into(),
    }
}

fn listed() -> (Resources, Arc<Wakes>) {
    let wakes = Arc::new(Wakes::default());
    let resources = Resources::new(wakes.clone());
    resources.add(&kcm());
    (resources, wakes)
}

fn workload(version: &str, spec: Value, status: Value) -> Workload {
    serde_json::from_value(json!({
        "metadata": { "name": "kcm", "namespace": "shoot--a", "uid": "u", "resourceVersion": version, "generation": 2 },
        "spec": spec,
        "status": status,
    }))
    .unwrap()
}

fn replicas(sight: &Sight) -> Option<i32> {
    sight.seen().and_then(|seen| seen.replicas)
}

#[tokio::test]
async fn nothing_is_absent_before_the_list_is_complete() {
    let (resources, wakes) = listed();
    resources.applied(&kcm(), &workload("5", json!({ "replicas": 2 }), json!({})));
    assert!(matches!(resources.sight(&kcm(), "shoot--a"), Sight::Unknown(_)));
    resources.synced(&kcm(), &["shoot--a".to_owned()].into());
    assert_eq!(replicas(&resources.sight(&kcm(), "shoot--a")), Some(2));
    assert_eq!(resources.sight(&kcm(), "shoot--b"), Sight::Absent);
    assert_eq!(wakes.next().await, Wake::All);
    // A relist that misses it: it was deleted while the watch was down.
    resources.synced(&kcm(), &BTreeSet::new());
    assert_eq!(resources.sight(&kcm(), "shoot--a"), Sight::Absent);
    assert_eq!(wakes.next().await, Wake::One("shoot--a".into()));
}

#[test]
fn an_object_never_goes_back_to_an_older_version() {
    let (resources, _) = listed();
    resources.synced(&kcm(), &BTreeSet::new());
    let at = |version: &str, n: i32| workload(version, json!({ "replicas": n }), json!({}));
    resources.applied(&kcm(), &at("10", 0));
    resources.applied(&kcm(), &at("9", 3));
    assert_eq!(
        replicas(&resources.sight(&kcm(), "shoot--a")),
        Some(0),
        "the watch is behind our own write"
    );
    let mut recreated = at("3", 1);
    recreated.metadata.uid = Some("another".into());
    resources.applied(&kcm(), &recreated);
    assert_eq!(
        replicas(&resources.sight(&kcm(), "shoot--a")),
        Some(1),
        "another object of the same name"
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
    let expected = Seen {
        resource_version: "1".into(),
        replicas: Some(3),
        ready: 2,
        current: false,
        recorded: RecordedReplicas::Count(3),
        protected: true,
        ignored: false,
        invalid_ignore_scaling: None,
    };
    assert_eq!(resources.sight(&kcm(), "shoot--a"), Sight::Present(expected));
    assert_eq!(resources.about(&kcm(), "shoot--a").uid.as_deref(), Some("u"));
    resources.applied(&kcm(), &workload("2", json!({ "replicas": "many" }), json!({})));
    assert!(matches!(resources.sight(&kcm(), "shoot--a"), Sight::Unusable(why) if why.contains("replicas")));
}

#[test]
fn replicas_come_from_the_scale_of_the_same_version() {
    let (resources, _) = listed();
    resources.synced(&kcm(), &BTreeSet::new());
    resources.applied(&kcm(), &workload("1", json!({ "size": 3 }), json!({})));
    assert_eq!(replicas(&resources.sight(&kcm(), "shoot--a")), None);
    let scale = ScaleSeen {
        version: "1".into(),
        replicas: 3,
        existing: 2,
    };
    resources.scale_read(&kcm(), "shoot--a", scale);
    let sight = resources.sight(&kcm(), "shoot--a");
    assert_eq!((replicas(&sight), sight.seen().unwrap().ready), (Some(3), 2));
    resources.applied(&kcm(), &workload("2", json!({ "size": 3 }), json!({})));
    assert_eq!(
        replicas(&resources.sight(&kcm(), "shoot--a")),
        None,
        "it may have changed since"
    );
}
