//! Nodes that renew and report by a script, on a real API server.

use std::time::Duration;

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use watchdog_test_support::nodes::Kubelet;
use watchdog_test_support::real::NodeRecorder;
use watchdog_test_support::wait;

use crate::node_lifecycle::NodeActivity;
use crate::node_lifecycle_input::{KubeletHistory, LeaseWrite};
use crate::random::Micros;

/// `--node-monitor-period`.
const MONITOR_PERIOD: Duration = Duration::from_secs(5);

/// Of all nodes.
const ZONE: &str = "zone-a";

/// Of a kubelet. A script has its own times; the duration of a Lease follows from it.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);

/// When all scripts are over, in seconds: the last transition is due at 95 s at the latest.
pub(super) const END: i64 = 106;

/// The behaviour of a node, and what kube-controller-manager should conclude. Seconds since the beginning.
pub(super) struct NodeScript {
    pub(super) name: &'static str,
    joins: i64,
    reports_ready: bool,
    renewals: Vec<i64>,
    /// How far the node's clock is ahead at a time.
    clock: fn(i64) -> i64,
    /// Heartbeats of the status although nothing changed.
    heartbeats: Vec<i64>,
    /// Of the Ready condition. Without this, a model and a recorder that see nothing would agree.
    pub(super) expected: &'static [Ready],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    Unknown,
    Back,
}

impl NodeScript {
    fn new(name: &'static str, renewals: Vec<i64>, expected: &'static [Ready]) -> Self {
        Self {
            name,
            joins: 0,
            reports_ready: true,
            renewals,
            clock: |_| 0,
            heartbeats: Vec::new(),
            expected,
        }
    }

    fn clock(self, clock: fn(i64) -> i64) -> Self {
        Self { clock, ..self }
    }
}

fn every_ten(from: i64, to: i64) -> Vec<i64> {
    (from..=to).step_by(10).collect()
}

/// Renews every 10 s, except between `from` and `to`.
fn with_gap(from: i64, to: i64) -> Vec<i64> {
    [every_ten(0, from), every_ten(to, END)].concat()
}

/// No outcome depends on the phase of the monitor: it sees a renewal up to 5 s late, so a node turns Unknown between 40
/// s and 45 s after its last renewal.
pub(super) fn scripts() -> Vec<NodeScript> {
    use Ready::{Back, Unknown};
    vec![
        NodeScript::new("steady", every_ten(0, END), &[]),
        NodeScript::new("stops", every_ten(0, 20), &[Unknown]),
        NodeScript::new("gap-30s", with_gap(20, 50), &[]),
        NodeScript::new("gap-36s", with_gap(20, 56), &[]),
        NodeScript::new("gap-46s", with_gap(20, 66), &[Unknown, Back]),
        NodeScript::new("clock-ahead-stops", every_ten(0, 20), &[Unknown]).clock(|_| 60),
        NodeScript::new("clock-behind", every_ten(0, END), &[]).clock(|_| -60),
        // It renews all the time, but no renewTime is later than the one of 20 s.
        NodeScript::new("clock-set-back", every_ten(0, END), &[Unknown, Back])
            .clock(|at| if at < 30 { 0 } else { -90 }),
        NodeScript {
            // Were it alone when kube-controller-manager looks, the whole zone would count as disrupted, and the clocks
            // of all nodes would start anew when the next one is there.
            joins: 1,
            reports_ready: false,
            ..NodeScript::new("never-reported", Vec::new(), &[Unknown])
        },
        NodeScript {
            joins: 30,
            ..NodeScript::new("joins-late", every_ten(30, 40), &[Unknown])
        },
        NodeScript {
            heartbeats: vec![45],
            ..NodeScript::new("stops-then-heartbeat", every_ten(0, 20), &[Unknown])
        },
        NodeScript::new("every-35s", (0..=END).step_by(35).collect(), &[]),
    ]
}

/// Times as the model counts them.
#[derive(Clone, Copy)]
pub(super) struct Schedule {
    began: Timestamp,
    began_at: Instant,
}

impl Schedule {
    pub(super) fn now(self) -> Micros {
        self.micros(Timestamp::now())
    }

    pub(super) fn micros(self, at: Timestamp) -> Micros {
        at.as_microsecond() - self.began.as_microsecond()
    }

    pub(super) async fn wait_for(self, second: i64) {
        sleep_until(self.began_at + Duration::from_secs(second.unsigned_abs())).await;
    }
}

