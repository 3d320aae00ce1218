use serde_json::{Value, json};

use super::*;

fn pod(status: Value) -> Pod {
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
    serde_json::from_value::<PodObject>(object)
        .unwrap()
        .into_pod()
        .unwrap()
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
    let crashing = pod(json!({"containerStatuses": [waiting("main", "CrashLoopBackOff")]}));
    let crash = crashing.crash_loop().unwrap();
    assert_eq!(
        (crash.container.as_str(), crash.init, crash.restarts),
        ("main", false, 4)
    );
    assert_eq!(crash.ended_at, Some(UnixTime(1_795_248_001_000_000)));
    assert_eq!(
        (crash.exit_code, crash.reason.as_str(), crash.message.as_str()),
        (Some(137), "OOMKilled", "first line second line")
    );
    assert_eq!(crashing.restarted, ["main"]);
    assert_eq!(crashing.last_ended, crash.ended_at);
    assert_eq!(crashing.created, Some(UnixTime(1_795_244_400_000_000)));
    assert_eq!(crashing.owner.unwrap().name, "kube-apiserver");
    let init = pod(json!({
        "initContainerStatuses": [waiting("setup", "CrashLoopBackOff")],
        "containerStatuses": [waiting("main", "PodInitializing")],
    }));
    assert!(init.crash_loop().unwrap().init);
    let running = json!({"name": "main", "restartCount": 4, "state": {"running": {}}, "lastState": {}});
    for well in [
        json!({"containerStatuses": [running]}),
        json!({"containerStatuses": [waiting("main", "ImagePullBackOff")]}),
        json!({"phase": "Failed", "reason": "Evicted", "containerStatuses": [waiting("main", "CrashLoopBackOff")]}),
        json!({"containerStatuses": null}),
        json!({}),
        json!({"containerStatuses": [{"name": "main", "restartCount": "many"}]}),
    ] {
        assert_eq!(pod(well.clone()).crash_loop(), None, "{well}");
    }
}

#[test]
fn the_last_end_is_that_of_any_container() {
    let ended = |at: &str| json!({"terminated": {"exitCode": 1, "finishedAt": at}});
    let looping = waiting("main", "CrashLoopBackOff");
    let with = |other: Value| pod(json!({"containerStatuses": [looping, other]})).last_ended;
    let seconds = |seconds: i64| Some(UnixTime(1_795_248_000_000_000 + seconds * 1_000_000));
    let runs = json!({"name": "b", "restartCount": 0, "state": {"running": {}}});
    assert_eq!(with(runs), seconds(1));
    let restarted = json!({
        "name": "b", "restartCount": 1, "state": {"running": {}}, "lastState": ended("2026-11-21T08:00:09Z"),
    });
    assert_eq!(with(restarted), seconds(9));
    let failed = json!({
        "name": "b", "restartCount": 1,
        "state": ended("2026-11-21T08:00:20Z"), "lastState": ended("2026-11-21T08:00:09Z"),
    });
    assert_eq!(with(failed), seconds(20), "it has just failed");
    let silent = json!({"name": "b", "restartCount": 1, "state": {"running": {}}, "lastState": {}});
    assert_eq!(with(silent), None);
}

#[test]
fn when_the_containers_of_an_endpoint_pod_did_not_run() {
    let status = json!({"containerStatuses": [
        {
            "name": "a", "restartCount": 1,
            "state": {"running": {"startedAt": "2026-11-21T08:00:05Z"}},
            "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-11-21T08:00:01Z"}},
        },
        {"name": "b", "restartCount": 0, "state": {"running": {"startedAt": "2026-11-21T08:00:05Z"}}, "lastState": {}},
        waiting("c", "CrashLoopBackOff"),
    ]});
    let object = json!({"metadata": {"name": "a", "namespace": "b"}, "status": status});
    let pod = serde_json::from_value::<PodObject>(object)
        .unwrap()
        .endpoint_pod();
    let expected = ContainerStop {
        ended_at: UnixTime(1_795_248_001_000_000),
        started_at: UnixTime(1_795_248_005_000_000),
    };
    assert_eq!(pod.stops, [expected]);
}

#[test]
fn deletion_is_seen_whatever_else_is_wrong() {
    let object =
        json!({"metadata": {"name": "a", "namespace": "b", "uid": "c", "deletionTimestamp": "soon"}});
    assert!(
        serde_json::from_value::<PodObject>(object)
            .unwrap()
            .into_pod()
            .unwrap()
            .deleting
    );
    let broken = json!({"metadata": {"name": "a", "namespace": "b", "labels": [1]}, "status": 5});
    assert!(
        serde_json::from_value::<PodObject>(broken)
            .unwrap()
            .into_pod()
            .is_none()
    );
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
    assert_eq!(whole.pods, None, "no pod is named");
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
fn the_pods_behind_endpoints() {
    let pod = |name: &str| json!({"kind": "Pod", "namespace": "shoot", "name": name, "uid": "u"});
    let slice = slice(json!([
        {"addresses": ["::1"], "conditions": {"ready": true}, "targetRef": pod("etcd-0")},
        {"addresses": ["::2"], "conditions": {"ready": false}, "targetRef": pod("etcd-1")},
    ]));
    let names: Vec<Arc<str>> = vec!["etcd-0".into(), "etcd-1".into()];
    assert_eq!(slice.pods.as_ref(), Some(&names));
    let object = json!({
        "metadata": {"name": "etcd", "namespace": "shoot"},
        "subsets": [{
            "addresses": [{"ip": "10.0.0.1", "targetRef": pod("etcd-0")}],
            "notReadyAddresses": [{"ip": "10.0.0.2", "targetRef": pod("etcd-1")}],
        }],
    });
    let endpoints = serde_json::from_value::<EndpointsObject>(object).unwrap();
    assert_eq!(endpoints.into_slice().unwrap().pods, Some(names));
}

#[test]
fn since_when_a_pod_is_ready() {
    let endpoint_pod = |kind: &str, conditions: Value| {
        let object = json!({
            "metadata": {
                "name": "etcd-0", "namespace": "shoot", "uid": "u", "creationTimestamp": "2026-11-21T07:00:00Z",
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": kind, "name": "e", "uid": "1", "controller": true},
                ],
            },
            "status": {"conditions": conditions},
        });
        serde_json::from_value::<PodObject>(object)
            .unwrap()
            .endpoint_pod()
    };
    let ready = |status: &str| {
        json!([
            {"type": "Initialized", "status": "True", "lastTransitionTime": "2026-11-21T07:00:00Z"},
            {"type": "Ready", "status": status, "lastTransitionTime": "2026-11-21T08:00:01Z"},
        ])
    };
    let since = UnixTime(1_795_248_001_000_000);
    let etcd = endpoint_pod("StatefulSet", ready("True"));
    assert_eq!((etcd.ready, etcd.replaces_in_place), (Some((true, since)), true));
    assert_eq!(etcd.created, Some(UnixTime(1_795_244_400_000_000)));
    let apiserver = endpoint_pod("ReplicaSet", ready("False"));
    assert_eq!(
        (apiserver.ready, apiserver.replaces_in_place),
        (Some((false, since)), false)
    );
    for silent in [
        json!(null),
        json!([]),
        json!([{"type": "Ready", "status": "True"}]),
        json!("broken"),
    ] {
        assert_eq!(endpoint_pod("StatefulSet", silent).ready, None);
    }
}
