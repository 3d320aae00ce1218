//! The script of a history: the events of shoots, their nodes and API servers, and of the probers.

use crate::absence::{Absence, Absent};
use crate::input_changes::InputChanges;
use crate::kubelet::KubeletModel;
use crate::leadership::{terms, watch_gaps};
use crate::network::NetworkPath;
use crate::node_lifecycle::{GracePeriods, NodeActivity, NodeLifecycleModel, ReadyChange, is_unknown};
use crate::node_lifecycle_input::{TimeSpan, last_write};
use crate::random::{Micros, SECOND};
use crate::timeline::{Client, FOREVER, ServerTimeline, frozen_cuts};
use crate::witnesses::SecondWitness;

/// Kubelets and kube-controller-manager run for this long before the first prober starts.
pub(crate) const RUN_UP: Micros = -150 * SECOND;

/// `nodeLeaseFailureFraction` by default, in percent.
pub(crate) const THRESHOLD: usize = 60;

/// A fact about a node that keeps its lease from counting, while it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeFact {
    /// A condition that makes machine-controller-manager replace the node.
    DiskPressure,
    /// machine-controller-manager updates the node in place.
    InPlaceUpdate,
    MachineTerminating,
    MachineFailed,
    /// There is no Machine for the node.
    NoMachine,
    NotManagedByMcm,
    /// Its Machine has no label that names the node. The lease counts all the same.
    MachineWithoutLabel,
}

/// A fact and when it holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FactSpan {
    pub(crate) from: Micros,
    pub(crate) to: Micros,
    pub(crate) fact: NodeFact,
}

