//! The node lifecycle controller of kube-controller-manager: when it sets a node's condition Ready to Unknown.
//!
//! Written after pkg/controller/nodelifecycle/node_lifecycle_controller.go of Kubernetes 1.36 (`tryUpdateNodeHealth`).
//! A pure fold over what the controller sees.

use crate::node_lifecycle_input::{KubeletHistory, TimeSpan, last_write};
use crate::random::{MILLISECOND, Micros, Random, SECOND};

/// `--node-monitor-period`.
const MONITOR_PERIOD: Micros = 5 * SECOND;

/// How long a look at all nodes takes. The period counts from its end (k8s.io/apimachinery, `wait.UntilWithContext`),
/// so a grace period of 40 s is over at the eighth look after a renewal was seen, not at the ninth. Measured with
/// twelve nodes: 1.1 ms.
const LOOK_TAKES: (Micros, Micros) = (MILLISECOND, 20 * MILLISECOND);

/// `nodeStatusReportFrequency` of the kubelet: a status that did not change is written so often.
const STATUS_REPORT_FREQUENCY: Micros = 300 * SECOND;

/// From a write to the caches of kube-controller-manager.
const WATCH_LATENCY: Micros = 5 * MILLISECOND;

/// The configured times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GracePeriods {
    /// `--node-monitor-grace-period`.
    pub(crate) monitor: Micros,
    /// `--node-startup-grace-period`, for nodes that never reported a Ready condition.
    pub(crate) startup: Micros,
}

/// One node, as it happened.
#[derive(Debug, Clone)]
pub(crate) struct NodeActivity {
    pub(crate) created: Micros,
    pub(crate) deleted: Micros,
    /// When it reported a Ready condition for the first time; none if it never does.
    pub(crate) first_report: Option<Micros>,
    /// When one of its conditions changed: it reports that as soon as it can.
    pub(crate) condition_changes: Vec<Micros>,
    pub(crate) kubelet: KubeletHistory,
}

/// Ready turned Unknown, or something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadyChange {
    pub(crate) at: Micros,
    pub(crate) unknown: bool,
}

/// The controller's settings and input.
#[derive(Debug, Clone)]
pub(crate) struct NodeLifecycleModel<'a> {
    pub(crate) grace: GracePeriods,
    /// Other `--node-monitor-grace-period`s, and when a process with each of them leads, in order.
    pub(crate) monitor_changes: &'a [(Micros, Micros)],
    /// When a process leads.
    pub(crate) terms: &'a [TimeSpan],
    /// When nothing of what happens reaches the caches; all of it does at the end.
    pub(crate) watch_gaps: &'a [TimeSpan],
    /// Moves the monitor's phase, and makes some looks take longer than others.
    pub(crate) seed: u64,
    pub(crate) until: Micros,
}

/// `nodeHealthData`.
#[derive(Debug, Clone, Copy)]
struct NodeHealth {
    /// By the controller's clock.
    probe_timestamp: Micros,
    /// The Ready condition's lastHeartbeatTime; none without a Ready condition.
    heartbeat: Option<Micros>,
    /// The renewTime of the Lease that is known.
    lease: Option<Micros>,
}

impl NodeLifecycleModel<'_> {
    /// When the node's Ready condition turned Unknown and back, in order.
    pub(crate) fn ready_changes(&self, node: &NodeActivity) -> Vec<ReadyChange> {
        let mut fold = NodeFold::new(self, node);
        for (i, term) in self.terms.iter().enumerate() {
            let mut random = Random::stream(self.seed, i as u64);
            // A process knows nothing when it starts.
            fold.health = None;
            let mut tick = term.from + random.between(0, SECOND);
            while tick < term.to.min(self.until).min(node.deleted) {
                if tick >= node.created {
                    fold.monitor(tick);
                }
                tick += MONITOR_PERIOD + random.between(LOOK_TAKES.0, LOOK_TAKES.1);
            }
        }
        fold.report_until(self.until);
        fold.changes
    }

    /// By when what the caches show at `at` was written.
    fn seen_at(&self, at: Micros) -> Micros {
        let gap = self.watch_gaps.iter().filter(|gap| gap.contains(at));
        gap.map(|gap| gap.from).min().unwrap_or(at) - WATCH_LATENCY
    }

    fn monitor_grace(&self, at: Micros) -> Micros {
        let last = self.monitor_changes.iter().rfind(|(from, _)| *from <= at);
        last.map_or(self.grace.monitor, |(_, grace)| *grace)
    }

    fn can_write(&self, at: Micros) -> bool {
        !self.watch_gaps.iter().any(|gap| gap.contains(at))
    }
}

