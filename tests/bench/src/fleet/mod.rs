//! A fleet of simulated shoots behind one TLS listener: API servers that know nodes and their Leases, nothing else.
//!
//! ```text
//!   listener ── TLS; the server name tells the shoot ── http ── objects written from templates
//!   admin    ── cuts nodes off and heals them, reports what was seen
//!   seeding  ── puts Clusters, kubeconfigs, Machines and dependants of the shoots on any seed
//!   process  ── all of it, and the seed's Deployment controller, which notes when dependants were scaled
//! ```
//!
//! Nothing is stored per node. Kubelets are arithmetic ([`kubelets`]), objects are text with holes ([`template`]), so
//! that ten thousand shoots cost less than what probes them.

pub mod admin;
pub mod http;
pub mod kubelets;
pub mod listener;
pub mod objects;
pub mod process;
pub mod seeding;
pub mod template;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use watchdog_sandbox::io::{Gate, WireCounters};
use watchdog_sandbox::protobuf::{LeaseList, ListMeta};

use kubelets::{ShootKubelets, mix};
use template::{LeaseTemplate, Template, Values};

use crate::usage::Usage;

/// Parent of the server names of all shoots, in their certificate and their kubeconfigs.
pub const DOMAIN: &str = "fleet.test";

/// The nodes of a shoot are dealt out to these in turn.
const ZONES: [&str; 3] = ["eu-west-1a", "eu-west-1b", "eu-west-1c"];

/// Simulated shoots and what was seen of their callers.
#[derive(Debug)]
pub struct Fleet {
    shoots: Vec<FleetShoot>,
    lease: Template,
    lease_message: LeaseTemplate,
    node: Template,
    /// Bearer token that callers must show.
    pub token: String,
    pub requests: Requests,
    pub connections: Connections,
    /// Bytes on the wire, TLS included.
    pub wire: Arc<WireCounters>,
    // Shut while the API servers hang.
    gate: Arc<Gate>,
    availability: watch::Sender<Availability>,
}

/// How the API servers of all shoots treat callers; an outage is a time in which they do not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Availability {
    /// They answer.
    #[value(skip)]
    Serve,
    /// As processes that are stopped: connections stay open and new ones are accepted, and nothing is read or answered.
    Hang,
    /// As processes that are gone: connections are closed and new ones refused.
    Refuse,
}

/// One simulated shoot.
#[derive(Debug)]
pub struct FleetShoot {
    /// Its namespace in the seed.
    pub name: String,
    /// Number of its nodes.
    pub nodes: usize,
    pub kubelets: Mutex<ShootKubelets>,
    /// When its Leases were listed.
    pub listed: ListedAt,
}

/// When the Leases of a shoot were listed, in microseconds since 1970; 0 for never.
#[derive(Debug, Default)]
pub struct ListedAt {
    first: AtomicI64,
    last: AtomicI64,
    longest_gap: AtomicI64,
}

/// Answered requests by kind.
#[derive(Debug, Default)]
pub struct Requests {
    /// First pages of the list of Leases: probes.
    pub leases: AtomicU64,
    /// First pages of the list of Nodes.
    pub nodes: AtomicU64,
    /// Everything else: further pages, refusals.
    pub other: AtomicU64,
}

/// Connections by state.
#[derive(Debug, Default)]
pub struct Connections {
    /// Open now, the handshake done.
    pub open: AtomicU64,
    /// In a handshake now.
    pub opening: AtomicU64,
    /// Most that were in a handshake at the same time since the last mark.
    pub opening_most: AtomicU64,
    /// Handshakes that failed.
    pub failed: AtomicU64,
}

/// The items of a list page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemKind {
    /// Leases in kube-node-lease.
    Leases,
    Nodes,
}

/// The fleet's observations, as JSON for the measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub at: i64,
    /// When the Leases were listed last of the shoot that has waited longest; 0 while some shoot never was.
    pub oldest_list: i64,
    pub connections_accepted: u64,
    pub connections_open: u64,
    pub connections_opening_most: u64,
    pub handshakes_failed: u64,
    pub lease_lists: u64,
    pub node_lists: u64,
    pub other_requests: u64,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    /// CPU time of the fleet itself, in seconds.
    pub cpu_seconds: f64,
    /// Memory of the fleet itself, in MiB.
    pub memory_mib: f64,
}

/// The fleet's record of one shoot. Times are in microseconds since 1970, 0 for never.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShootReport {
    /// Its namespace in the seed.
    pub name: String,
    /// First list of its Leases.
    pub first_list: i64,
    /// Last list of its Leases.
    pub last_list: i64,
    /// Longest time between two lists since the last mark.
    pub longest_gap: i64,
    /// Last renewals of all nodes, sorted: of those that are cut off, when they stopped.
    pub renewed: Vec<i64>,
    /// First renewals after the last outage of the nodes that were cut off, sorted.
    pub resumed: Vec<i64>,
}

