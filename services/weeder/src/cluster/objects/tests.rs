#[path = "../../../../common/api/tests/fixtures/hostile_documents.rs"]
mod hostile_documents;

use hostile_documents::variants;
use serde_json::{Value, json};
use watchdog_api::text::is_printable;

use super::*;

fn pod(status: Value) -> Option<Pod> {
    let object = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "kube-apiserver-0", "namespace": "shoot", "uid": "u", "resourceVersion": "7",
            "labels": {"role": "apiserver"},
            "creationTimestamp": "2026-11-21T07:00:00Z",
            "managedFields": [{"manager": "kubelet"}],
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Other", "name": "x", "uid": "1"},
                {
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "kube-apiserver", "uid": "2",
                    "controller": true,
                },
            ],
        },
        "spec": {"containers": [{"name": "kube-apiserver"}]},
        "status": status,
    });
    super::pod(serde_json::from_value(object).unwrap())
}

fn waiting(name: &str, reason: &str) -> Value {
    json!({
        "name": name, "restartCount": 4, "ready": false, "image": "i",
        "state": {"waiting": {"reason": reason, "message": "back-off 1m20s"}},
        "lastState": {"terminated": {
            "exitCode": 137, "reason": "OOMKilled", "message": "first line\n  second line",
            "finishedAt": "2026-11-21T08:00:01Z",
        }},
    })
}

#[test]
fn pods() {
    let crashing = pod(json!({"containerStatuses": [waiting("main", "CrashLoopBackOff")]})).unwrap();
    let crash = crashing.crash;
    assert_eq!(
        (crash.container.as_str(), crash.init, crash.restarts),
        ("main", false, 4)
    );
    assert_eq!(crash.ended_at, Some(UnixTime(1_795_248_001_000_000)));
    assert_eq!(
        (crash.exit_code, crash.reason.as_str(), crash.message.as_str()),
        (Some(137), "OOMKilled", "first line second line")
    );
    assert_eq!(crashing.created, Some(UnixTime(1_795_244_400_000_000)));
    assert_eq!(crashing.owner.unwrap().name, "kube-apiserver");
    let mut sidecar = waiting("proxy", "CrashLoopBackOff");
    sidecar["lastState"]["terminated"] = json!({"exitCode": 1, "finishedAt": null});
    for (init, main) in [
        (
            waiting("setup", "CrashLoopBackOff"),
            waiting("main", "PodInitializing"),
        ),
        (
            sidecar,
            json!({"name": "main", "restartCount": 0, "state": {"running": {}}}),
        ),
    ] {
        let status = json!({"initContainerStatuses": [init], "containerStatuses": [main]});
        assert!(pod(status).unwrap().crash.init);
    }
    let running = json!({"name": "main", "restartCount": 4, "state": {"running": {}}, "lastState": {}});
    for well in [
        json!({"containerStatuses": [running]}),
        json!({"containerStatuses": [waiting("main", "ImagePullBackOff")]}),
        json!({"phase": "Failed", "reason": "Evicted", "containerStatuses": [waiting("main", "CrashLoopBackOff")]}),
        json!({"containerStatuses": null}),
        json!({}),
        json!({"containerStatuses": [{"name": "main", "restartCount": "many"}]}),
    ] {
        assert_eq!(pod(well.clone()), None, "{well}");
    }
}

#[test]
fn a_pod_that_is_being_deleted_or_only_half_understood_does_not_exist() {
    let read = |metadata: Value| {
        let status = json!({"containerStatuses": [waiting("main", "CrashLoopBackOff")]});
        let object = json!({"metadata": metadata, "status": status});
        super::pod(serde_json::from_value(object).unwrap())
    };
    assert!(read(json!({"name": "a", "namespace": "b", "uid": "c"})).is_some());
    for broken in [
        json!({"name": "a", "namespace": "b", "uid": "c", "deletionTimestamp": "2026-11-21T07:00:00Z"}),
        json!({"name": "a", "namespace": "b", "uid": "c", "labels": [1]}),
        json!({"name": "a", "namespace": "b", "uid": "c", "deletionTimestamp": "soon"}),
        json!({"name": "a", "namespace": "b"}),
    ] {
        assert_eq!(read(broken.clone()), None, "{broken}");
    }
}

fn slice(endpoints: Value) -> Slice {
    let object = json!({
        "metadata": {"name": "etcd-x7k2p", "namespace": "shoot", "labels": {"kubernetes.io/service-name": "etcd"}},
        "addressType": "IPv6",
        "endpoints": endpoints,
    });
    super::slice(serde_json::from_value(object).unwrap()).unwrap()
}

#[test]
fn endpoint_slices() {
    let endpoints = json!([
        {"addresses": ["::1"], "conditions": {"ready": true, "serving": true}},
        {"addresses": ["::2"], "conditions": {"ready": false}},
        {"addresses": ["::3"], "conditions": {}},
        {"addresses": ["::4"], "conditions": {"ready": null}},
        {"addresses": ["::5"]},
        // publishNotReadyAddresses
        {"addresses": ["::6"], "conditions": {"ready": true, "serving": false}},
        {"addresses": ["::7"], "conditions": {"ready": false, "serving": true, "terminating": true}},
        {"addresses": ["::8"], "conditions": null},
    ]);
    let whole = slice(endpoints);
    assert_eq!(whole.endpoints, Endpoints { ready: 5, total: 8 });
    assert_eq!(whole.service.as_deref(), Some("etcd"));
    for none in [
        json!(null),
        json!([]),
        json!("malformed"),
        json!([{"conditions": {"ready": "yes"}}]),
    ] {
        assert_eq!(slice(none.clone()).endpoints, Endpoints::default(), "{none}");
    }
    let unlabelled = json!({"metadata": {"name": "x", "namespace": "shoot"}});
    assert_eq!(
        super::slice(serde_json::from_value(unlabelled).unwrap())
            .unwrap()
            .service,
        None
    );
}

