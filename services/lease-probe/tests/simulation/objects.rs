//! The answers of API servers: the objects of a shoot at an instant, as JSON.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;

use http::{Request, Response};
use http_body_util::Full;
use kube::client::Body;
use lease_probe::cluster::transport::ApiRequest;

use crate::kubelet::last_write;
use crate::node_lifecycle::is_unknown;
use crate::random::{MILLISECOND, Micros};
use crate::script::{NodeFact, NodeScript};
use crate::virtual_time::{EPOCH, PlayedShoot, VirtualClock};

/// Latency of a list of machines on the seed's API server.
const SEED_LATENCY: Micros = 20 * MILLISECOND;

pub(crate) fn lists_leases(request: &ApiRequest) -> bool {
    request.path.starts_with("/apis/coordination.k8s.io")
}

/// The answer of a shoot's API server to `request` at `at`.
pub(crate) fn answer(shoot: &PlayedShoot, request: &ApiRequest, at: Micros) -> String {
    match request.path.as_str() {
        _ if lists_leases(request) => leases(shoot, at - shoot.script.server.staleness(at)),
        path if path.starts_with("/api/v1/nodes") => nodes(shoot, at - shoot.script.server.staleness(at)),
        path if path.starts_with("/apis/authorization.k8s.io") => r#"{"status":{"allowed":true}}"#.to_owned(),
        path => {
            assert!(path.starts_with("/version"), "an unexpected request: {path}");
            r#"{"major":"1","minor":"36"}"#.to_owned()
        }
    }
}

fn name(node: usize) -> String {
    format!("node-{node}")
}

fn list(items: impl Iterator<Item = String>) -> String {
    let mut text = r#"{"kind":"List","metadata":{"resourceVersion":"1"},"items":["#.to_owned();
    for (i, item) in items.enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let _ = write!(text, "{comma}{item}");
    }
    text + "]}"
}

fn existing(shoot: &PlayedShoot, at: Micros) -> impl Iterator<Item = (usize, &NodeScript)> {
    shoot
        .script
        .nodes
        .iter()
        .enumerate()
        .filter(move |(_, node)| node.exists(at))
}

fn leases(shoot: &PlayedShoot, at: Micros) -> String {
    list(existing(shoot, at).filter_map(|(i, node)| {
        let write = last_write(&shoot.history.nodes[i].kubelet.writes, at)?;
        let renew_time = jiff::Timestamp::from_microsecond(EPOCH + write.renew_time).unwrap();
        Some(format!(
            r#"{{"metadata":{{"name":"{}","namespace":"kube-node-lease"}},
                "spec":{{"holderIdentity":"{}","leaseDurationSeconds":{},"renewTime":"{renew_time:.6}"}}}}"#,
            name(i),
            name(i),
            node.kubelet.lease_duration / 1_000_000,
        ))
    }))
}

fn nodes(shoot: &PlayedShoot, at: Micros) -> String {
    list(existing(shoot, at).map(|(i, node)| {
        let unknown = is_unknown(&shoot.history.ready_changes[i], at);
        let ready = if unknown { "Unknown" } else { "True" };
        let mut conditions = format!(r#"{{"type":"Ready","status":"{ready}","reason":"x"}}"#);
        if node.has(NodeFact::DiskPressure, at) {
            conditions += r#",{"type":"DiskPressure","status":"True","reason":"x"}"#;
        }
        if node.has(NodeFact::InPlaceUpdate, at) {
            conditions += r#",{"type":"InPlaceUpdate","status":"True","reason":"ReadyForUpdate"}"#;
        }
        let annotations = match node.has(NodeFact::NotManagedByMcm, at) {
            true => r#","annotations":{"node.machine.sapcloud.io/not-managed-by-mcm":"1"}"#,
            false => "",
        };
        format!(
            r#"{{"metadata":{{
                "name":"{}","labels":{{
                "worker.gardener.cloud/pool":"pool","topology.kubernetes.io/zone":"z{}"}}{annotations}
                }},"status":{{"conditions":[{conditions}]}}}}"#,
            name(i),
            i % 3
        )
    }))
}

fn machines(shoot: &PlayedShoot, at: Micros) -> String {
    list(
        existing(shoot, at)
            .filter(|(_, node)| !node.has(NodeFact::NoMachine, at))
            .map(|(i, node)| {
                let phase = if node.has(NodeFact::MachineTerminating, at) {
                    "Terminating"
                } else if node.has(NodeFact::MachineFailed, at) {
                    "Failed"
                } else {
                    "Running"
                };
                format!(
                    r#"{{"metadata":{{"name":"machine-{i}","labels":{{"node":"{}"}}}},
                "status":{{"currentStatus":{{"phase":"{phase}"}}}}}}"#,
                    name(i)
                )
            }),
    )
}

/// A client for the seed, which knows nothing but machines.
pub(crate) fn seed_client(clock: VirtualClock, shoots: &[Arc<PlayedShoot>]) -> kube::Client {
    let by_name: HashMap<_, _> = shoots
        .iter()
        .map(|shoot| (shoot.name.clone(), shoot.clone()))
        .collect();
    let by_name = Arc::new(by_name);
    let service = tower::service_fn(move |request: Request<Body>| {
        let by_name = by_name.clone();
        async move {
            let namespace = request
                .uri()
                .path()
                .split('/')
                .nth(5)
                .unwrap_or_default()
                .to_owned();
            let at = clock.now() + SEED_LATENCY;
            clock.sleep_until(at).await;
            let body = machines(&by_name[&*namespace], at);
            Ok::<_, Infallible>(Response::new(Full::new(bytes::Bytes::from(body))))
        }
    });
    kube::Client::new(service, "default")
}