impl FactSpan {
    /// Returns true if the node is removed on purpose.
    pub(crate) const fn is_removal(&self) -> bool {
        matches!(self.fact, NodeFact::MachineTerminating | NodeFact::MachineFailed)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct NodeScript {
    pub(crate) kubelet: KubeletModel,
    /// Between the node and the API server.
    pub(crate) cuts: Vec<TimeSpan>,
    pub(crate) created: Micros,
    pub(crate) deleted: Micros,
    /// When it reports a Ready condition for the first time; none if it never does.
    pub(crate) first_report: Option<Micros>,
    pub(crate) facts: Vec<FactSpan>,
    /// The node whose name it has, which was deleted before.
    pub(crate) name_of: Option<usize>,
    /// For how long its Machine is there before it is.
    pub(crate) machine_leads: Micros,
    /// For how long its Lease is there after it.
    pub(crate) lease_stays: Micros,
}

#[derive(Debug, Clone)]
pub(crate) struct ShootScript {
    pub(crate) server: ServerTimeline,
    pub(crate) nodes: Vec<NodeScript>,
    /// Between the seed's lease-probe and the API server.
    pub(crate) prober_cuts: Vec<TimeSpan>,
    /// The same on the way through the external endpoint, where that is configured.
    pub(crate) external_cuts: Option<Vec<TimeSpan>>,
    pub(crate) grace: Micros,
    pub(crate) absences: Vec<Absence>,
    pub(crate) input_changes: InputChanges,
}

/// One history: shoots that are probed by the same process, one process after the other, or by two at a time.
#[derive(Debug, Clone)]
pub(crate) struct History {
    pub(crate) class: &'static str,
    pub(crate) seed: u64,
    pub(crate) length: Micros,
    /// `probeInterval`.
    pub(crate) interval: Micros,
    pub(crate) probers: Vec<TimeSpan>,
    pub(crate) second: Option<SecondWitness>,
    /// When the processes of all probers are stopped.
    pub(crate) stops: Vec<TimeSpan>,
    pub(crate) shoots: Vec<ShootScript>,
}

/// The history of a shoot that is not protected.
#[derive(Debug, Clone)]
pub(crate) struct ShootHistory {
    pub(crate) nodes: Vec<NodeActivity>,
    pub(crate) terms: Vec<TimeSpan>,
    /// By node.
    pub(crate) ready_changes: Vec<Vec<ReadyChange>>,
}

impl NodeScript {
    /// A node that is well from its creation on.
    pub(crate) const fn steady(kubelet: KubeletModel, created: Micros) -> Self {
        Self {
            kubelet,
            cuts: vec![],
            created,
            deleted: FOREVER,
            first_report: Some(created),
            facts: vec![],
            name_of: None,
            machine_leads: 0,
            lease_stays: 0,
        }
    }

    pub(crate) fn exists(&self, at: Micros) -> bool {
        self.created <= at && at < self.deleted
    }

    pub(crate) fn has(&self, fact: NodeFact, at: Micros) -> bool {
        self.facts
            .iter()
            .any(|span| span.fact == fact && span.from <= at && at < span.to)
    }

    fn is_eligible(&self, at: Micros) -> bool {
        let excludes = |span: &FactSpan| span.fact != NodeFact::MachineWithoutLabel;
        let holds = |span: &&FactSpan| span.from <= at && at < span.to;
        self.exists(at) && !self.facts.iter().filter(holds).any(excludes)
    }

    /// A condition that changes is reported at once; facts about machines are not.
    fn condition_changes(&self) -> Vec<Micros> {
        let conditions = self
            .facts
            .iter()
            .filter(|span| matches!(span.fact, NodeFact::DiskPressure | NodeFact::InPlaceUpdate));
        let mut changes: Vec<_> = conditions.flat_map(|span| [span.from, span.to]).collect();
        changes.sort_unstable();
        changes
    }

    fn frozen_at(&self, at: Micros) -> Self {
        let later = |instant: Micros| if instant > at { FOREVER } else { instant };
        let mut frozen = self.clone();
        frozen.cuts = frozen_cuts(&self.cuts, at);
        frozen.kubelet.stops = later(self.kubelet.stops);
        frozen.kubelet.clock.steps.retain(|(from, _)| *from <= at);
        frozen.deleted = later(self.deleted);
        frozen.facts.retain(|span| span.from <= at);
        frozen
    }
}

impl ShootScript {
    /// The same shoot if its network stayed as it is at `at`.
    pub(crate) fn frozen_at(&self, at: Micros) -> Self {
        Self {
            server: self.server.frozen_at(at),
            nodes: self.nodes.iter().map(|node| node.frozen_at(at)).collect(),
            absences: { self.absences.iter() }
                .map(|absence| absence.frozen_at(at))
                .collect(),
            input_changes: self.input_changes.frozen_at(at),
            ..self.clone()
        }
    }

    /// The same, as it looks from outside by a list of what was written until `listed`: the cut of a node has not ended
    /// if no renewal has shown that. But only of a node that was cut off while the API server served for longer than a
    /// connected kubelet can be silent. Where the server was away instead, the server explains the silence.
    pub(crate) fn frozen_as_seen_at(&self, history: &ShootHistory, listed: Micros, at: Micros) -> Self {
        let mut frozen = self.frozen_at(at);
        for (node, happened) in frozen.nodes.iter_mut().zip(&history.nodes) {
            let seen = last_write(&happened.kubelet.writes, listed).map_or(RUN_UP, |write| write.at);
            let cut_off: Micros = { node.cuts.iter() }
                .map(|cut| self.server.served(cut.from.max(seen), cut.to.min(at)))
                .sum();
            if cut_off > node.kubelet.renews_within() {
                let unseen = node.cuts.iter_mut().filter(|cut| cut.to > seen);
                unseen.for_each(|cut| cut.to = FOREVER);
            }
        }
        frozen
    }

    /// The distinct sets of candidates from `from` to `at`.
    pub(crate) fn candidates_between(
        &self,
        history: &ShootHistory,
        from: Micros,
        at: Micros,
    ) -> Vec<Vec<usize>> {
        let facts = self
            .nodes
            .iter()
            .flat_map(|node| &node.facts)
            .flat_map(|span| [span.from, span.to]);
        let lives = self.nodes.iter().flat_map(|node| [node.created, node.deleted]);
        // A node is a candidate from its first renewal on.
        let first_writes = history
            .nodes
            .iter()
            .filter_map(|node| node.kubelet.writes.first());
        let joins = first_writes.map(|write| write.at);
        let changes = facts
            .chain(lives)
            .chain(joins)
            .filter(|change| from < *change && *change < at);
        let mut sets: Vec<_> = changes
            .chain([from, at])
            .map(|instant| self.candidates(history, instant))
            .collect();
        sets.sort_unstable();
        sets.dedup();
        sets
    }

    pub(crate) fn node_path<'a>(&'a self, node: usize) -> NetworkPath<'a> {
        NetworkPath {
            server: &self.server,
            cuts: &self.nodes[node].cuts,
            client: Client::Kubelet(node as u32),
        }
    }

