//! The leases that count, for every combination of traits of a node, and for very many nodes.

#![cfg(test)]

use lease_probe::domain::answered::ListTimes;
use lease_probe::domain::assessment::{AssessmentContext, ExpiryRule, ListedLeases, assess};
use lease_probe::domain::candidates::{Exclusion, NodeIndex};
use lease_probe::domain::outcome::Outcome;
use lease_probe::domain::renewals::{ListedLease, Renewals};
use proptest::prelude::*;
use std::time::Duration;
use watchdog_api::eligibility::ShootSettings;
use watchdog_api::machine::{MachineItem, MachinePhase};
use watchdog_api::node::{NodeCondition, NodeItem};
use watchdog_api::unix_time::UnixTime;

const S: i64 = 1_000_000;

/// All leases were renewed at second 0 and are expired now, at second 40, but those that renewed since.
const NOW: UnixTime = UnixTime(40 * S);

const RULE: ExpiryRule = ExpiryRule {
    expiry_age: Duration::from_secs(30),
    threshold: 0.6,
};

const CONTEXT: AssessmentContext = AssessmentContext {
    rule: RULE,
    loss_may_stand: false,
    external: None,
};

/// The traits of one node by which its lease is excluded. A lease counts if none of them is set.
#[derive(Debug, Clone, Copy)]
struct NodeTraits {
    not_managed: bool,
    unhealthy: bool,
    in_place: bool,
    machine: Option<MachinePhase>,
    exists: bool,
    renew_time: bool,
    fresh: bool,
    zone: usize,
}

const ZONES: [&str; 3] = ["a", "b", "c"];

prop_compose! {
    fn traits()(
        (not_managed, unhealthy, in_place) in (
            prop::bool::weighted(0.2), prop::bool::weighted(0.2), prop::bool::weighted(0.2),
        ),
        machine in prop_oneof![
            1 => Just(None), 1 => Just(Some(MachinePhase::Failed)), 1 => Just(Some(MachinePhase::Terminating)),
            5 => Just(Some(MachinePhase::Other)),
        ],
        exists in prop::bool::weighted(0.9), renew_time in prop::bool::weighted(0.9), fresh: bool,
        zone in 0..ZONES.len(),
    ) -> NodeTraits {
        NodeTraits { not_managed, unhealthy, in_place, machine, exists, renew_time, fresh, zone }
    }
}

impl NodeTraits {
    fn node(self, name: &str) -> NodeItem {
        let condition = |kind: &str, reason: &str| NodeCondition {
            kind: kind.into(),
            status: "True".into(),
            reason: reason.into(),
        };
        let mut conditions = vec![condition("Ready", "KubeletReady")];
        if self.unhealthy {
            conditions.push(condition("DiskPressure", ""));
        }
        if self.in_place {
            conditions.push(condition("InPlaceUpdate", "ReadyForUpdate"));
        }
        NodeItem {
            name: name.into(),
            pool: Some("pool".into()),
            zone: Some(ZONES[self.zone].into()),
            not_managed_by_mcm: self.not_managed,
            conditions,
        }
    }

    /// The rule of the design, read anew: any one of these is enough.
    fn counts(self) -> bool {
        self.exists
            && !self.not_managed
            && !self.unhealthy
            && !self.in_place
            && self.machine == Some(MachinePhase::Other)
            && self.renew_time
    }
}

fn machine(node: &str, phase: MachinePhase) -> MachineItem {
    MachineItem {
        name: format!("machine-{node}").into(),
        node: Some(node.into()),
        phase,
    }
}

fn lease(name: &str, renewed: Option<i64>) -> ListedLease {
    ListedLease {
        name: name.into(),
        renew_time: renewed.map(|second| UnixTime(second * S)),
        duration_seconds: Some(40),
    }
}

fn at(second: i64) -> ListTimes {
    ListTimes {
        sent: UnixTime(second * S),
        received: UnixTime(second * S),
    }
}

