//! EndpointSlices that follow the readiness of a Service's pods.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{StepInputs, workloads::SimulatedPod};
use crate::{
    resource::keys,
    store::{WriteOptions, object::Object},
    time,
};

/// When that happened which made the endpoints change: as the endpoints controller writes it, in whole seconds of a
/// pod's condition.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Writes the slice of a Service, if it differs from what is stored.
pub(super) fn publish(service: &Object, pods: &[(&str, &SimulatedPod)], around: &StepInputs<'_>) {
    let endpoint = |(pod, running): &(&str, &SimulatedPod)| {
        let ready = running.is_serving();
        json!({
            "addresses": [running.ip],
            "conditions": { "ready": ready, "serving": ready, "terminating": false },
            "targetRef": { "kind": "Pod", "namespace": around.namespace, "name": pod },
        })
    };
    let endpoints: Value = pods.iter().map(endpoint).collect();
    let name = format!("{}-sandbox", service.name());
    let changed_at = time::seconds(Timestamp::now());
    let (seed, resource) = (around.seed, &keys::ENDPOINT_SLICES);
    let written = if seed.find(resource, around.namespace, &name).is_some() {
        seed.change(resource, around.namespace, &name, |slice| {
            if slice["endpoints"] != endpoints {
                slice["endpoints"] = endpoints;
                slice["metadata"]["annotations"][TRIGGER_TIME] = changed_at.into();
            }
        })
    } else {
        let slice = json!({
            "metadata": {
                "name": name,
                "labels": { "kubernetes.io/service-name": service.name() },
                "annotations": { TRIGGER_TIME: changed_at },
            },
            "addressType": "IPv4",
            "endpoints": endpoints,
        });
        seed.create(resource, around.namespace, slice, &WriteOptions::default())
    };
    around.report("endpoints", written);
}
