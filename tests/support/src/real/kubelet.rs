//! One simulated kubelet: it registers its Node, renews its Lease and posts its conditions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::RwLock;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::fleet::FleetOptions;
use super::{bounded, exists_already};

/// Where kubelets keep their Leases.
pub(super) const LEASE_NAMESPACE: &str = "kube-node-lease";

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
    zone: String,
    nodes: Api<Node>,
    leases: Api<Lease>,
    /// True if the network between this node and the API server is cut. Held during every request, so that no request
    /// is on its way any more when a cut returns.
    cut: RwLock<bool>,
    renewals: AtomicU64,
    failures: AtomicU64,
}

impl RealKubelet {
    pub(super) fn new(client: &Client, name: String, zone: String) -> Self {
        Self {
            name,
            zone,
            nodes: Api::all(client.clone()),
            leases: Api::namespaced(client.clone(), LEASE_NAMESPACE),
            cut: RwLock::new(false),
            renewals: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// Creates Node and Lease, with a first renewal and first conditions.
    pub(super) async fn register(&self, options: &FleetOptions) -> anyhow::Result<()> {
        let node = json!({
            "metadata": {"name": self.name, "labels": {
                "kubernetes.io/hostname": self.name,
                "topology.kubernetes.io/zone": self.zone,
                "worker.gardener.cloud/pool": options.pool,
            }},
        });
        let node: Node = serde_json::from_value(node)?;
        tolerate_existing(bounded("create a Node", self.nodes.create(&PostParams::default(), &node)).await)?;
        let lease = json!({
            "metadata": {"name": self.name},
            "spec": {
                "holderIdentity": self.name,
                "leaseDurationSeconds": options.lease_duration_seconds,
                "renewTime": now_micro(),
            },
        });
        let lease: Lease = serde_json::from_value(lease)?;
        tolerate_existing(
            bounded(
                "create a Lease",
                self.leases.create(&PostParams::default(), &lease),
            )
            .await,
        )?;
        self.post_conditions().await
    }

    /// Renews and reports until the task is dropped, neither in the way of the other. `offset` spreads the kubelets
    /// over the interval.
    pub(super) async fn run(&self, renew_interval: Duration, status_interval: Duration, offset: Duration) {
        let first = Instant::now() + offset;
        tokio::join!(
            self.keep_renewing(first, renew_interval),
            self.keep_reporting(first + status_interval, status_interval),
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
                self.renewals.fetch_add(1, Ordering::Relaxed);
                pause = FIRST_PAUSE;
            } else {
                self.failures.fetch_add(1, Ordering::Relaxed);
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
            if !*cut && !matches!(timeout(every, self.post_conditions()).await, Ok(Ok(()))) {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(super) async fn set_cut(&self, cut: bool) {
        *self.cut.write().await = cut;
    }

    pub(super) fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::Relaxed)
    }

    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
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

/// Two fleets, or one after another, may share a node name.
fn tolerate_existing<T>(answer: anyhow::Result<T>) -> anyhow::Result<()> {
    match answer {
        Err(error) if !exists_already(&error) => Err(error),
        _ => Ok(()),
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
