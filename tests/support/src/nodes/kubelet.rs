//! One simulated kubelet: it registers its Node, renews its Lease, and posts its conditions when it is not Ready. It
//! runs by itself, or does what a script asks for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::real::readiness;
use crate::wait::BOUND;

/// Where kubelets keep their Leases.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";

/// A kubelet whose renewal failed tries again after this time, then after twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// But after no more than this share of the renew interval: 7 s where that is 10 s.
const LONGEST_PAUSE: f64 = 0.7;

/// A kubelet renews later than its interval by up to this share of it.
const JITTER: f64 = 0.04;

/// Conditions that a healthy kubelet reports as False.
const PROBLEMS: [&str; 4] = [
    "MemoryPressure",
    "DiskPressure",
    "PIDPressure",
    "NetworkUnavailable",
];

#[derive(Debug)]
pub struct Kubelet {
    pub(super) name: String,
    pub(super) zone: String,
    nodes: Api<Node>,
    leases: Api<Lease>,
    interval: Duration,
    /// How far its clock is ahead.
    skew: Mutex<SignedDuration>,
    /// True if the network between this node and the API server is cut.
    cut: AtomicBool,
    /// Held while requests may be under way.
    turn: tokio::sync::Mutex<()>,
}

// === impl Kubelet ===

impl Kubelet {
    /// It renews every `interval`; its Lease lasts four times as long.
    pub fn new(client: &Client, name: &str, zone: &str, interval: Duration) -> Self {
        Self {
            name: name.to_owned(),
            zone: zone.to_owned(),
            nodes: Api::all(client.clone()),
            leases: Api::namespaced(client.clone(), LEASE_NAMESPACE),
            interval,
            skew: Mutex::default(),
            cut: AtomicBool::new(false),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Creates Node and Lease, or renews those that are there.
    pub(super) async fn register(&self) -> anyhow::Result<()> {
        timeout(BOUND, async {
            self.report().await?;
            self.renew().await.map(drop)
        })
        .await??;
        Ok(())
    }

    /// Renews and reports until the task is dropped, for the first time after `wait`.
    pub(super) async fn run(&self, mut wait: Duration) {
        let mut pause = FIRST_PAUSE;
        loop {
            sleep(wait).await;
            if self.turn().await {
                pause = FIRST_PAUSE;
                wait = self.interval.mul_f64(1.0 + rand::random_range(0.0..JITTER));
            } else {
                wait = pause;
                pause = (pause * 2).min(self.interval.mul_f64(LONGEST_PAUSE));
            }
        }
    }

    pub(super) fn set_cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }

    /// Waits until no request from before is under way.
    pub(super) async fn settle(&self) {
        drop(self.turn.lock().await);
    }

    /// Sets its clock ahead of everyone else's (negative: behind).
    pub fn set_clock_skew(&self, skew: SignedDuration) {
        *self.skew.lock() = skew;
    }

    /// Neither request is in the way of the other. False if the renewal must be tried again soon.
    async fn turn(&self) -> bool {
        let _turn = self.turn.lock().await;
        if self.cut.load(Ordering::SeqCst) {
            return true;
        }
        // A kubelet gives a renewal as long as there is between two. A report that fails is made up for by the next.
        let (renewed, _reported) = tokio::join!(
            timeout(self.interval, self.renew()),
            timeout(self.interval, self.report())
        );
        matches!(renewed, Ok(Ok(_)))
    }

    /// Renews its Lease, or creates it, and returns the `renewTime`.
    pub async fn renew(&self) -> kube::Result<Timestamp> {
        let now = self.now();
        let patch = Patch::Merge(json!({"spec": {"renewTime": MicroTime(now)}}));
        match self
            .leases
            .patch(&self.name, &PatchParams::default(), &patch)
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            renewed => return renewed.map(|_| now),
        }
        let lease = decode(json!({
            "metadata": {"name": self.name},
            "spec": {
                "holderIdentity": self.name,
                "leaseDurationSeconds": (self.interval * 4).as_secs().max(1),
                "renewTime": MicroTime(now),
            },
        }))?;
        let created = self.leases.create(&PostParams::default(), &lease).await;
        created.map(|_| now)
    }

    /// Posts its conditions unless it is known to be Ready. Creates its Node if there is none.
    pub async fn report(&self) -> kube::Result<()> {
        let Some(node) = self.nodes.get_opt(&self.name).await? else {
            let node = decode(json!({
                "metadata": {"name": self.name, "labels": {
                    "kubernetes.io/hostname": self.name,
                    "topology.kubernetes.io/zone": self.zone,
                    "worker.gardener.cloud/pool": "worker",
                }},
                "status": {"conditions": self.conditions()},
            }))?;
            return self.nodes.create(&PostParams::default(), &node).await.map(drop);
        };
        if readiness(&node) == "True" {
            return Ok(());
        }
        self.post(node).await
    }

    /// Posts its conditions although nothing has changed.
    pub async fn heartbeat(&self) -> kube::Result<()> {
        loop {
            match self.post(self.nodes.get(&self.name).await?).await {
                // Somebody else has written meanwhile.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                posted => return posted,
            }
        }
    }

    async fn post(&self, node: Node) -> kube::Result<()> {
        let version = node.resource_version();
        let mut conditions = self.conditions();
        let found = node.status.unwrap_or_default().conditions.unwrap_or_default();
        for condition in found {
            if condition.type_ != "Ready" && !PROBLEMS.contains(&condition.type_.as_str()) {
                conditions.push(json!(condition));
            }
        }
        // What somebody else has written meanwhile is read at the next turn.
        let patch = json!({"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let posted = self.nodes.patch_status(&self.name, &params, &patch).await;
        posted.map(drop)
    }

    /// By the clock of the node.
    fn now(&self) -> Timestamp {
        let now = Timestamp::now();
        now.saturating_add(*self.skew.lock()).unwrap_or(now)
    }

    fn conditions(&self) -> Vec<Value> {
        let now = Time(self.now());
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
}

fn decode<K: serde::de::DeserializeOwned>(object: Value) -> kube::Result<K> {
    serde_json::from_value(object).map_err(kube::Error::SerdeError)
}
