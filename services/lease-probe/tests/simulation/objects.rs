//! The answers of API servers: the objects of a shoot at an instant, as JSON.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;

use http::{Request, Response};
use http_body_util::Full;
use kube::client::Body;
use lease_probe::cluster::transport::ApiRequest;

use crate::absence::{Absent, Form, absence};
use crate::node_lifecycle::is_unknown;
use crate::node_lifecycle_input::LeaseWrite;
use crate::random::{MILLISECOND, Micros};
use crate::script::{NodeFact, NodeScript};
use crate::virtual_time::{EPOCH, PlayedShoot, VirtualClock};

/// Latency of a list of machines on the seed's API server.
const SEED_LATENCY: Micros = 20 * MILLISECOND;

pub(crate) fn lists_leases(request: &ApiRequest) -> bool {
    request.path.starts_with("/apis/coordination.k8s.io")
}

/// The absence that the script sets for the answer to `request` at `at`, and how.
fn missing(shoot: &PlayedShoot, absent: Absent, at: Micros) -> Option<&crate::absence::Absence> {
    absence(&shoot.script.absences, absent, at)
}

/// The status of the answer to a list of these objects at `at`.
pub(crate) fn status(shoot: &PlayedShoot, request: &ApiRequest, at: Micros) -> u16 {
    let absent = match lists_leases(request) {
        true => Absent::Leases,
        false if request.path.starts_with("/api/v1/nodes") => Absent::Nodes,
        false => return 200,
    };
    match missing(shoot, absent, at).map(|absence| absence.form) {
        Some(Form::NotFound) => 404,
        _ => 200,
    }
}

/// The answer of a shoot's API server to `request` at `at`.
pub(crate) fn answer(shoot: &PlayedShoot, request: &ApiRequest, at: Micros) -> String {
    match request.path.as_str() {
        _ if lists_leases(request) => leases(shoot, at),
        path if path.starts_with("/api/v1/nodes") => nodes(shoot, counts(request), at),
        path => {
            assert!(path.starts_with("/version"), "an unexpected request: {path}");
            r#"{"major":"1","minor":"36"}"#.to_owned()
        }
    }
}

/// The name of the node with this number.
fn name(node: &NodeScript, number: usize) -> String {
    format!("node-{}", node.name_of.unwrap_or(number))
}

/// Asks for one node, to learn how many there are.
fn counts(request: &ApiRequest) -> bool {
    request.path.ends_with("?limit=1")
}

/// The answer to a list of one item.
fn first(revision: u64, is_null: bool, items: impl Iterator<Item = String>) -> String {
    let mut items: Vec<_> = items.collect();
    let remaining = items.len().saturating_sub(1);
    items.truncate(1);
    let page = list(revision, is_null, items.into_iter());
    match remaining {
        0 => page,
        _ => page.replacen(
            r#""metadata":{"#,
            &format!(r#""metadata":{{"continue":"token","remainingItemCount":{remaining},"#),
            1,
        ),
    }
}

fn list(revision: u64, is_null: bool, items: impl Iterator<Item = String>) -> String {
    let head = format!(r#"{{"kind":"List","metadata":{{"resourceVersion":"{revision}"}},"items":"#);
    if is_null {
        return head + "null}";
    }
    let mut text = head + "[";
    for (i, item) in items.enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let _ = write!(text, "{comma}{item}");
    }
    text + "]}"
}

/// The nodes of which such an object is there, from some time before they are there and until some time after.
fn existing(
    shoot: &PlayedShoot,
    at: Micros,
    around: fn(&NodeScript) -> (Micros, Micros),
) -> impl Iterator<Item = (usize, &NodeScript)> {
    let exists = move |node: &NodeScript| {
        let (before, after) = around(node);
        node.created - before <= at && at < node.deleted.saturating_add(after)
    };
    let nodes = shoot.script.nodes.iter().enumerate();
    nodes.filter(move |(_, node)| exists(node))
}

/// The write of a lease that a list shows that is made at `at`.
fn shown_write(shoot: &PlayedShoot, node: usize, at: Micros) -> Option<LeaseWrite> {
    let writes = &shoot.history.nodes[node].kubelet.writes;
    let by_then = writes.partition_point(|write| write.at <= at);
    let shown = |write: &&LeaseWrite| shoot.script.server.shows(write.at, at);
    writes[..by_then].iter().rev().find(shown).copied()
}

fn leases(shoot: &PlayedShoot, at: Micros) -> String {
    let server = &shoot.script.server;
    let missing = missing(shoot, Absent::Leases, at);
    let items =
        existing(shoot, at - server.staleness(at), |node| (0, node.lease_stays)).filter_map(|(i, node)| {
            let write =
                shown_write(shoot, i, at).filter(|_| missing.is_none_or(|absence| !absence.hides(i)))?;
            let renew_time = jiff::Timestamp::from_microsecond(EPOCH + write.renew_time).unwrap();
            Some(format!(
                r#"{{"metadata":{{"name":"{}","namespace":"kube-node-lease","resourceVersion":"{}"}},
                "spec":{{"holderIdentity":"{}","leaseDurationSeconds":{},"renewTime":"{renew_time:.6}"}}}}"#,
                name(node, i),
                shoot.writes.revision(server, write.at, at),
                name(node, i),
                node.kubelet.lease_duration / 1_000_000,
            ))
        });
    let is_null = missing.is_some_and(|absence| absence.form == Form::Null);
    list(shoot.writes.of_list(server, at), is_null, items)
}

