use std::collections::BTreeSet;

use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use watchdog_api::workload::{IgnoreScaling, RecordedReplicas};
use watchdog_kube::key::ObjectKey;
use watchdog_runtime::work_queue::{WorkItem, WorkQueue};

use super::*;
use crate::domain::observed::ObservedResource;
use crate::domain::testing::dependent;

impl Resources {
    /// Watches a resource that nobody asks the API server for.
    pub(crate) fn add(&self, reference: &ResourceRef) {
        let config = DependentResource {
            reference: reference.clone(),
            ..dependent("", 0, 0)
        };
        let watched = WatchedResource {
            kind: Ok(ApiResource::from_gvk(&GroupVersionKind::gvk(
                "apps",
                "v1",
                "Deployment",
            ))),
            ..WatchedResource::new(&self.signals, &config)
        };
        self.watched.write().push(watched);
    }

    fn synced(&self, exist: &BTreeSet<String>) {
        let key = |namespace: &String| ObjectKey {
            namespace: namespace.clone(),
            name: "kcm".to_owned(),
        };
        let exist = exist.iter().map(key).collect();
        self.take_in(&kcm(), Change::Synced(exist));
    }
}

fn kcm() -> ResourceRef {
    ResourceRef {
        api_version: "apps/v1".into(),
        kind: "Deployment".into(),
        name: "kcm".into(),
    }
}

fn listed() -> (Resources, Arc<WorkQueue>) {
    let signals = IndexSignals::default();
    let resources = Resources::new(signals.clone(), &[]);
    resources.add(&kcm());
    (resources, signals.work_queue)
}

/// Of a kind that the coordinator does not know.
fn proxy() -> ResourceRef {
    ResourceRef {
        api_version: "example.com/v1".into(),
        kind: "Proxy".into(),
        name: "kcm".into(),
    }
}

fn listed_kind(reference: &ResourceRef) -> Resources {
    let resources = Resources::new(IndexSignals::default(), &[]);
    resources.add(reference);
    resources.take_in(reference, Change::Synced(BTreeSet::new()));
    resources
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
        let (mut resources, _) = listed();
        resources.predecessor = predecessor;
        resources.applied(&kcm(), &held, None);
        resources.synced(&["shoot--a".to_owned()].into());
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
    resources.applied(&kcm(), &workload("5", json!({ "replicas": 2 }), json!({})), None);
    assert_eq!(resources.observed(&kcm(), "shoot--b"), Observed::NotListed);
    resources.synced(&["shoot--a".to_owned()].into());
    assert_eq!(replicas(&resources.observed(&kcm(), "shoot--a")), Some(2));
    assert_eq!(resources.observed(&kcm(), "shoot--b"), Observed::Absent);
    assert_eq!(work_queue.next().await, WorkItem::All);
    // A relist that misses it: it was deleted while the watch was down.
    resources.take_in(&kcm(), Change::ListBegins);
    resources.synced(&BTreeSet::new());
    assert_eq!(resources.observed(&kcm(), "shoot--a"), Observed::Absent);
    assert_eq!(work_queue.next().await, WorkItem::One("shoot--a".into()));
}

/// Its list may be refused.
#[test]
fn a_read_shows_one_object_before_the_list_is_complete() {
    let (resources, _) = listed();
    let observed = || resources.observed(&kcm(), "shoot--a");
    assert_eq!(observed(), Observed::NotListed);
    resources.read(&kcm(), "shoot--a", None, None);
    assert_eq!(observed(), Observed::Absent);
    let found = workload("5", json!({ "replicas": 2 }), json!({}));
    resources.read(&kcm(), "shoot--a", None, Some(&found));
    assert_eq!(replicas(&observed()), Some(2));
    assert_eq!(resources.observed(&kcm(), "shoot--b"), Observed::NotListed);
    resources.forget_unlisted("shoot--a");
    assert_eq!(observed(), Observed::NotListed);
    resources.read(&kcm(), "shoot--a", Some("5"), Some(&found));
    // Its kind is served anew: what was seen of it may have gone with it.
    let kind = resources.kind(&kcm()).unwrap();
    resources.set_kind(&kcm(), Err(Observed::Unknown("no longer served".to_owned())));
    resources.set_kind(&kcm(), kind);
    assert_eq!(observed(), Observed::NotListed);
}