struct NodeFold<'a> {
    model: &'a NodeLifecycleModel<'a>,
    node: &'a NodeActivity,
    health: Option<NodeHealth>,
    /// The heartbeats of the Ready condition on the server, in order.
    heartbeats: Vec<Micros>,
    unknown: bool,
    /// Of the kubelet's reports, those that were looked at.
    reported: usize,
    changes: Vec<ReadyChange>,
}

impl<'a> NodeFold<'a> {
    fn new(model: &'a NodeLifecycleModel<'a>, node: &'a NodeActivity) -> Self {
        Self {
            model,
            node,
            health: None,
            heartbeats: Vec::new(),
            unknown: false,
            reported: 0,
            changes: Vec::new(),
        }
    }

    /// The kubelet's writes of its status up to `until`.
    fn report_until(&mut self, until: Micros) {
        while let Some(at) = self
            .node
            .kubelet
            .reports
            .get(self.reported)
            .copied()
            .filter(|at| *at <= until)
        {
            self.reported += 1;
            let Some(first) = self.node.first_report.filter(|first| *first <= at) else {
                continue;
            };
            let last = self.heartbeats.last().copied();
            let due = last.is_none_or(|last| at - last >= STATUS_REPORT_FREQUENCY);
            let since = last.unwrap_or(first);
            let changed = self
                .node
                .condition_changes
                .iter()
                .any(|change| since < *change && *change <= at);
            if self.unknown || due || changed {
                self.heartbeats.push(at);
                if std::mem::take(&mut self.unknown) {
                    self.changes.push(ReadyChange { at, unknown: false });
                }
            }
        }
    }

    /// One look at the node: `tryUpdateNodeHealth`.
    fn monitor(&mut self, now: Micros) {
        self.report_until(now);
        let seen = self.model.seen_at(now);
        let heartbeat = {
            let by_then = self.heartbeats.partition_point(|at| *at <= seen);
            self.heartbeats[..by_then].last().copied()
        };
        let renew_time = last_write(&self.node.kubelet.writes, seen).map(|write| write.renew_time);
        let known_lease = self.health.and_then(|health| health.lease);
        let anew = NodeHealth {
            probe_timestamp: now,
            heartbeat,
            lease: None,
        };
        let mut health = match self.health {
            // Never reported: since its creation.
            None if heartbeat.is_none() => NodeHealth {
                probe_timestamp: self.node.created,
                ..anew
            },
            Some(known) if known.heartbeat == heartbeat => known,
            // Seen for the first time, or a new heartbeat; the Lease that was known is forgotten with it.
            _ => anew,
        };
        if let Some(renewed) = renew_time.filter(|renewed| known_lease.is_none_or(|known| known < *renewed)) {
            health.lease = Some(renewed);
            health.probe_timestamp = now;
        }
        let grace = match heartbeat {
            Some(_) => self.model.monitor_grace(now),
            None => self.model.grace.startup,
        };
        // It writes the version that it sees: the API server refuses that if the kubelet has reported since.
        let is_current = heartbeat == self.heartbeats.last().copied();
        let is_over = now > health.probe_timestamp + grace;
        if is_over && is_current && !self.unknown && self.model.can_write(now) {
            self.unknown = true;
            self.changes.push(ReadyChange {
                at: now,
                unknown: true,
            });
            health.lease = renew_time;
            if heartbeat.is_none() {
                // The condition that it writes has the creation of the node as its heartbeat.
                self.heartbeats.push(self.node.created);
                health.heartbeat = Some(self.node.created);
            }
        }
        self.health = Some(health);
    }
}

/// Returns true if Ready is Unknown at `at`.
pub(crate) fn is_unknown(changes: &[ReadyChange], at: Micros) -> bool {
    let by_then = changes.partition_point(|change| change.at <= at);
    changes[..by_then].last().is_some_and(|change| change.unknown)
}