impl Fleet {
    /// Makes shoots with this many nodes each.
    pub fn new(shoots: usize, nodes: usize) -> Self {
        let shoot = |index: usize| FleetShoot {
            name: format!("shoot--bench--{index:05}"),
            nodes,
            kubelets: Mutex::new(ShootKubelets::new(mix(index as u64))),
            listed: ListedAt::default(),
        };
        Self {
            shoots: (0..shoots).map(shoot).collect(),
            lease: Template::new(&objects::lease()),
            lease_message: LeaseTemplate::new(&objects::lease()),
            node: Template::new(&objects::node()),
            token: format!("fleet-{:016x}", mix(now().unsigned_abs())),
            requests: Requests::default(),
            connections: Connections::default(),
            wire: Arc::default(),
            gate: Arc::default(),
            availability: watch::Sender::new(Availability::Serve),
        }
    }

    /// How the API servers treat callers, now and from now on.
    pub fn availability(&self) -> watch::Receiver<Availability> {
        self.availability.subscribe()
    }

    /// All shoots.
    pub fn shoots(&self) -> &[FleetShoot] {
        &self.shoots
    }

    /// The shoot that a TLS server name stands for.
    pub fn shoot_by_server_name(&self, name: &str) -> Option<&FleetShoot> {
        let label = name.strip_suffix(DOMAIN)?.strip_suffix('.')?;
        self.shoots
            .get(label.strip_prefix("shoot-")?.parse::<usize>().ok()?)
    }

    /// The TLS server name of the shoot with this index.
    pub fn server_name(index: usize) -> String {
        format!("shoot-{index}.{DOMAIN}")
    }

    /// The loopback address of the shoot with this index: one each, so that no client takes two shoots for one server
    /// and shares a connection. All of 127.0.0.0/8 is local on Linux.
    pub fn address(index: usize) -> Ipv4Addr {
        let [_, high, middle, low] = u32::try_from(index).unwrap_or(0).to_be_bytes();
        Ipv4Addr::new(127, 16 + high % 16, middle, low)
    }

    /// Cuts the nodes of the first `shoots` shoots off at this instant, which it returns.
    pub fn lose(&self, shoots: usize, last_within: i64) -> i64 {
        let from = now();
        for shoot in self.shoots.iter().take(shoots) {
            shoot.kubelets.lock().cut(from, last_within);
        }
        from
    }

    /// All API servers fail from this instant on, for callers and kubelets. Returns the instant.
    pub fn begin_outage(&self, mode: Availability) -> i64 {
        let from = self.lose(self.shoots.len(), 0);
        if mode == Availability::Hang {
            self.gate.shut();
        }
        self.availability.send_replace(mode);
        from
    }

    /// Ends an outage or a loss at this instant, which it returns. Kubelets resume within `resume_within` microseconds,
    /// except for those of the first `lost` shoots, whose nodes stay cut off.
    pub fn recover(&self, lost: usize, resume_within: i64) -> i64 {
        let until = now();
        for shoot in self.shoots.iter().skip(lost) {
            shoot.kubelets.lock().heal(until, resume_within);
        }
        self.availability.send_replace(Availability::Serve);
        self.gate.open();
        until
    }

    /// Forgets maxima: from now on they are counted anew.
    pub fn mark(&self) {
        self.connections.opening_most.store(0, Ordering::Relaxed);
        for shoot in &self.shoots {
            shoot.listed.longest_gap.store(0, Ordering::Relaxed);
        }
    }

