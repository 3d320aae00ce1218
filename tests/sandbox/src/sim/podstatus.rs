//! The status that a kubelet writes for a pod.

use serde_json::{Value, json};

use super::{StepInputs, pod::PodPhase, workloads::SimulatedPod};
use crate::{resource::keys, store::object::Object, time};

/// Why a container that waits out its back-off is not running.
pub(crate) const CRASH_LOOP: &str = "CrashLoopBackOff";

/// Brings the Pod object up to date with the simulated pod.
pub(super) fn publish(name: &str, pod: &SimulatedPod, around: &StepInputs<'_>) {
    let Some(object) = around.seed.find(&keys::PODS, around.namespace, name) else {
        return;
    };
    let container = container(&object, pod, around);
    if object.value().pointer("/status/containerStatuses/0") == Some(&container) {
        return;
    }
    let ready = pod.state.is_ready();
    let status = if ready { "True" } else { "False" };
    let before = object
        .value()
        .pointer("/status/conditions/0")
        .filter(|condition| condition["status"] == status)
        .map(|condition| condition["lastTransitionTime"].clone());
    let status = json!({
        "phase": "Running",
        "podIP": pod.ip,
        "conditions": [{
            "type": "Ready",
            "status": status,
            "lastTransitionTime": before.unwrap_or_else(|| time::seconds(around.wall).into()),
        }],
        "containerStatuses": [container],
    });
    let changed = around.seed.change(&keys::PODS, around.namespace, name, |value| {
        value["status"] = status
    });
    around.report("pod status", changed);
}

fn container(object: &Object, pod: &SimulatedPod, around: &StepInputs<'_>) -> Value {
    let name = object.text("/spec/containers/0/name");
    let at = |instant| time::seconds(around.clock.at(instant));
    let waiting = matches!(pod.state.phase, PodPhase::BackOff { .. });
    let state = if waiting {
        let message = format!(
            "back-off restarting failed container={name} pod={}",
            object.name()
        );
        json!({ "waiting": { "reason": CRASH_LOOP, "message": message } })
    } else {
        json!({ "running": { "startedAt": at(pod.state.started) } })
    };
    let last = match pod.state.exited {
        Some(exited) => {
            json!({ "terminated": { "exitCode": 1, "reason": "Error", "finishedAt": at(exited) } })
        }
        None => json!({}),
    };
    json!({
        "name": name,
        "image": object.text("/spec/containers/0/image"),
        "imageID": "",
        "containerID": format!("sandbox://{}-{}", object.uid(), pod.state.restarts),
        "ready": pod.state.is_ready(),
        "started": !waiting,
        "restartCount": pod.state.restarts,
        "state": state,
        "lastState": last,
    })
}