proptest! {
    /// Every filter with every other, also where a node has no lease or a lease no node: counted is exactly what no
    /// filter excludes, in total and per zone, and the outcome follows from those counts alone.
    #[test]
    fn filters_in_every_combination(
        fleet in prop::collection::vec(traits(), 0..12), leaseless in 0_usize..3, malformed in 0_u32..3,
    ) {
        let name = |i: usize| format!("node-{i}");
        let existing = fleet.iter().enumerate().filter(|(_, t)| t.exists);
        let mut nodes: Vec<_> = existing.map(|(i, t)| t.node(&name(i))).collect();
        let mut machines: Vec<_> =
            fleet.iter().enumerate().filter_map(|(i, t)| Some(machine(&name(i), t.machine?))).collect();
        for i in 0..leaseless {
            let name = format!("without-lease-{i}");
            let like = nodes.first().cloned().unwrap_or_else(|| bare(&name));
            nodes.push(NodeItem { name: name.as_str().into(), ..like });
            machines.push(machine(&name, MachinePhase::Other));
        }
        let index = NodeIndex::new(&nodes, &machines, &ShootSettings::default());
        let mut renewals = Renewals::default();
        let leases = |second: i64| -> Vec<ListedLease> {
            fleet.iter().enumerate().map(|(i, t)| {
                let renewed = if t.fresh && second == 40 { 35 } else { 0 };
                lease(&name(i), t.renew_time.then_some(renewed))
            }).collect()
        };
        for second in [0, 10, 20, 30, 40] {
            renewals.observe(at(second), &leases(second));
        }
        let listed = ListedLeases { leases: leases(40), malformed };
        let found = assess(&listed, &renewals, |name| index.exclusion(name), Some(&index), CONTEXT, NOW);
        let evidence = &found.evidence;

        let counting: Vec<_> = fleet.iter().filter(|t| t.counts()).collect();
        let expired = counting.iter().filter(|t| !t.fresh).count();
        prop_assert_eq!(evidence.nodes as usize, nodes.len());
        prop_assert_eq!(evidence.leases as usize, fleet.len() + malformed as usize);
        prop_assert_eq!((evidence.candidates as usize, evidence.expired as usize), (counting.len(), expired));
        let excluded: u32 = evidence.excluded.values().sum();
        prop_assert_eq!(excluded + evidence.candidates, evidence.leases, "every lease is counted once");
        prop_assert_eq!(evidence.excluded.get(&Exclusion::MalformedLease).copied().unwrap_or(0), malformed);
        for (number, zone) in ZONES.iter().enumerate() {
            let of = |t: &&&NodeTraits| t.zone == number;
            let all = counting.iter().filter(of).count();
            let gone = counting.iter().filter(of).filter(|t| !t.fresh).count();
            let count = evidence.zones.get(*zone).copied().unwrap_or_default();
            prop_assert_eq!((count.candidates as usize, count.expired as usize), (all, gone), "zone {}", zone);
        }
        let outcome = match (counting.len(), expired) {
            (1, 1) => Outcome::TooFewCandidates,
            (all, gone) if all > 1 && gone * 5 >= all * 3 => Outcome::LeasesExpired,
            _ => Outcome::Healthy,
        };
        prop_assert_eq!(&found.outcome, &outcome);
    }
}

fn bare(name: &str) -> NodeItem {
    NodeItem {
        name: name.into(),
        pool: None,
        zone: None,
        not_managed_by_mcm: false,
        conditions: vec![],
    }
}

/// Ten thousand million comparisons would not end before the test runner gives up; two look-ups for each node do.
#[test]
fn a_hundred_thousand_nodes_and_machines_are_matched() {
    const NODES: usize = 100_000;
    let names: Vec<String> = (0..NODES)
        .map(|i| format!("shoot--core--crazy-worker-z1-{i:06}"))
        .collect();
    let nodes: Vec<_> = names.iter().map(|name| bare(name)).collect();
    // The other way round, so that no neighbour is the right one.
    let machines: Vec<_> = names
        .iter()
        .rev()
        .map(|name| machine(name, MachinePhase::Other))
        .collect();
    let leases: Vec<_> = names.iter().map(|name| lease(name, Some(0))).collect();
    let index = NodeIndex::new(&nodes, &machines, &ShootSettings::default());
    let mut renewals = Renewals::default();
    renewals.observe(at(0), &leases);
    let listed = ListedLeases { leases, malformed: 0 };
    for second in [10, 20, 30, 40] {
        renewals.observe(at(second), &listed.leases);
    }
    let found = assess(
        &listed,
        &renewals,
        |name| index.exclusion(name),
        Some(&index),
        CONTEXT,
        NOW,
    );
    assert_eq!(found.outcome, Outcome::LeasesExpired);
    assert_eq!(found.evidence.expired as usize, NODES);
}