fn nodes(shoot: &PlayedShoot, counted: bool, at: Micros) -> String {
    let server = &shoot.script.server;
    let revision = shoot.writes.of_list(server, at);
    let missing = missing(shoot, Absent::Nodes, at);
    let at = at - server.staleness(at);
    let shown = existing(shoot, at, |_| (0, 0));
    let shown = shown.filter(|(i, _)| missing.is_none_or(|absence| !absence.hides(*i)));
    let items = shown.map(|(i, node)| {
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
                }},"spec":{{"providerID":"sim:///{i}"}},"status":{{"conditions":[{conditions}]}}}}"#,
            name(node, i),
            i % 3
        )
    });
    let is_null = missing.is_some_and(|absence| absence.form == Form::Null);
    match counted {
        true => first(revision, is_null, items),
        false => list(revision, is_null, items),
    }
}

fn machines(shoot: &PlayedShoot, at: Micros) -> String {
    let missing = missing(shoot, Absent::Machines, at);
    let shown = existing(shoot, at, |node| (node.machine_leads, 0));
    let shown = shown.filter(|(i, _)| missing.is_none_or(|absence| !absence.hides(*i)));
    let items = shown.filter(|(_, node)| !node.has(NodeFact::NoMachine, at)).map(|(i, node)| {
        let phase = if node.has(NodeFact::MachineTerminating, at) {
            "Terminating"
        } else if node.has(NodeFact::MachineFailed, at) {
            "Failed"
        } else {
            "Running"
        };
        let label = match node.has(NodeFact::MachineWithoutLabel, at) {
            true => String::new(),
            false => format!(r#""node":"{}""#, name(node, i)),
        };
        format!(
            r#"{{"metadata":{{"name":"machine-{i}","labels":{{{label}}}}},"spec":{{"providerID":"sim:///{i}"}},
                "status":{{"currentStatus":{{"phase":"{phase}"}}}}}}"#,
        )
    });
    list(
        1,
        missing.is_some_and(|absence| absence.form == Form::Null),
        items,
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
            let shoot = &by_name[&*namespace];
            let mut response = Response::new(Full::new(bytes::Bytes::from(machines(shoot, at))));
            if missing(shoot, Absent::Machines, at).is_some_and(|absence| absence.form == Form::NotFound) {
                *response.status_mut() = http::StatusCode::NOT_FOUND;
            }
            Ok::<_, Infallible>(response)
        }
    });
    kube::Client::new(service, "default")
}
