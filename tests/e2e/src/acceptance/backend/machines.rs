//! A machine-controller-manager on the level of its protocol: it replaces a machine whose node is Unknown for the
//! health timeout, while its Deployment has a pod. What a meltdown costs is counted here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::acceptance::times::Times;
use watchdog_test_support::real::{LEASE_NAMESPACE, RunningKubelets, machine_resource, node_readiness};

/// One look at all machines, with everything that follows.
const STEP_BOUND: Duration = Duration::from_secs(30);

const ZONE: &str = "topology.kubernetes.io/zone";

/// Looks after the machines of one shoot.
pub(super) struct RealMachines {
    shoot: Client,
    machines: Api<DynamicObject>,
    nodes: Arc<RunningKubelets>,
    times: Times,
    /// True if its Deployment has a pod.
    pub(super) running: AtomicBool,
    /// Machines given up and replaced.
    pub(super) replaced: AtomicU64,
}

type Phases = BTreeMap<String, (String, Instant)>;

// === impl RealMachines ===

impl RealMachines {
    pub(super) fn new(
        seed: Client,
        namespace: &str,
        shoot: Client,
        nodes: Arc<RunningKubelets>,
        times: Times,
    ) -> Self {
        Self {
            shoot,
            machines: Api::namespaced_with(seed, namespace, &machine_resource()),
            nodes,
            times,
            running: AtomicBool::new(false),
            replaced: AtomicU64::new(0),
        }
    }

    /// Until it is dropped.
    pub(super) async fn run(self: Arc<Self>) {
        let mut phases = Phases::new();
        loop {
            sleep(self.times.grace / 8).await;
            if self.running.load(Ordering::SeqCst) {
                // An API server that is away is asked again; as it does.
                let _ = timeout(STEP_BOUND, self.step(&mut phases)).await;
            }
        }
    }

    pub(super) async fn all_run(&self) -> anyhow::Result<bool> {
        let machines = self.machines.list(&ListParams::default()).await?;
        Ok(machines.iter().all(|machine| phase(machine) == "Running"))
    }

    async fn step(&self, phases: &mut Phases) -> anyhow::Result<()> {
        let machines = self.machines.list(&ListParams::default()).await?;
        let ready = node_readiness(&self.shoot).await?;
        for machine in machines {
            let (name, phase) = (machine.name_any(), phase(&machine).to_owned());
            let known = phases
                .entry(name.clone())
                .or_insert_with(|| (phase.clone(), Instant::now()));
            if known.0 != phase {
                *known = (phase.clone(), Instant::now());
            }
            let age = known.1.elapsed();
            let node = machine.labels().get("node").cloned().unwrap_or_default();
            let is_ready = ready.get(&node).is_some_and(|status| status == "True");
            match phase.as_str() {
                "Running" if !is_ready => self.set_phase(&name, "Unknown").await?,
                "Unknown" if is_ready => self.set_phase(&name, "Running").await?,
                "Unknown" if age > self.times.machine_health_timeout => {
                    self.replace(&machine, &node).await?;
                }
                "Pending" if age >= self.times.machine_step() => self.join(&machine, &node).await?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Gives a machine up, with its node, and orders another one in its place.
    async fn replace(&self, machine: &DynamicObject, node: &str) -> anyhow::Result<()> {
        self.replaced.fetch_add(1, Ordering::SeqCst);
        let zone = self.zone(node).await;
        self.nodes.stop(node).await;
        let params = DeleteParams::default();
        self.machines.delete(&machine.name_any(), &params).await?;
        // Either may be gone already.
        let _ = Api::<Node>::all(self.shoot.clone()).delete(node, &params).await;
        let leases = Api::<Lease>::namespaced(self.shoot.clone(), LEASE_NAMESPACE);
        let _ = leases.delete(node, &params).await;
        let node = self.nodes.next_name();
        let resource = machine_resource();
        let mut new = DynamicObject::new(&format!("machine-{node}"), &resource)
            .data(json!({"spec": {"nodeTemplate": {"metadata": {"labels": {ZONE: zone}}}}}));
        new.labels_mut().insert("node".to_owned(), node);
        self.machines.create(&PostParams::default(), &new).await?;
        self.set_phase(&new.name_any(), "Pending").await
    }

    /// A new machine's kubelet registers; while it cannot reach the API server it never joins.
    async fn join(&self, machine: &DynamicObject, node: &str) -> anyhow::Result<()> {
        let labels = machine.data.pointer("/spec/nodeTemplate/metadata/labels");
        let zone = labels
            .and_then(|labels| labels.get(ZONE)?.as_str())
            .unwrap_or_default();
        if self.nodes.is_cut(zone).await {
            return Ok(());
        }
        // Registers, and sets the machine's phase.
        self.nodes.start(node, zone).await
    }

    async fn zone(&self, node: &str) -> String {
        let nodes = self.nodes.list().await;
        let found = nodes.into_iter().find(|(name, _)| name == node);
        found.map(|(_, zone)| zone).unwrap_or_default()
    }

    async fn set_phase(&self, name: &str, phase: &str) -> anyhow::Result<()> {
        let status = json!({"status": {"currentStatus": {"phase": phase}}});
        self.machines
            .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(())
    }
}

fn phase(machine: &DynamicObject) -> &str {
    machine
        .data
        .pointer("/status/currentStatus/phase")
        .and_then(|phase| phase.as_str())
        .unwrap_or_default()
}
