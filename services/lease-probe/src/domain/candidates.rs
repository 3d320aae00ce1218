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
    /// No Machine stands for the node.
    NoMachine,
    /// Its Machine is Failed.
    MachineFailed,
    /// Its Machine is Terminating.
    MachineTerminating,
    /// The lease is left over: its node is gone.
    NoNode,
    /// The lease has no renewTime.
    NoRenewTime,
    /// The lease cannot be decoded.
    MalformedLease,
}

impl Exclusion {
    /// Returns true if the exclusion can end while the node stays. It is then no evidence about the node's connection.
    #[must_use]
    pub const fn is_temporary(self) -> bool {
        matches!(self, Self::UnhealthyCondition | Self::InPlaceUpdate)
    }
}

/// Exclusions and zones of a shoot's leases, by node name.
#[derive(Debug, Clone, Default)]
pub struct NodeIndex {
    nodes: HashMap<Arc<str>, IndexedNode>,
}

#[derive(Debug, Clone)]
struct IndexedNode {
    exclusion: Option<Exclusion>,
    zone: Option<Arc<str>>,
}

impl NodeIndex {
    /// Matches nodes and machines in time linear in both.
    #[must_use]
    pub fn new(nodes: &[NodeItem], machines: &[MachineItem], settings: &ShootSettings) -> Self {
        // Of several machines for one node, one that stands for it is enough.
        let mut phases: HashMap<&str, MachinePhase> = HashMap::with_capacity(machines.len());
        for machine in machines {
            if let Some(node) = &machine.node {
                let phase = phases.entry(node).or_insert(machine.phase);
                if machine.phase == MachinePhase::Other {
                    *phase = MachinePhase::Other;
                }
            }
        }
        let entry = |node: &NodeItem| IndexedNode {
            exclusion: exclusion(node, phases.get(&*node.name).copied(), settings),
            zone: node.zone.clone(),
        };
        Self {
            nodes: nodes
                .iter()
                .map(|node| (node.name.clone(), entry(node)))
                .collect(),
        }
    }

    /// Number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns true if there are no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns true if there is a node of this name.
    #[must_use]
    pub fn knows(&self, lease: &str) -> bool {
        self.nodes.contains_key(lease)
    }

    /// Why the lease of this name does not count; none when it does.
    #[must_use]
    pub fn exclusion(&self, lease: &str) -> Option<Exclusion> {
        self.nodes
            .get(lease)
            .map_or(Some(Exclusion::NoNode), |entry| entry.exclusion)
    }

    /// Zone of the node; empty when unknown.
    #[must_use]
    pub fn zone(&self, lease: &str) -> Arc<str> {
        self.nodes
            .get(lease)
            .and_then(|entry| entry.zone.clone())
            .unwrap_or_else(|| "".into())
    }
}

fn exclusion(node: &NodeItem, machine: Option<MachinePhase>, settings: &ShootSettings) -> Option<Exclusion> {
    if node.not_managed_by_mcm {
        return Some(Exclusion::NotManagedByMcm);
    }
    let pool = node.pool.as_deref();
    if node
        .true_conditions()
        .any(|condition| settings.is_unhealthy_condition(pool, condition))
    {
        return Some(Exclusion::UnhealthyCondition);
    }
    if node.in_place_update() {
        return Some(Exclusion::InPlaceUpdate);
    }
    match machine {
        None => Some(Exclusion::NoMachine),
        Some(MachinePhase::Failed) => Some(Exclusion::MachineFailed),
        Some(MachinePhase::Terminating) => Some(Exclusion::MachineTerminating),
        Some(MachinePhase::Other) => None,
    }
}

#[cfg(test)]
mod tests {
    use watchdog_api::node::NodeCondition;

    use super::*;

    fn node(name: &str) -> NodeItem {
        NodeItem {
            name: name.into(),
            pool: Some("pool".into()),
            zone: Some("a".into()),
            not_managed_by_mcm: false,
            conditions: vec![],
        }
    }

    fn condition(kind: &str, status: &str, reason: &str) -> NodeCondition {
        NodeCondition {
            kind: kind.into(),
            status: status.into(),
            reason: reason.into(),
        }
    }

    fn machine(node: &str, phase: MachinePhase) -> MachineItem {
        MachineItem {
            name: format!("machine-{node}").into(),
            node: Some(node.into()),
            phase,
        }
    }

    #[test]
    fn every_filter_alone() {
        let settings = ShootSettings::default();
        let own = ShootSettings {
            unhealthy_conditions: [("pool".to_owned(), vec!["MemoryPressure".to_owned()])].into(),
            ..Default::default()
        };
        let with = |conditions| NodeItem {
            conditions,
            ..node("n")
        };
        let running = || vec![machine("n", MachinePhase::Other)];
        let rows: Vec<(NodeItem, Vec<MachineItem>, &ShootSettings, Option<Exclusion>)> = vec![
            (node("n"), running(), &settings, None),
            (
                NodeItem {
                    not_managed_by_mcm: true,
                    ..node("n")
                },
                running(),
                &settings,
                Some(Exclusion::NotManagedByMcm),
            ),
            (
                with(vec![condition("DiskPressure", "True", "")]),
                running(),
                &settings,
                Some(Exclusion::UnhealthyCondition),
            ),
            (
                with(vec![condition("DiskPressure", "Unknown", "")]),
                running(),
                &settings,
                None,
            ),
            (
                with(vec![condition("MemoryPressure", "True", "")]),
                running(),
                &settings,
                None,
            ),
            (
                with(vec![condition("MemoryPressure", "True", "")]),
                running(),
                &own,
                Some(Exclusion::UnhealthyCondition),
            ),
            (
                with(vec![condition("DiskPressure", "True", "")]),
                running(),
                &own,
                None,
            ),
            (
                with(vec![condition("InPlaceUpdate", "True", "ReadyForUpdate")]),
                running(),
                &settings,
                Some(Exclusion::InPlaceUpdate),
            ),
            (
                with(vec![condition("InPlaceUpdate", "True", "UpdateFailed")]),
                running(),
                &settings,
                Some(Exclusion::InPlaceUpdate),
            ),
            (
                with(vec![condition("InPlaceUpdate", "True", "UpdateSuccessful")]),
                running(),
                &settings,
                None,
            ),
            (node("n"), vec![], &settings, Some(Exclusion::NoMachine)),
            (
                node("n"),
                vec![machine("other", MachinePhase::Other)],
                &settings,
                Some(Exclusion::NoMachine),
            ),
            (
                node("n"),
                vec![machine("n", MachinePhase::Failed)],
                &settings,
                Some(Exclusion::MachineFailed),
            ),
            (
                node("n"),
                vec![machine("n", MachinePhase::Terminating)],
                &settings,
                Some(Exclusion::MachineTerminating),
            ),
            (
                node("n"),
                vec![
                    machine("n", MachinePhase::Terminating),
                    machine("n", MachinePhase::Other),
                ],
                &settings,
                None,
            ),
        ];
        for (node, machines, settings, expected) in rows {
            let index = NodeIndex::new(std::slice::from_ref(&node), &machines, settings);
            assert_eq!(index.exclusion("n"), expected, "{node:?} {machines:?}");
        }
    }

    #[test]
    fn a_lease_without_node_does_not_count() {
        let index = NodeIndex::new(&[], &[], &ShootSettings::default());
        assert_eq!(index.exclusion("gone"), Some(Exclusion::NoNode));
    }
}
