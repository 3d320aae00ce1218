//! EndpointSlices and Endpoints that follow the readiness of a Service's pods.

use serde_json::{Value, json};

use super::{StepInputs, workloads::SimulatedPod};
use crate::{
    resource::{ResourceKey, keys},
    store::{WriteOptions, object::Object},
};

/// Label that ties an EndpointSlice to its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Writes both forms, if they differ from what is stored.
pub(super) fn publish(service: &Object, pods: &[(&str, &SimulatedPod)], around: &StepInputs<'_>) {
    let name = service.name();
    let target = |pod: &str| json!({ "kind": "Pod", "namespace": around.namespace, "name": pod });
    let ports = service
        .value()
        .pointer("/spec/ports")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let ports: Vec<Value> = ports
        .iter()
        .map(|port| {
            let field = |key: &str| port.get(key).cloned().unwrap_or_default();
            json!({ "name": field("name"), "port": field("port"), "protocol": field("protocol") })
        })
        .collect();

    let slice: Vec<Value> = pods
        .iter()
        .map(|(pod, running)| {
            let ready = running.is_serving();
            json!({
                "addresses": [running.ip],
                "conditions": { "ready": ready, "serving": ready, "terminating": false },
                "targetRef": target(pod),
            })
        })
        .collect();
    put(
        &keys::ENDPOINT_SLICES,
        &format!("{name}-sandbox"),
        json!({
            "metadata": { "labels": {
                SERVICE_NAME: name,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            } },
            "addressType": "IPv4",
            "endpoints": slice,
            "ports": ports,
        }),
        around,
    );

    let addresses = |ready: bool| -> Vec<Value> {
        pods.iter()
            .filter(|(_, running)| running.is_serving() == ready)
            .map(|(pod, running)| json!({ "ip": running.ip, "targetRef": target(pod) }))
            .collect()
    };
    let mut subset = json!({ "ports": ports });
    for (key, ready) in [("addresses", true), ("notReadyAddresses", false)] {
        let list = addresses(ready);
        if !list.is_empty() {
            subset[key] = list.into();
        }
    }
    let mut endpoints = json!({ "metadata": { "labels": {} } });
    if !pods.is_empty() {
        endpoints["subsets"] = json!([subset]);
    }
    put(&keys::ENDPOINTS, name, endpoints, around);
}

/// Creates or replaces everything but the metadata, keeping a quiet object quiet.
fn put(resource: &ResourceKey, name: &str, mut wanted: Value, around: &StepInputs<'_>) {
    if around.seed.resource(resource).is_none() {
        return;
    }
    let result = match around.seed.find(resource, around.namespace, name) {
        Some(_) => around.seed.change(resource, around.namespace, name, |value| {
            wanted["metadata"] = value["metadata"].take();
            *value = wanted;
        }),
        None => {
            wanted["metadata"]["name"] = name.into();
            around
                .seed
                .create(resource, around.namespace, wanted, &WriteOptions::default())
        }
    };
    around.report("endpoints", result);
}
