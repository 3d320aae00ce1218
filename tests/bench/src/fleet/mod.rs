//! A fleet of simulated shoots behind one TLS port: API servers that know nodes and their Leases, nothing else.
//!
//! ```text
//!   listener ── TLS; the server name tells the shoot ── http ── objects written from templates
//!   seeding  ── puts Clusters, kubeconfigs, Machines and dependants of the shoots on any seed
//! ```
//!
//! Nothing is stored per node. Kubelets are arithmetic ([`kubelets`]), objects are text with holes ([`objects`]), so
//! that ten thousand shoots cost less than what probes them.

pub mod http;
pub mod kubelets;
pub mod listener;
pub mod objects;
pub mod seeding;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;
use watchdog_sandbox::io::{Gate, WireCounters};

use kubelets::{ShootKubelets, mix};
use objects::{LeaseTemplate, Template, Values};

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
    counts: Mutex<FleetReport>,
    wire: Arc<WireCounters>,
    // Shut while the API servers hang.
    gate: Arc<Gate>,
    availability: watch::Sender<Availability>,
}

/// How the API servers of all shoots treat callers; an outage is a time in which they do not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Availability {
    /// They answer.
    #[value(skip)]
    Serve,
    /// As processes that are stopped: connections stay open, the system takes new ones, and nothing is read or
    /// answered.
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
    kubelets: Mutex<ShootKubelets>,
    /// When its Leases were listed last, in microseconds since 1970; 0 for never.
    listed: AtomicI64,
}

/// The fleet's observations since its start.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetReport {
    pub connections_accepted: u64,
    /// TLS handshakes under way.
    pub connections_opening: u64,
    pub connections_opening_most: u64,
    /// First pages of the list of Leases: probes.
    pub lease_lists: u64,
    /// First pages of the list of Nodes.
    pub node_lists: u64,
    /// Everything else: further pages, refusals.
    pub other_requests: u64,
    /// On the wire, TLS included.
    pub bytes_received: u64,
    pub bytes_sent: u64,
}

/// The fleet's record of one shoot. Times are in microseconds since 1970.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShootReport {
    /// Its namespace in the seed.
    pub name: String,
    /// Last renewals of all nodes, sorted: of those that are cut off, when they stopped.
    pub renewed: Vec<i64>,
    /// First renewals after the last outage of the nodes that were cut off, sorted.
    pub resumed: Vec<i64>,
}

// === impl Fleet ===

impl Fleet {
    /// Makes shoots with this many nodes each.
    pub fn new(shoots: usize, nodes: usize) -> Self {
        let shoot = |index: usize| FleetShoot {
            name: format!("shoot--bench--{index:05}"),
            nodes,
            kubelets: Mutex::new(ShootKubelets::new(mix(index as u64))),
            listed: AtomicI64::new(0),
        };
        Self {
            shoots: (0..shoots).map(shoot).collect(),
            lease: Template::new(&objects::lease()),
            lease_message: LeaseTemplate::new(&objects::lease()),
            node: Template::new(&objects::node()),
            counts: Mutex::default(),
            wire: Arc::default(),
            gate: Arc::default(),
            availability: watch::Sender::new(Availability::Serve),
        }
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

    /// Cuts the nodes of the first `shoots` shoots off at this instant, which it returns in microseconds since 1970.
    /// [`ShootKubelets::cut`] says what `last_within` means.
    pub fn lose(&self, shoots: usize, last_within: Duration) -> i64 {
        let from = now();
        for shoot in self.shoots.iter().take(shoots) {
            shoot.kubelets.lock().cut(from, micros(last_within));
        }
        from
    }

    /// All API servers fail from this instant on, for callers and kubelets. Returns the instant.
    pub fn begin_outage(&self, mode: Availability) -> i64 {
        let from = self.lose(self.shoots.len(), Duration::ZERO);
        if mode == Availability::Hang {
            self.gate.shut();
        }
        self.availability.send_replace(mode);
        from
    }

    /// Ends an outage or a loss at this instant, which it returns, except for the first `lost` shoots, whose nodes stay
    /// cut off. [`ShootKubelets::heal`] says what `resume_within` means.
    pub fn recover(&self, lost: usize, resume_within: Duration) -> i64 {
        let until = now();
        for shoot in self.shoots.iter().skip(lost) {
            shoot.kubelets.lock().heal(until, micros(resume_within));
        }
        self.availability.send_replace(Availability::Serve);
        self.gate.open();
        until
    }

    /// The observations so far.
    pub fn report(&self) -> FleetReport {
        FleetReport {
            bytes_received: self.wire.received.load(Ordering::Relaxed),
            bytes_sent: self.wire.sent.load(Ordering::Relaxed),
            ..self.counts.lock().clone()
        }
    }

    fn begin_handshake(&self) {
        let mut counts = self.counts.lock();
        counts.connections_opening += 1;
        counts.connections_opening_most = counts.connections_opening_most.max(counts.connections_opening);
    }

    /// The records of all shoots.
    pub fn shoot_reports(&self) -> Vec<ShootReport> {
        self.shoots.iter().map(FleetShoot::report).collect()
    }

    /// When the Leases of the shoot that has waited longest were listed; 0 while some shoot's never were.
    pub fn oldest_list(&self) -> i64 {
        let lists = self.shoots.iter();
        let lists = lists.map(|shoot| shoot.listed.load(Ordering::Relaxed));
        lists.min().unwrap_or(0)
    }
}

// === impl FleetShoot ===

impl FleetShoot {
    /// The name of a node; names sort as the indices do.
    pub fn node_name(&self, node: usize) -> String {
        let suffix = mix(node as u64) & 0xf_ffff;
        format!("{}-worker-{node:04}-{suffix:05x}", self.name)
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

    /// The record of it.
    pub fn report(&self) -> ShootReport {
        let (kubelets, now) = (self.kubelets.lock().clone(), now());
        let nodes = 0..self.nodes;
        let mut renewed: Vec<i64> = nodes.clone().map(|node| kubelets.renewed(node, now)).collect();
        renewed.sort_unstable();
        let mut resumed: Vec<i64> = nodes.filter_map(|node| kubelets.resumed(node)).collect();
        resumed.sort_unstable();
        ShootReport {
            name: self.name.clone(),
            renewed,
            resumed,
        }
    }
}

/// Now, in microseconds since 1970.
pub fn now() -> i64 {
    Timestamp::now().as_microsecond()
}

/// A time span in microseconds.
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A resourceVersion that grows with time.
fn revision(micros: i64) -> u64 {
    (micros / 1_000).unsigned_abs() % 10_000_000_000
}