    /// A page in JSON; `start` and `limit` as in the request.
    pub fn json_page(&self, shoot: &FleetShoot, kind: ItemKind, start: usize, limit: usize) -> Vec<u8> {
        let now = now();
        let end = shoot.end_of_page(start, limit);
        let (template, list, version) = match kind {
            ItemKind::Leases => (&self.lease, "LeaseList", "coordination.k8s.io/v1"),
            ItemKind::Nodes => (&self.node, "NodeList", "v1"),
        };
        let mut metadata = format!(r#""resourceVersion":"{}""#, revision(now));
        if end < shoot.nodes {
            let (token, remaining) = (continue_token(end), shoot.nodes - end);
            metadata += &format!(r#","continue":"{token}","remainingItemCount":{remaining}"#);
        }
        let head =
            format!(r#"{{"kind":"{list}","apiVersion":"{version}","metadata":{{{metadata}}},"items":["#);
        let mut out = head.into_bytes();
        out.reserve(end.saturating_sub(start) * (template.text_len() + 600) + 8);
        let kubelets = shoot.kubelets.lock().clone();
        for node in start..end {
            if node > start {
                out.push(b',');
            }
            template.write(&mut out, &shoot.values(node, &kubelets, now));
        }
        out.extend_from_slice(b"]}\n");
        out
    }

    /// A page of Leases in Protobuf.
    pub fn lease_page(&self, shoot: &FleetShoot, start: usize, limit: usize) -> Bytes {
        let now = now();
        let end = shoot.end_of_page(start, limit);
        let remaining = shoot.nodes - end;
        let kubelets = shoot.kubelets.lock().clone();
        let list = LeaseList {
            metadata: Some(ListMeta {
                resource_version: revision(now).to_string(),
                continue_token: match remaining {
                    0 => String::new(),
                    _ => continue_token(end),
                },
                remaining_item_count: (remaining > 0).then_some(remaining as i64),
            }),
            items: (start..end)
                .map(|node| self.lease_message.filled(&shoot.values(node, &kubelets, now)))
                .collect(),
        };
        list.document()
    }

    /// The observations so far.
    pub fn report(&self) -> Report {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let usage = Usage::of_process("self").unwrap_or_default();
        Report {
            at: now(),
            oldest_list: self
                .shoots
                .iter()
                .map(|shoot| shoot.listed.last.load(Ordering::Relaxed))
                .min()
                .unwrap_or(0),
            connections_accepted: get(&self.wire.accepted),
            connections_open: get(&self.connections.open),
            connections_opening_most: get(&self.connections.opening_most),
            handshakes_failed: get(&self.connections.failed),
            lease_lists: get(&self.requests.leases),
            node_lists: get(&self.requests.nodes),
            other_requests: get(&self.requests.other),
            bytes_received: get(&self.wire.received),
            bytes_sent: get(&self.wire.sent),
            cpu_seconds: usage.cpu.as_secs_f64(),
            memory_mib: usage.resident_mib,
        }
    }
}

// === impl FleetShoot ===

impl FleetShoot {
    /// The name of a node; names sort as the indices do.
    pub fn node_name(&self, node: usize) -> String {
        format!(
            "{}-worker-{node:04}-{:05x}",
            self.name,
            mix(node as u64) & 0xf_ffff
        )
    }

    fn values(&self, node: usize, kubelets: &ShootKubelets, now: i64) -> Values {
        let number = mix(node as u64 ^ 0x51);
        let renewed = kubelets.renewed(node, now);
        Values {
            name: self.node_name(node),
            uid: format!(
                "{:08x}-{:04x}-4a52-9f4c-{:012x}",
                number >> 32,
                (number >> 16) & 0xffff,
                mix(number) >> 16
            ),
            version: revision(renewed),
            renewed,
            zone: ZONES.get(node % ZONES.len()).copied().unwrap_or_default(),
        }
    }

    /// The index after the last item of a page; without a limit, all are on it.
    fn end_of_page(&self, start: usize, limit: usize) -> usize {
        match limit {
            0 => self.nodes,
            limit => self.nodes.min(start.saturating_add(limit)),
        }
    }

    /// Notes that a list of the Leases begins.
    pub fn note_list(&self) {
        let now = now();
        let last = self.listed.last.swap(now, Ordering::Relaxed);
        if last == 0 {
            self.listed.first.store(now, Ordering::Relaxed);
        } else {
            self.listed.longest_gap.fetch_max(now - last, Ordering::Relaxed);
        }
    }

    /// The record of it.
    pub fn report(&self) -> ShootReport {
        let get = |time: &AtomicI64| time.load(Ordering::Relaxed);
        let (kubelets, now) = (self.kubelets.lock().clone(), now());
        let mut renewed: Vec<i64> = (0..self.nodes).map(|node| kubelets.renewed(node, now)).collect();
        renewed.sort_unstable();
        let mut resumed: Vec<i64> = (0..self.nodes)
            .filter_map(|node| kubelets.resumed(node))
            .collect();
        resumed.sort_unstable();
        ShootReport {
            name: self.name.clone(),
            first_list: get(&self.listed.first),
            last_list: get(&self.listed.last),
            longest_gap: get(&self.listed.longest_gap),
            renewed,
            resumed,
        }
    }
}

/// Now, in microseconds since 1970.
pub fn now() -> i64 {
    Timestamp::now().as_microsecond()
}

/// The token that leads to the item with this index: a number, as long as a token of kube-apiserver.
fn continue_token(start: usize) -> String {
    format!("{start:048}")
}

/// A resourceVersion that grows with time.
fn revision(micros: i64) -> u64 {
    (micros / 1_000).unsigned_abs() % 10_000_000_000
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn pages_join_to_the_whole_list() {
        let fleet = Fleet::new(1, 7);
        let shoot = &fleet.shoots()[0];
        let (mut next, mut names) = (Some(0), Vec::new());
        while let Some(start) = next {
            let page: Value =
                serde_json::from_slice(&fleet.json_page(shoot, ItemKind::Leases, start, 3)).unwrap();
            let items = page["items"].as_array().unwrap();
            names.extend(
                items
                    .iter()
                    .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()),
            );
            let token = page["metadata"]["continue"].as_str();
            next = token.map(|token| token.parse().unwrap());
        }
        assert_eq!(
            names,
            (0..7).map(|node| shoot.node_name(node)).collect::<Vec<_>>()
        );
        assert!(names.is_sorted());
    }

    #[test]
    fn server_names_lead_to_their_shoots() {
        let fleet = Fleet::new(300, 1);
        let found = fleet.shoot_by_server_name(&Fleet::server_name(299)).unwrap();
        assert_eq!(found.name, "shoot--bench--00299");
        assert!(fleet.shoot_by_server_name("shoot-300.fleet.test").is_none());
        assert!(fleet.shoot_by_server_name("localhost").is_none());
        assert_eq!(Fleet::address(299), Ipv4Addr::new(127, 16, 1, 43));
    }
}
