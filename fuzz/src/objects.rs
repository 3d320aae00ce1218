//! Objects of the seed that the weeder and the coordinator read.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use watchdog_api::names::{IGNORE_SCALING_ANNOTATION, MELTDOWN_PROTECTION_ANNOTATION, REPLICAS_ANNOTATION};
use watchdog_api::text;
use watchdog_api::workload::{IgnoreScaling, RecordedReplicas, Workload};
use weeder::domain::readiness::Slice;

/// The annotations of a workload that are kept.
const ANNOTATIONS: [&str; 3] = [
    REPLICAS_ANNOTATION,
    MELTDOWN_PROTECTION_ANNOTATION,
    IGNORE_SCALING_ANNOTATION,
];

/// Characters of a wrong value that are kept.
const LONGEST_QUOTE: usize = 64;

/// Characters of a termination message that are kept.
const LONGEST_MESSAGE: usize = 200;

/// An `EndpointSlice` or an Endpoints: no more endpoints are ready than there are, and they are those that Kubernetes'
/// own type has.
pub(crate) fn endpoints(data: &[u8]) {
    let check = |slice: &Slice| {
        let endpoints = slice.endpoints;
        assert!(endpoints.ready <= endpoints.total, "{slice:?}");
    };
    if let Ok(Some(endpoints)) = weeder::read_endpoints(data) {
        check(&endpoints);
    }
    let Ok(Some(slice)) = weeder::read_slice(data) else {
        return;
    };
    check(&slice);
    if let Ok(whole) = serde_json::from_slice::<EndpointSlice>(data) {
        let ready = whole.endpoints.iter().filter(|endpoint| {
            let conditions = endpoint.conditions.clone().unwrap_or_default();
            conditions.ready != Some(false) && conditions.serving != Some(false)
        });
        let expected = (count(ready.count()), count(whole.endpoints.len()));
        assert_eq!(
            (slice.endpoints.ready, slice.endpoints.total),
            expected,
            "{slice:?}"
        );
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// A Pod: what its containers say is cut to what fits into a line, and it is judged by what Kubernetes' own type has.
pub(crate) fn pods(data: &[u8]) {
    let Ok(read) = weeder::read_pod(data) else {
        return;
    };
    if let Some((_, crash)) = &read {
        let message = &crash.message;
        assert!(message.chars().count() <= LONGEST_MESSAGE, "{message}");
        assert!(!message.contains(char::is_control), "{message:?}");
    }
    let Ok(whole) = serde_json::from_slice::<Pod>(data) else {
        return;
    };
    let meta = whole.metadata;
    let is_name = |name: Option<&String>| name.is_some_and(|name| text::name(name).is_ok());
    let is_named = is_name(meta.name.as_ref()) && is_name(meta.namespace.as_ref()) && meta.uid.is_some();
    let status = whole.status.unwrap_or_default();
    let stays_down = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    let init = status.init_container_statuses.unwrap_or_default();
    let main = status.container_statuses.unwrap_or_default();
    let expected = init
        .into_iter()
        .chain(main)
        .filter(|container| !stays_down && is_crash_looping(container))
        .map(|container| container.restart_count)
        .max()
        .filter(|_| is_named && meta.deletion_timestamp.is_none());
    assert_eq!(read.as_ref().map(|(_, crash)| crash.restarts), expected);
    if let Some((labels, _)) = read {
        assert_eq!(labels, meta.labels.unwrap_or_default());
    }
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
