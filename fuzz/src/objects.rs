//! Objects of the seed that the weeder and the coordinator read.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use watchdog_api::names::{IGNORE_SCALING_ANNOTATION, MELTDOWN_PROTECTION_ANNOTATION, REPLICAS_ANNOTATION};
use watchdog_api::trimmed_object::{EndpointsObject, PodObject, SliceObject};
use watchdog_api::workload::{IgnoreScaling, RecordedReplicas, Workload};

/// The annotations of a workload that are kept.
const ANNOTATIONS: [&str; 3] = [
    REPLICAS_ANNOTATION,
    MELTDOWN_PROTECTION_ANNOTATION,
    IGNORE_SCALING_ANNOTATION,
];

/// Characters of a wrong value that are kept.
const LONGEST_QUOTE: usize = 64;

/// An `EndpointSlice` or an Endpoints: its endpoints are those that Kubernetes' own type has.
pub(crate) fn endpoints(data: &[u8]) {
    let _ = serde_json::from_slice::<EndpointsObject>(data);
    let Ok(slice) = serde_json::from_slice::<SliceObject>(data) else {
        return;
    };
    if let Ok(whole) = serde_json::from_slice::<EndpointSlice>(data) {
        let conditions = |endpoint: &Endpoint| {
            let conditions = endpoint.conditions.clone().unwrap_or_default();
            (conditions.ready, conditions.serving)
        };
        let kept: Vec<_> = slice.kept.iter().flatten().flatten().map(conditions).collect();
        let expected: Vec<_> = whole.endpoints.iter().map(conditions).collect();
        assert_eq!(kept, expected, "{slice:?}");
        check_metadata(&slice.metadata, &whole.metadata);
    }
}

/// A Pod: its labels and its containers in a crash loop are those that Kubernetes' own type has.
pub(crate) fn pods(data: &[u8]) {
    let Ok(pod) = serde_json::from_slice::<PodObject>(data) else {
        return;
    };
    let Ok(whole) = serde_json::from_slice::<Pod>(data) else {
        return;
    };
    check_metadata(&pod.metadata, &whole.metadata);
    let expected = crash_loops(&whole.status.unwrap_or_default());
    assert_eq!(pod.kept.as_ref().map(crash_loops), Ok(expected), "{pod:?}");
}

fn check_metadata(kept: &ObjectMeta, whole: &ObjectMeta) {
    let facts = |meta: &ObjectMeta| {
        let times = (meta.creation_timestamp.clone(), meta.deletion_timestamp.clone());
        let names = (meta.name.clone(), meta.namespace.clone(), meta.uid.clone());
        (names, times, meta.labels.clone(), meta.owner_references.clone())
    };
    assert_eq!(facts(kept), facts(whole));
}

/// The restarts of the containers in a crash loop.
fn crash_loops(status: &PodStatus) -> Vec<i32> {
    let init = status.init_container_statuses.iter().flatten();
    let main = status.container_statuses.iter().flatten();
    let crashing = init.chain(main).filter(|container| is_crash_looping(container));
    crashing.map(|container| container.restart_count).collect()
}

fn is_crash_looping(container: &ContainerStatus) -> bool {
    let state = container.state.as_ref();
    let waiting = state.and_then(|state| state.waiting.as_ref()?.reason.as_deref());
    waiting == Some("CrashLoopBackOff")
}

/// The annotations of a scaled resource: they are read as Go reads them or reported, no others are kept, and text from
/// outside is cut.
pub(crate) fn annotations(data: &[u8]) {
    if let Ok(workload) = serde_json::from_slice::<Workload>(data) {
        scaled_resource(&workload);
    }
}

fn scaled_resource(workload: &Workload) {
    let annotations = workload.metadata.annotations.clone().unwrap_or_default();
    assert!(
        annotations.keys().all(|key| ANNOTATIONS.contains(&key.as_str())),
        "{annotations:?}"
    );
    let recorded = annotations.get(REPLICAS_ANNOTATION);
    match workload.recorded_replicas() {
        RecordedReplicas::Absent => assert_eq!(recorded, None),
        RecordedReplicas::Count(count) => {
            assert!(count > 0);
            assert_eq!(recorded.and_then(|text| text.trim().parse().ok()), Some(count));
        }
        RecordedReplicas::Unreadable(text) => assert!(text.chars().count() <= LONGEST_QUOTE, "{text}"),
    }
    let ignore = annotations.get(IGNORE_SCALING_ANNOTATION).map(String::as_str);
    match workload.ignore_scaling() {
        IgnoreScaling::Yes => assert!(matches!(ignore, Some("1" | "t" | "T" | "true" | "TRUE" | "True"))),
        IgnoreScaling::No => assert!(matches!(
            ignore,
            None | Some("0" | "f" | "F" | "false" | "FALSE" | "False")
        )),
        IgnoreScaling::Invalid(text) => assert!(text.chars().count() <= LONGEST_QUOTE, "{text}"),
    }
    let _ = (workload.ready_replicas(), workload.is_observed());
}