#[test]
fn endpoints() {
    let read = |subsets: Value| {
        let object = json!({"metadata": {"name": "etcd", "namespace": "shoot"}, "subsets": subsets});
        slice_of_endpoints(serde_json::from_value(object).unwrap()).unwrap()
    };
    let two = read(json!([
        {"addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}], "ports": [{"port": 2379}]},
        {"notReadyAddresses": [{"ip": "10.0.0.3"}]},
    ]));
    assert_eq!(two.endpoints, Endpoints { ready: 2, total: 3 });
    assert_eq!(two.service.as_deref(), Some("etcd"));
    assert_eq!(read(json!(null)).endpoints, Endpoints::default());
    assert_eq!(read(json!(7)).endpoints, Endpoints::default());
}

#[test]
fn when_a_slice_was_written_and_why() {
    let read = |metadata: Value| {
        let mut object =
            json!({"metadata": {"name": "etcd-1", "namespace": "shoot", "resourceVersion": "77"}});
        let all = object["metadata"].as_object_mut().unwrap();
        all.extend(metadata.as_object().unwrap().clone());
        let slice = super::slice(serde_json::from_value(object).unwrap()).unwrap();
        (slice.write, slice.triggered)
    };
    let time = |at: &str| json!({"manager": "m", "time": at, "fieldsV1": {"f:endpoints": {}}});
    let dated = json!({
        "annotations": {"other": "x", LAST_CHANGE_ANNOTATION: "2026-11-21T08:00:01.5Z"},
        "managedFields": [time("2026-11-21T08:00:02Z"), time("2026-11-21T08:00:01Z"), {"manager": "m"}],
    });
    let write = SliceWrite {
        second: UnixTime(1_795_248_002_000_000),
        version: 77,
    };
    assert_eq!(read(dated), (Some(write), Some(UnixTime(1_795_248_001_500_000))));
    for silent in [
        json!({}),
        json!({"annotations": null, "managedFields": null}),
        json!({"annotations": {LAST_CHANGE_ANNOTATION: "yesterday"}, "managedFields": [{"manager": "m"}]}),
    ] {
        assert_eq!(read(silent.clone()), (None, None), "{silent}");
    }
}

// Hostile text in every place that holds text. A container writes its own termination message, and the readers hand
// such texts on to the log, to Events, to the API and to labels of metrics.

/// The most bytes of a name, and characters of a termination message.
const NAME: usize = 253;
const MESSAGE: usize = 200;

fn check(text: &str, most: usize) {
    assert!(
        text.chars().count() <= most,
        "{} characters",
        text.chars().count()
    );
    assert!(text.chars().all(is_printable), "{text:?}");
}

#[test]
fn pods_with_hostile_text() {
    let status = json!({
        "name": "main", "restartCount": 5, "image": "i", "ready": false,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "m"}},
        "lastState": {"terminated": {
            "exitCode": 1, "reason": "Error", "message": "m", "finishedAt": "2020-11-21T08:00:00Z",
        }},
    });
    let pod = json!({
        "metadata": {
            "name": "kcm", "namespace": "shoot--a--b", "uid": "1", "resourceVersion": "7",
            "creationTimestamp": "2020-11-21T08:00:00Z", "labels": {"role": "controller-manager"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "kcm", "uid": "2",
                "controller": true}],
        },
        "status": {"phase": "Running", "containerStatuses": [status]},
    });
    let (mut read, mut skipped) = (0, 0);
    for document in variants(&pod) {
        let Some(Pod { crash, .. }) = serde_json::from_value(document).ok().and_then(super::pod) else {
            skipped += 1;
            continue;
        };
        check(&crash.container, NAME);
        check(&crash.reason, NAME);
        check(&crash.message, MESSAGE);
        read += 1;
    }
    assert!(read > 0 && skipped > 0, "{read} {skipped}");
}

#[test]
fn slices_and_endpoints_with_hostile_text() {
    let slice = json!({
        "metadata": {
            "name": "kube-apiserver-1", "namespace": "shoot--a--b", "uid": "1", "resourceVersion": "7",
            "labels": {"kubernetes.io/service-name": "kube-apiserver"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2020-11-21T08:00:00Z"},
            "managedFields": [{"manager": "m", "time": "2020-11-21T08:00:00Z"}],
        },
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true, "serving": true}}],
        "subsets": [{"addresses": [{"ip": "10.0.0.1"}], "notReadyAddresses": [{"ip": "10.0.0.2"}]}],
    });
    let mut read = 0;
    for document in variants(&slice) {
        let of_slice = serde_json::from_value(document.clone())
            .ok()
            .and_then(super::slice);
        let of_endpoints = serde_json::from_value(document).ok().and_then(slice_of_endpoints);
        for slice in [of_slice, of_endpoints].into_iter().flatten() {
            check(&format!("{slice:?}"), 1_000);
            read += 1;
        }
    }
    assert!(read > 0);
}
