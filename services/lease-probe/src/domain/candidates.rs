//! Selects the eligible leases.

use std::collections::HashMap;
use std::sync::Arc;

use watchdog_api::eligibility::ShootSettings;
use watchdog_api::machine::{MachineItem, MachinePhase};
use watchdog_api::node::NodeItem;

/// Why a lease is not eligible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exclusion {
    /// The node is annotated as not managed by machine-controller-manager.
    NotManagedByMcm,
    /// An unhealthy condition of its pool is True: it is being replaced anyway.
    UnhealthyCondition,
    /// The node is being updated in place, or that failed: its kubelet may be silent.
    InPlaceUpdate,
    /// The node has no Machine.
    NoMachine,
    /// Its Machine is Failed.
    MachineFailed,
    /// Its Machine is Terminating.
    MachineTerminating,
    /// The lease is left over: its node is gone, and so is its Machine.
    NoNode,
    /// Its node is gone, and its Machine is there.
    NodeMissing,
    /// The lease never had a renewTime.
    NoRenewTime,
    /// The lease cannot be decoded.
    MalformedLease,
}

impl Exclusion {
    /// For people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotManagedByMcm => "not managed by machine-controller-manager",
            Self::UnhealthyCondition => "with an unhealthy node condition",
            Self::InPlaceUpdate => "in an in-place update",
            Self::NoMachine => "without a Machine",
            Self::MachineFailed => "with a failed Machine",
            Self::MachineTerminating => "with a terminating Machine",
            Self::NoNode => "without a node",
            Self::NodeMissing => "of a node that is missing",
            Self::NoRenewTime => "without renewTime",
            Self::MalformedLease => "malformed",
        }
    }

    /// Returns true if the exclusion can end while the node stays. It does not end a loss.
    #[must_use]
    pub const fn is_temporary(self) -> bool {
        matches!(self, Self::UnhealthyCondition | Self::InPlaceUpdate)
    }

    /// Returns true if a node or Machine is missing and the other one is there: a list may show too little. Nothing
    /// follows from that.
    #[must_use]
    pub const fn is_absence(self) -> bool {
        matches!(self, Self::NoMachine | Self::NodeMissing)
    }
}

/// Exclusions and zones of a shoot's leases, by node name.
#[derive(Debug, Clone, Default)]
pub struct NodeIndex {
    // Also the nodes that only a Machine names.
    nodes: HashMap<Arc<str>, IndexedNode>,
    nothing_left: bool,
}

#[derive(Debug, Clone)]
struct IndexedNode {
    exists: bool,
    exclusion: Option<Exclusion>,
    zone: Option<Arc<str>>,
}

impl NodeIndex {
    /// Matches nodes and machines in time linear in both.
    #[must_use]
    pub fn new(nodes: &[NodeItem], machines: &[MachineItem], settings: &ShootSettings) -> Self {
        let by_provider_id: HashMap<&str, &Arc<str>> = { nodes.iter() }
            .filter_map(|node| Some((node.provider_id.as_deref()?, &node.name)))
            .collect();
        // Of several Machines of one node, one that counts is enough.
        let mut phases: HashMap<&Arc<str>, MachinePhase> = HashMap::with_capacity(machines.len());
        for machine in machines {
            let by_id = || by_provider_id.get(machine.provider_id.as_deref()?).copied();
            if let Some(node) = machine.node.as_ref().or_else(by_id) {
                let phase = phases.entry(node).or_insert(machine.phase);
                if machine.phase == MachinePhase::Other {
                    *phase = MachinePhase::Other;
                }
            }
        }
        let lacks_machine = |node: &NodeItem| !node.not_managed_by_mcm && !phases.contains_key(&node.name);
        let nothing_left = machines
            .iter()
            .all(|machine| machine.phase != MachinePhase::Other)
            && !nodes.iter().any(lacks_machine);
        let of_machines = phases.iter().map(|(name, phase)| {
            let missing = IndexedNode {
                exists: false,
                exclusion: by_machine(Some(*phase)).or(Some(Exclusion::NodeMissing)),
                zone: None,
            };
            (Arc::clone(name), missing)
        });
        let existing = nodes.iter().map(|node| {
            let existing = IndexedNode {
                exists: true,
                exclusion: exclusion(node, phases.get(&node.name).copied(), settings),
                zone: node.zone.clone(),
            };
            (node.name.clone(), existing)
        });
        Self {
            nodes: of_machines.chain(existing).collect(),
            nothing_left,
        }
    }

    /// Returns true if there is nothing to protect: no Machine but Failed and Terminating ones, and no node that lacks
    /// one.
    #[must_use]
    pub const fn nothing_left(&self) -> bool {
        self.nothing_left
    }

