use serde_json::{Value, json};
use watchdog_api::config::UnknownFields;
use watchdog_api::selector::SelectorExt;

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
    let crash = crashing.crash.unwrap();
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
    let init = pod(json!({
        "initContainerStatuses": [waiting("setup", "CrashLoopBackOff")],
        "containerStatuses": [waiting("main", "PodInitializing")],
    }));
    assert!(init.crash.unwrap().init);
    let running = json!({"name": "main", "restartCount": 4, "state": {"running": {}}, "lastState": {}});
    for well in [
        json!({"containerStatuses": [running]}),
        json!({"containerStatuses": [waiting("main", "ImagePullBackOff")]}),
        json!({"phase": "Failed", "reason": "Evicted", "containerStatuses": [waiting("main", "CrashLoopBackOff")]}),
        json!({"containerStatuses": null}),
        json!({}),
        json!({"containerStatuses": [{"name": "main", "restartCount": "many"}]}),
    ] {
        assert_eq!(pod(well.clone()).crash, None, "{well}");
    }
}

#[test]
fn a_pod_that_is_only_half_understood_does_not_exist() {
    let read = |metadata: Value| {
        let object = json!({"metadata": metadata, "status": 5});
        serde_json::from_value::<PodObject>(object).unwrap().into_pod()
    };
    let pod =
        read(json!({"name": "a", "namespace": "b", "uid": "c", "deletionTimestamp": "2026-11-21T07:00:00Z"}));
    assert!(pod.unwrap().deleting);
    for broken in [
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

/// The documents of a file from public reports.
fn reported<T: serde::de::DeserializeOwned>(file: &str) -> Vec<T> {
    let documents = file.split("\n---\n");
    documents
        .map(|document| serde_saphyr::from_str(document).unwrap())
        .collect()
}

#[test]
fn slices_from_public_reports() {
    let slices = reported::<SliceObject>(include_str!("reports/slices.yaml"));
    let slices: Vec<_> = slices.into_iter().filter_map(SliceObject::into_slice).collect();
    let endpoints = |name: &str| {
        let slice = slices.iter().find(|slice| *slice.key.name == *name).unwrap();
        (
            slice.service.as_deref(),
            slice.endpoints.ready,
            slice.endpoints.total,
        )
    };
    let (api_server, etcd) = (Some("kube-apiserver"), Some("etcd-main-client"));
    assert_eq!(endpoints("kube-apiserver-none"), (api_server, 1, 1));
    assert_eq!(endpoints("kube-apiserver-null"), (api_server, 2, 2));
    assert_eq!(
        endpoints("etcd-main-client-pub"),
        (etcd, 0, 1),
        "publishNotReadyAddresses"
    );
    assert_eq!(
        endpoints("kube-apiserver-term"),
        (api_server, 0, 1),
        "terminating"
    );
    assert_eq!(endpoints("kube-apiserver-v4"), (api_server, 1, 1));
    assert_eq!(
        endpoints("kube-apiserver-v6"),
        (api_server, 0, 1),
        "the other family is behind"
    );
    assert_eq!(endpoints("kube-apiserver-empty"), (api_server, 0, 0));
    assert_eq!(endpoints("external"), (None, 1, 1), "it belongs to no service");
    assert_eq!(slices.len(), 8);
}

#[test]
fn pods_from_public_reports() {
    let file = include_str!("reports/pods.yaml").replace("metadata:\n", "metadata:\n  uid: one\n");
    let pods = reported::<PodObject>(&file);
    let pods: Vec<_> = pods.into_iter().filter_map(PodObject::into_pod).collect();
    let [extension, with_sidecar] = &pods[..] else {
        panic!("{pods:?}")
    };
    // As gardenlet writes it.
    let file = b"
servicesAndDependantSelectors:
  kube-apiserver:
    podSelectors:
    - matchExpressions:
      - {key: gardener.cloud/role, operator: In, values: [controlplane]}
      - {key: role, operator: NotIn, values: [main, apiserver]}
";
    let parsed = watchdog_api::weeder::parse(file, UnknownFields::Refused).unwrap();
    let selector = &parsed.config.services["kube-apiserver"][0];
    assert!(
        extension.is_crashing() && !selector.matches(&extension.labels),
        "it is no dependant"
    );
    assert!(with_sidecar.is_crashing() && selector.matches(&with_sidecar.labels));
    let crash = with_sidecar.crash.as_ref().unwrap();
    assert_eq!(
        (&*crash.container, crash.init, crash.restarts),
        ("proxy", true, 4)
    );
    assert_eq!((crash.exit_code, crash.ended_at), (Some(1), None));
}
