//! All writes to an API server: its revisions.

use crate::http_client::HttpClient;
use crate::network::NetworkPath;
use crate::random::{Micros, Random, SECOND};
use crate::script::{RUN_UP, ShootHistory, ShootScript};
use crate::timeline::{Behaviour, Client, ServerTimeline};

/// An API server renews its identity Lease this often, and writes once more soon after. Measured: safety.md.
const IDENTITY_PERIOD: Micros = 10 * SECOND;
const SECOND_WRITE: Micros = 2 * SECOND;

/// `--leader-elect-retry-period`, and the time-out of its client.
const ELECTION_PERIOD: Micros = 2 * SECOND;
const ELECTION_TIME_OUT: Micros = 5 * SECOND;

/// The revision of a new API server.
const FIRST_REVISION: u64 = 1_000;

/// When anybody wrote anything.
#[derive(Debug, Clone)]
pub(crate) struct Writes(Vec<Micros>);

impl Writes {
    pub(crate) fn new(script: &ShootScript, history: &ShootHistory, until: Micros) -> Self {
        let server = &script.server;
        let kubelets = history.nodes.iter().flat_map(|node| &node.kubelet.writes);
        let mut writes: Vec<_> = kubelets.map(|write| write.at).collect();
        let mut random = Random::stream(server.seed, 0x0714E5);
        let mut at = RUN_UP + random.between(0, IDENTITY_PERIOD);
        while at < until {
            writes.extend(own_write(server, at));
            writes.extend(own_write(server, at + SECOND_WRITE));
            at += IDENTITY_PERIOD;
        }
        for _ in 0..server.elections {
            let path = NetworkPath {
                server,
                cuts: &[],
                client: Client::KubeControllerManager,
            };
            let mut client = HttpClient::new(ELECTION_TIME_OUT);
            let mut at = RUN_UP + random.between(0, ELECTION_PERIOD);
            while at < until {
                let response = client.call(&path, at, true);
                writes.extend(response.processed.filter(|_| response.is_ok()));
                at = response.at.max(at + ELECTION_PERIOD);
            }
        }
        writes.sort_unstable();
        writes.dedup();
        Self(writes)
    }

    /// The revision that the write at `written` has in lists that are made at `at`.
    pub(crate) fn revision(&self, server: &ServerTimeline, written: Micros, at: Micros) -> u64 {
        let by = |instant: Micros| self.0.partition_point(|write| *write <= instant);
        let mut revision = by(written);
        for segment in server.segments.iter().filter(|segment| segment.from <= at) {
            if let Behaviour::Restored { by: age } = segment.behaviour
                && written > segment.from - age
            {
                let lost = segment.from.min(written);
                revision -= by(lost) - by(segment.from - age);
            }
        }
        FIRST_REVISION + revision as u64
    }

    /// The revision of a list that is made at `at`.
    pub(crate) fn of_list(&self, server: &ServerTimeline, at: Micros) -> u64 {
        self.revision(server, at - server.staleness(at), at)
    }
}

/// The API server's own write, which needs no network.
fn own_write(server: &ServerTimeline, at: Micros) -> Option<Micros> {
    let done = server.etcd_answers(at);
    let refused = server
        .during(done)
        .any(|segment| matches!(segment.behaviour, Behaviour::RefusesWrites));
    (!server.refuses(at) && !server.refuses(done) && !refused).then_some(done)
}
