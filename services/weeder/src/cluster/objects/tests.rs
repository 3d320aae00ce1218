use serde_json::{Value, json};

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
    serde_json::from_value::<PodObject>(object).unwrap().into_pod()
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
        serde_json::from_value::<PodObject>(object).unwrap().into_pod()
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
    serde_json::from_value::<SliceObject>(object)
        .unwrap()
        .into_slice()
        .unwrap()
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
        serde_json::from_value::<SliceObject>(unlabelled)
            .unwrap()
            .into_slice()
            .unwrap()
            .service,
        None
    );
}

#[test]
fn endpoints() {
    let read = |subsets: Value| {
        let object = json!({"metadata": {"name": "etcd", "namespace": "shoot"}, "subsets": subsets});
        serde_json::from_value::<EndpointsObject>(object)
            .unwrap()
            .into_slice()
            .unwrap()
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
        let slice: SliceObject = serde_json::from_value(object).unwrap();
        let slice = slice.into_slice().unwrap();
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
