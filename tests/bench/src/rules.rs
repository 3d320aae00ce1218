//! The pure rules, each as something to be repeated: what `bench-check` counts the instructions of.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use lease_probe::domain::answered::ListTimes;
use lease_probe::domain::assessment::{ExpiryRule, ListedLeases};
use lease_probe::domain::candidates::NodeIndex;
use lease_probe::domain::outcome::Outcome;
use lease_probe::domain::probe_state::{ProbeState, ProbeStep};
use lease_probe::domain::renewals::ListedLease;
use lease_probe::domain::verdict::{Streak, Thresholds, VerdictBuilder, sentence};
use scaling_coordinator::domain::Direction;
use scaling_coordinator::domain::attempts::FlowHints;
use scaling_coordinator::domain::decision::{self, ReceivedVerdict, StreamCounts, decide};
use scaling_coordinator::domain::next_step::next_step;
use scaling_coordinator::domain::observed::{Dependent, Observed, ObservedResource};
use tokio::time::Instant;
use watchdog_api::config::UnknownFields;
use watchdog_api::eligibility::ShootSettings;
use watchdog_api::lease::LeaseItem;
use watchdog_api::list::ItemList;
use watchdog_api::machine::{MachineItem, MachinePhase};
use watchdog_api::node::NodeItem;
use watchdog_api::prober::{self, DependentResource};
use watchdog_api::unix_time::UnixTime;
use watchdog_api::workload::RecordedReplicas;
use watchdog_test_support::fixtures;
use weeder::domain::namespaced_name::NamespacedName;
use weeder::domain::pods::CrashLoop;
use weeder::domain::readiness::{Endpoints, ObservedService, Slice};

use crate::fleet::{Fleet, ItemKind};

/// Something to repeat.
pub type Work = Box<dyn FnMut()>;

/// Makes the work of a rule.
pub type Prepare = fn() -> Work;

/// All rules, by their names in the baseline.
pub const CASES: [(&str, Prepare); 12] = [
    ("decode a page of 20 leases", || decode_leases(20)),
    ("decode a page of 500 leases", || decode_leases(500)),
    ("decode a page of 50 nodes", || decode_nodes(50)),
    ("assess 20 leases of a healthy shoot", || assess(20)),
    ("assess 500 leases of a healthy shoot", || assess(500)),
    ("judge a lost shoot of 20 nodes with nodes and machines", || {
        judge(20)
    }),
    ("judge a lost shoot of 500 nodes with nodes and machines", || {
        judge(500)
    }),
    ("one whole probe of 20 nodes: decode, assess, verdict", || {
        probe(20)
    }),
    ("one whole probe of 500 nodes: decode, assess, verdict", || {
        probe(500)
    }),
    ("coordinator: from a verdict to a direction", direction),
    ("coordinator: next step of a shoot with three resources", flow),
    ("weeder: a slice changes, and a pod is looked at", weed),
];

const RULE: ExpiryRule = ExpiryRule {
    expiry_age: Duration::from_secs(32),
    threshold: 0.6,
};

/// Between two probes, in microseconds.
const STEP: i64 = 10_000_000;

fn body(nodes: usize, kind: ItemKind) -> Vec<u8> {
    let fleet = Fleet::new(1, nodes);
    let Some(shoot) = fleet.shoots().first() else {
        return Vec::new();
    };
    match kind {
        ItemKind::Leases => fleet.lease_page(shoot, 0, 0).into(),
        ItemKind::Nodes => fleet.json_page(shoot, kind, 0, 0),
    }
}

fn decode_leases(nodes: usize) -> Work {
    let body = body(nodes, ItemKind::Leases);
    Box::new(move || {
        black_box(LeaseItem::page::<500>(black_box(&body)).is_ok());
    })
}

fn decode_nodes(nodes: usize) -> Work {
    let body = body(nodes, ItemKind::Nodes);
    Box::new(move || {
        black_box(ItemList::<NodeItem>::from_slice(black_box(&body)).is_ok());
    })
}

fn names(nodes: usize) -> Vec<Arc<str>> {
    let fleet = Fleet::new(1, nodes);
    let names = fleet
        .shoots()
        .iter()
        .flat_map(|shoot| (0..nodes).map(|node| shoot.node_name(node).into()));
    names.collect()
}

fn listed(names: &[Arc<str>], renewed: i64) -> ListedLeases {
    let lease = |(i, name): (i64, &Arc<str>)| ListedLease {
        name: name.clone(),
        revision: (renewed - i).unsigned_abs(),
        renew_time: Some(UnixTime(renewed - i)),
        duration_seconds: Some(40),
    };
    ListedLeases {
        leases: (0..).zip(names).map(lease).collect(),
        malformed: 0,
        revision: renewed.unsigned_abs(),
    }
}

const fn listing(at: i64) -> ListTimes {
    ListTimes {
        sent: UnixTime(at),
        received: UnixTime(at),
        revision: at.unsigned_abs(),
    }
}

fn assess(nodes: usize) -> Work {
    let names = names(nodes);
    let (mut state, mut now) = (ProbeState::default(), STEP);
    Box::new(move || {
        now += STEP;
        let leases = listed(&names, now - STEP / 2);
        black_box(state.leases(listing(now), &leases, RULE));
    })
}