/// A schedule whose whole fives of seconds are half a monitor period away from the looks of kube-controller-manager, so
/// that none of them sees half of what is written at the same time. The look shows: it removes the taint from a ready
/// node (`processTaintBaseEviction`), which nothing else does.
pub(super) async fn between_two_looks(client: &Client) -> anyhow::Result<Schedule> {
    const NAME: &str = "metronome";
    let nodes: Api<Node> = Api::all(client.clone());
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"});
    let tainted = Patch::Merge(json!({"spec": {"taints": [taint]}}));
    Kubelet::new(client, NAME, ZONE, RENEW_INTERVAL).report().await?;
    nodes.patch(NAME, &PatchParams::default(), &tainted).await?;
    wait::until_true("the monitor looks at a node", wait::BOUND, || async {
        let taints = nodes.get(NAME).await?.spec.and_then(|spec| spec.taints);
        Ok(taints.is_none_or(|taints| taints.iter().all(|taint| taint.effect != "NoExecute")))
    })
    .await?;
    let half = MONITOR_PERIOD / 2;
    nodes.delete(NAME, &DeleteParams::default()).await?;
    Ok(Schedule {
        began: Timestamp::now() + half,
        began_at: Instant::now() + half,
    })
}

/// A kubelet that does what its script says and keeps account of it.
pub(super) struct ScriptedKubelet<'a> {
    script: &'a NodeScript,
    nodes: Api<Node>,
    kubelet: Kubelet,
    recorder: &'a NodeRecorder,
}

impl<'a> ScriptedKubelet<'a> {
    pub(super) fn new(client: &Client, script: &'a NodeScript, recorder: &'a NodeRecorder) -> Self {
        Self {
            script,
            nodes: Api::all(client.clone()),
            kubelet: Kubelet::new(client, script.name, ZONE, RENEW_INTERVAL),
            recorder,
        }
    }

    pub(super) async fn run(&self, schedule: Schedule) -> anyhow::Result<NodeActivity> {
        let script = self.script;
        schedule.wait_for(script.joins).await;
        let created = schedule.micros(self.register().await?);
        let registered = script.reports_ready.then(|| schedule.now());
        let mut activity = NodeActivity {
            created,
            deleted: Micros::MAX,
            first_report: registered,
            condition_changes: Vec::new(),
            kubelet: KubeletHistory {
                writes: Vec::new(),
                reports: registered.into_iter().collect(),
            },
        };
        let renewals = script.renewals.iter().map(|at| (*at, true));
        let heartbeats = script.heartbeats.iter().map(|at| (*at, false));
        let mut steps: Vec<_> = renewals.chain(heartbeats).collect();
        steps.sort_unstable();
        for (at, is_renewal) in steps {
            schedule.wait_for(at).await;
            if is_renewal {
                let skew = SignedDuration::from_secs((script.clock)(at));
                self.kubelet.set_clock_skew(skew);
                let renew_time = schedule.micros(self.kubelet.renew().await?);
                let at = schedule.now();
                activity.kubelet.writes.push(LeaseWrite { at, renew_time });
            }
            // A kubelet reports when it finds that its conditions are not what it reported last.
            if !is_renewal || self.is_unknown() {
                self.kubelet.heartbeat().await?;
                let reported = schedule.now();
                activity.kubelet.reports.push(reported);
                if !is_renewal {
                    activity.condition_changes.push(reported);
                }
            }
        }
        Ok(activity)
    }

    /// Creates the node, and returns the time of its creation, in whole seconds, from which the start-up grace period
    /// counts.
    async fn register(&self) -> anyhow::Result<Timestamp> {
        if self.script.reports_ready {
            self.kubelet.report().await?;
        } else {
            let silent = serde_json::from_value(json!({"metadata": {"name": self.script.name}}))?;
            self.nodes.create(&PostParams::default(), &silent).await?;
        }
        let created = self
            .nodes
            .get(self.script.name)
            .await?
            .metadata
            .creation_timestamp;
        let created = created.context("a Node without a creationTimestamp")?;
        Ok(created.0)
    }

    fn is_unknown(&self) -> bool {
        let changes = self.recorder.transitions();
        let last = changes.iter().rfind(|change| change.node == self.script.name);
        last.is_some_and(|change| change.ready == "Unknown")
    }
}