    /// Plays it until `until`; kube-controller-manager keeps its leadership from `keeps_leadership` on.
    pub(crate) fn play(&self, until: Micros, keeps_leadership: Micros) -> ShootHistory {
        let activity = |(i, node): (usize, &NodeScript)| NodeActivity {
            created: node.created,
            deleted: node.deleted,
            first_report: node.first_report,
            condition_changes: node.condition_changes(),
            kubelet: node.kubelet.run(&self.node_path(i), until),
        };
        let mut nodes: Vec<_> = self.nodes.iter().enumerate().map(activity).collect();
        for absence in self
            .absences
            .iter()
            .filter(|absence| absence.absent == Absent::Leases)
        {
            for (_, node) in nodes.iter_mut().enumerate().filter(|(i, _)| absence.hides(*i)) {
                node.kubelet.writes.retain(|write| !absence.contains(write.at));
            }
        }
        let terms = terms(&self.server, RUN_UP, until, keeps_leadership);
        self.history(nodes, terms, until)
    }

    /// The same history for a kube-controller-manager that is started at `at` and leads from then on.
    pub(crate) fn restored_at(&self, history: &ShootHistory, at: Micros, until: Micros) -> ShootHistory {
        self.history(history.nodes.clone(), vec![TimeSpan::new(at, FOREVER)], until)
    }

    fn history(&self, nodes: Vec<NodeActivity>, terms: Vec<TimeSpan>, until: Micros) -> ShootHistory {
        let watch_gaps = watch_gaps(&self.server);
        let terms = self.input_changes.restart(terms);
        let changes = self.input_changes.graces.iter();
        let changes: Vec<_> = changes.map(|change| (change.rolled_out, change.grace)).collect();
        let model = NodeLifecycleModel {
            grace: GracePeriods {
                monitor: self.grace,
                startup: 60 * SECOND,
            },
            monitor_changes: &changes,
            terms: &terms,
            watch_gaps: &watch_gaps,
            seed: self.server.seed,
            until,
        };
        let ready_changes = nodes.iter().map(|node| model.ready_changes(node)).collect();
        ShootHistory {
            nodes,
            terms,
            ready_changes,
        }
    }

    /// The nodes whose leases count at `at`.
    pub(crate) fn candidates(&self, history: &ShootHistory, at: Micros) -> Vec<usize> {
        let counts = |i: &usize| {
            self.nodes[*i].is_eligible(at) && last_write(&history.nodes[*i].kubelet.writes, at).is_some()
        };
        (0..self.nodes.len()).filter(counts).collect()
    }
}

impl ShootHistory {
    /// How many of `nodes` are Unknown at `at`.
    pub(crate) fn unknown(&self, nodes: &[usize], at: Micros) -> usize {
        nodes
            .iter()
            .filter(|node| is_unknown(&self.ready_changes[**node], at))
            .count()
    }
}

/// How many of `candidates` reach this threshold.
pub(crate) fn required(candidates: usize, percent: usize) -> usize {
    (percent * candidates).div_ceil(100).max(1)
}