#[test]
fn what_the_rules_read() {
    let (resources, _) = listed();
    resources.synced(&BTreeSet::new());
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
    resources.applied(&kcm(), &object, None);
    let expected = ObservedResource {
        resource_version: "1".into(),
        replicas: Some(3),
        ready: 2,
        outdated: false,
        current: false,
        recorded: RecordedReplicas::Count(3),
        protected: true,
        ignore_scaling: IgnoreScaling::No,
        writers: Some(Box::default()),
    };
    assert_eq!(
        resources.observed(&kcm(), "shoot--a"),
        Observed::Present(expected)
    );
    assert_eq!(resources.about(&kcm(), "shoot--a").uid.as_deref(), Some("u"));
    resources.applied(
        &kcm(),
        &workload("2", json!({ "replicas": "many" }), json!({})),
        None,
    );
    assert!(
        matches!(resources.observed(&kcm(), "shoot--a"), Observed::Unusable(why) if why.contains("replicas"))
    );
}

#[test]
fn replicas_come_from_the_scale_of_the_same_version() {
    let resources = listed_kind(&proxy());
    let sized = |version: &str| workload(version, json!({ "size": 3 }), json!({}));
    let scale = |spec: Value| {
        let scale = json!({
            "apiVersion": "autoscaling/v1", "kind": "Scale",
            "metadata": { "resourceVersion": "1" }, "spec": spec, "status": { "replicas": 2 },
        });
        serde_json::from_value::<Scale>(scale).unwrap()
    };
    let read = |version: &str, spec: Value| {
        resources.applied(&proxy(), &sized(version), Some(&scale(spec)));
        replicas(&resources.observed(&proxy(), "shoot--a"))
    };
    resources.applied(&proxy(), &sized("1"), None);
    assert_eq!(replicas(&resources.observed(&proxy(), "shoot--a")), None);
    assert_eq!(read("1", json!({})), Some(0), "the API server leaves out a zero");
    assert_eq!(read("1", json!({ "replicas": 3 })), Some(3));
    // The watch brings that version after the read.
    resources.applied(&proxy(), &sized("1"), None);
    let observed = resources.observed(&proxy(), "shoot--a");
    assert_eq!(
        (replicas(&observed), observed.seen().unwrap().ready),
        (Some(3), 2)
    );
    // A write of its status.
    resources.applied(&proxy(), &sized("2"), None);
    let observed = resources.observed(&proxy(), "shoot--a");
    let seen = observed.seen().unwrap();
    assert_eq!((seen.replicas, seen.ready, seen.outdated), (Some(3), 2, true));
    // A write of its specification.
    let mut other_spec = sized("3");
    other_spec.metadata.generation = Some(3);
    resources.applied(&proxy(), &other_spec, None);
    assert_eq!(
        replicas(&resources.observed(&proxy(), "shoot--a")),
        None,
        "it may have changed since"
    );
    assert_eq!(read("4", json!({ "replicas": 3 })), None, "of another version");
}

/// Of a kind that may show nothing but its scale sub-resource.
#[test]
fn pods_count_as_ready_until_an_object_shows_how_many_are() {
    let resources = listed_kind(&proxy());
    let seen = |shoot: &str| {
        let observed = resources.observed(&proxy(), shoot);
        observed.seen().map(|seen| (seen.replicas, seen.ready))
    };
    let applied = |version: &str, spec: i32, status: Value| {
        let mut object = workload(version, json!({ "replicas": spec }), status);
        object.metadata.generation = Some(spec.into());
        resources.applied(&proxy(), &object, None);
        seen("shoot--a").unwrap()
    };
    assert_eq!(applied("1", 2, json!({ "replicas": 2 })), (Some(2), 2));
    assert_eq!(
        applied("2", 0, json!({ "replicas": 2 })),
        (Some(0), 2),
        "on the way down"
    );
    assert_eq!(applied("3", 0, json!({ "replicas": 0 })), (Some(0), 0));
    // Whether Pods exist is only in the scale sub-resource.
    assert_eq!(applied("4", 2, json!({})), (None, 0));
    // From now on what is missing is a zero, of this object.
    let ready = json!({ "replicas": 2, "readyReplicas": 1 });
    assert_eq!(applied("5", 2, ready), (Some(2), 1));
    assert_eq!(applied("6", 2, json!({ "replicas": 2 })), (Some(2), 0));
    assert_eq!(applied("7", 2, json!({})), (Some(2), 0));
    // An explicit zero says nothing about what is missing.
    let other = |version: &str, status: Value| {
        let mut other = workload(version, json!({ "replicas": 1 }), status);
        other.metadata.namespace = Some("shoot--b".to_owned());
        resources.applied(&proxy(), &other, None);
        seen("shoot--b").unwrap()
    };
    let zero = json!({ "replicas": 1, "readyReplicas": 0 });
    assert_eq!(other("8", zero), (Some(1), 0));
    assert_eq!(other("9", json!({ "replicas": 1 })), (Some(1), 1));
}