    /// The nodes that count.
    pub fn eligible(&self) -> impl Iterator<Item = &Arc<str>> {
        let eligible = self.nodes.iter().filter(|(_, node)| node.exclusion.is_none());
        eligible.map(|(name, _)| name)
    }

    /// Number of nodes, those included that only a Machine names.
    #[must_use]
    pub(super) fn remembered(&self) -> usize {
        self.nodes.len()
    }

    /// Number of nodes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.nodes.values().filter(|node| node.exists).count()
    }

    /// Returns true if there is a node of this name.
    #[must_use]
    pub fn knows(&self, lease: &str) -> bool {
        self.nodes.get(lease).is_some_and(|node| node.exists)
    }

    /// Why the lease of this name does not count; none when it does.
    #[must_use]
    pub fn exclusion(&self, lease: &str) -> Option<Exclusion> {
        let known = self.nodes.get(lease);
        known.map_or(Some(Exclusion::NoNode), |node| node.exclusion)
    }

    /// Zone of the node; empty when unknown.
    #[must_use]
    pub fn zone(&self, lease: &str) -> Arc<str> {
        let node = self.nodes.get(lease);
        node.and_then(|node| node.zone.clone()).unwrap_or_default()
    }
}

fn exclusion(node: &NodeItem, machine: Option<MachinePhase>, settings: &ShootSettings) -> Option<Exclusion> {
    if node.not_managed_by_mcm {
        return Some(Exclusion::NotManagedByMcm);
    }
    let is_unhealthy = |kind: &str| settings.is_unhealthy_condition(node.pool.as_deref(), kind);
    if node.true_conditions().any(is_unhealthy) {
        return Some(Exclusion::UnhealthyCondition);
    }
    if node.in_place_update() {
        return Some(Exclusion::InPlaceUpdate);
    }
    by_machine(machine)
}

const fn by_machine(machine: Option<MachinePhase>) -> Option<Exclusion> {
    match machine {
        None => Some(Exclusion::NoMachine),
        Some(MachinePhase::Failed) => Some(Exclusion::MachineFailed),
        Some(MachinePhase::Terminating) => Some(Exclusion::MachineTerminating),
        Some(MachinePhase::Other) => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use watchdog_api::node::NodeCondition;

    use super::*;

    pub(in crate::domain) fn node(name: &str) -> NodeItem {
        NodeItem {
            name: name.into(),
            pool: Some("pool".into()),
            zone: Some("a".into()),
            provider_id: None,
            not_managed_by_mcm: false,
            conditions: vec![],
        }
    }

    pub(in crate::domain) fn condition(kind: &str, status: &str, reason: &str) -> NodeCondition {
        NodeCondition {
            kind: kind.into(),
            status: status.into(),
            reason: reason.into(),
        }
    }

    pub(in crate::domain) fn machine(node: &str, phase: MachinePhase) -> MachineItem {
        MachineItem {
            name: format!("machine-{node}").into(),
            node: Some(node.into()),
            provider_id: None,
            phase,
        }
    }

    /// Nodes that are excluded for these reasons.
    pub(in crate::domain) fn index_of<const N: usize>(
        exclusions: [(&str, Option<Exclusion>); N],
    ) -> NodeIndex {
        let indexed = |(name, exclusion): (&str, Option<Exclusion>)| {
            let node = IndexedNode {
                exists: true,
                exclusion,
                zone: None,
            };
            (Arc::from(name), node)
        };
        NodeIndex {
            nodes: exclusions.into_iter().map(indexed).collect(),
            nothing_left: false,
        }
    }

    /// machine-controller-manager may have made the successor already.
    #[test]
    fn of_two_machines_of_a_node_one_that_counts_is_enough() {
        let machines = [MachinePhase::Terminating, MachinePhase::Other].map(|phase| machine("n", phase));
        let index = NodeIndex::new(&[node("n")], &machines, &ShootSettings::default());
        assert_eq!(index.exclusion("n"), None);
    }

    #[test]
    fn the_unhealthy_conditions_of_a_pool_replace_the_default_ones() {
        let default = ShootSettings::default();
        let own = ShootSettings {
            unhealthy_conditions: [("pool".into(), vec!["Overheated".into()])].into(),
            ..ShootSettings::default()
        };
        let excluded = |settings| {
            ["DiskPressure", "Overheated"].map(|kind| {
                let node = NodeItem {
                    conditions: vec![condition(kind, "True", "")],
                    ..node("n")
                };
                let index = NodeIndex::new(&[node], &[machine("n", MachinePhase::Other)], settings);
                index.exclusion("n") == Some(Exclusion::UnhealthyCondition)
            })
        };
        assert_eq!(excluded(&default), [true, false]);
        assert_eq!(excluded(&own), [false, true]);
    }
}