fn judge(nodes: usize) -> Work {
    let (names, settings) = (names(nodes), ShootSettings::default());
    let node = |name: &Arc<str>| NodeItem {
        name: name.clone(),
        pool: Some("worker".into()),
        zone: Some("a".into()),
        provider_id: None,
        not_managed_by_mcm: false,
        conditions: Vec::new(),
    };
    let machine = |name: &Arc<str>| MachineItem {
        name: name.clone(),
        node: Some(name.clone()),
        provider_id: None,
        phase: MachinePhase::Other,
    };
    let nodes: Vec<NodeItem> = names.iter().map(node).collect();
    let machines: Vec<MachineItem> = names.iter().map(machine).collect();
    let (mut state, lost) = (ProbeState::default(), listed(&names, STEP));
    state.leases(listing(2 * STEP), &lost, RULE);
    let now = UnixTime(10 * STEP);
    Box::new(move || {
        let next = state.leases(listing(now.0), &lost, RULE);
        let index = NodeIndex::new(&nodes, &machines, &settings);
        black_box((next, state.judge(&lost, index, RULE, now)));
    })
}

fn probe(nodes: usize) -> Work {
    let body = body(nodes, ItemKind::Leases);
    let (mut state, mut streak) = (ProbeState::default(), Streak::default());
    let mut verdicts = VerdictBuilder::new("lease-probe-0".into(), UnixTime(0));
    let once = Thresholds {
        failure: 1,
        success: 1,
    };
    let now = UnixTime(crate::fleet::now());
    Box::new(move || {
        let Ok(list) = LeaseItem::page::<500>(black_box(&body)) else {
            return;
        };
        let lease = |lease: &LeaseItem| ListedLease {
            name: lease.name.clone(),
            revision: lease.revision,
            renew_time: lease.renew_time.map(|time| UnixTime(time.as_microsecond())),
            duration_seconds: lease.lease_duration_seconds,
        };
        let leases = ListedLeases {
            leases: list
                .items
                .iter()
                .filter_map(|item| item.ok().map(lease))
                .collect(),
            malformed: 0,
            revision: 1,
        };
        if let ProbeStep::Done(found) = state.leases(listing(now.0), &leases, RULE) {
            let result = streak.note(
                &found.outcome,
                &Outcome::Healthy,
                once,
                now,
                Duration::from_secs(10),
            );
            let message = sentence(&found, result.counting);
            let until = now.after(Duration::from_secs(40));
            black_box(verdicts.assessed(result.outcome, message, found, until));
        }
    })
}

fn direction() -> Work {
    let now = Instant::now();
    let verdict = ReceivedVerdict {
        outcome: decision::ReportedOutcome::LeasesExpired,
        observer: "lease-probe-0".into(),
        observed: now,
        outcome_since: now,
        list_revision: 0,
        first_revision: 0,
        sent: now,
        valid_until: now + Duration::from_secs(40),
        message: "12 of 20 leases are expired.".into(),
        evidence: None,
    };
    let streams = StreamCounts { known: 1, synced: 1 };
    Box::new(move || {
        black_box(decide(black_box(now), [&verdict], streams));
    })
}

fn gardener() -> Vec<DependentResource> {
    let text = fixtures::prober("probeInterval: 30s", "30s");
    let parsed = prober::parse(text.as_bytes(), UnknownFields::Refused);
    parsed
        .map(|parsed| parsed.config.dependent_resource_infos)
        .unwrap_or_default()
}

fn flow() -> Work {
    let (config, mut hints, now) = (gardener(), FlowHints::default(), Instant::now());
    let seen = ObservedResource {
        resource_version: "1".into(),
        replicas: Some(1),
        ready: 1,
        current: true,
        recorded: RecordedReplicas::Absent,
        protected: false,
        ignored: false,
        invalid_ignore_scaling: None,
        writers: None,
    };
    Box::new(move || {
        let dependent = |config| Dependent {
            config,
            dropped: false,
            observed: Observed::Present(seen.clone()),
            read: true,
        };
        let dependents: Vec<_> = config.iter().map(dependent).collect();
        black_box(next_step(now, Some(Direction::Down), &dependents, &mut hints));
    })
}

fn weed() -> Work {
    let mut turn = 0_u32;
    let key = NamespacedName {
        namespace: "shoot--bench--00001".into(),
        name: "kube-apiserver-x7k2p".into(),
    };
    Box::new(move || {
        turn += 1;
        let slice = Slice {
            key: key.clone(),
            service: Some("kube-apiserver".into()),
            endpoints: Endpoints::of([turn.is_multiple_of(2), false]),
            write: None,
            triggered: None,
        };
        black_box(ObservedService::of([&slice].into_iter()));
        let container = |name: &str, waiting: Option<&str>| {
            let crash = CrashLoop {
                container: name.into(),
                restarts: 3,
                ..CrashLoop::default()
            };
            (waiting.map(str::to_owned), crash)
        };
        black_box(CrashLoop::worst([
            container("main", Some("CrashLoopBackOff")),
            container("side", None),
        ]));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_runs() {
        for (_, prepare) in CASES {
            let mut work = prepare();
            work();
            work();
        }
    }

    #[test]
    fn a_probe_of_a_healthy_shoot_needs_no_nodes() {
        let leases = listed(&names(20), STEP / 2);
        let mut state = ProbeState::default();
        let ProbeStep::Done(found) = state.leases(listing(STEP), &leases, RULE) else {
            panic!("the nodes need not be listed")
        };
        assert_eq!(found.evidence.candidates, 20);
        assert_eq!(gardener().len(), 3);
    }
}
