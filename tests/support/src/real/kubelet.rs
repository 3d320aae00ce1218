//! One simulated kubelet: it registers its Node, renews its Lease and posts its conditions.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::RwLock;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::{bounded, create_unless_there};

/// Where kubelets keep their Leases.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";

/// A kubelet whose renewal failed tries again after this time, then after twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// But after no more than this share of the renew interval: 7 s where that is 10 s.
const LONGEST_PAUSE: f64 = 0.7;

/// Conditions that a healthy kubelet reports as False.
const PROBLEMS: [&str; 4] = [
    "MemoryPressure",
    "DiskPressure",
    "PIDPressure",
    "NetworkUnavailable",
];

#[derive(Debug)]
pub(super) struct RealKubelet {
    pub(super) name: String,
    pub(super) zone: String,
    nodes: Api<Node>,
    leases: Api<Lease>,
    /// True if the network between this node and the API server is cut. Held during every request, so that no request
    /// is on its way any more when a cut returns.
    cut: RwLock<bool>,
}

impl RealKubelet {
    pub(super) fn new(client: &Client, name: String, zone: String) -> Self {
        Self {
            name,
            zone,
            nodes: Api::all(client.clone()),
            leases: Api::namespaced(client.clone(), LEASE_NAMESPACE),
            cut: RwLock::new(false),
        }
    }

    /// Creates Node and Lease, with a first renewal and first conditions.
    pub(super) async fn register(&self, renew_interval: Duration) -> anyhow::Result<()> {
        let node = json!({
            "metadata": {"name": self.name, "labels": {
                "kubernetes.io/hostname": self.name,
                "topology.kubernetes.io/zone": self.zone,
                "worker.gardener.cloud/pool": "worker",
            }},
        });
        let node: Node = serde_json::from_value(node)?;
        create_unless_there(&self.nodes, &node).await?;
        let lease = json!({
            "metadata": {"name": self.name},
            "spec": {
                "holderIdentity": self.name,
                "leaseDurationSeconds": (renew_interval * 4).as_secs(),
                "renewTime": now_micro(),
            },
        });
        let lease: Lease = serde_json::from_value(lease)?;
        create_unless_there(&self.leases, &lease).await?;
        self.post_conditions().await
    }

    /// Renews and reports until the task is dropped, neither in the way of the other.
    pub(super) async fn run(&self, every: Duration) {
        let first = Instant::now();
        tokio::join!(
            self.keep_renewing(first, every),
            self.keep_reporting(first + every, every),
        );
    }

    async fn keep_renewing(&self, first: Instant, every: Duration) {
        let mut renew = interval_at(first, every);
        // As a kubelet does: what was missed is not made up for.
        renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pause = FIRST_PAUSE;
        loop {
            renew.tick().await;
            let cut = self.cut.read().await;
            if *cut {
                continue;
            }
            // A kubelet gives a renewal as long as there is between two.
            if matches!(timeout(every, self.renew()).await, Ok(Ok(()))) {
                pause = FIRST_PAUSE;
            } else {
                renew.reset_after(pause);
                pause = (pause * 2).min(every.mul_f64(LONGEST_PAUSE));
            }
        }
    }

    async fn keep_reporting(&self, first: Instant, every: Duration) {
        let mut report = interval_at(first, every);
        report.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            report.tick().await;
            let cut = self.cut.read().await;
            if !*cut {
                // One that fails is made up for by the next.
                let _ = timeout(every, self.post_conditions()).await;
            }
        }
    }

    pub(super) async fn set_cut(&self, cut: bool) {
        *self.cut.write().await = cut;
    }

    async fn renew(&self) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"spec": {"renewTime": now_micro()}}));
        bounded(
            "renew a Lease",
            self.leases.patch(&self.name, &PatchParams::default(), &patch),
        )
        .await?;
        Ok(())
    }

    async fn post_conditions(&self) -> anyhow::Result<()> {
        // Strategic, as kubelets do it: conditions merge by type, so those of others stay.
        let patch = Patch::Strategic(json!({"status": {"conditions": conditions()}}));
        bounded(
            "post conditions",
            self.nodes
                .patch_status(&self.name, &PatchParams::default(), &patch),
        )
        .await?;
        Ok(())
    }
}

fn now_micro() -> MicroTime {
    MicroTime(Timestamp::now())
}

fn conditions() -> Vec<Value> {
    let now = Time(Timestamp::now());
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    };
    let problems = PROBLEMS
        .iter()
        .map(|kind| condition(kind, "False", "KubeletHasNoProblem"));
    problems
        .chain([condition("Ready", "True", "KubeletReady")])
        .collect()
}
