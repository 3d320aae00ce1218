//! A machine-controller-manager on the level of its protocol: it replaces a machine whose node is Unknown for the
//! health timeout, while its Deployment has a pod. What a meltdown costs is counted here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use tokio::time::{Instant, sleep, timeout};

use super::fleet::ZONE;
use super::{LEASE_NAMESPACE, RunningKubelets};
use crate::real::{machine_resource, node_readiness};

/// One look at all machines, with everything that follows.
const STEP_BOUND: Duration = Duration::from_secs(30);

/// How fast machines come and go.
#[derive(Clone, Copy, Debug)]
pub struct MachineTimes {
    /// Between two looks at all machines.
    pub period: Duration,
    /// From the order of a machine until its kubelet starts, at least.
    pub creation: Duration,
    /// A machine whose node is Unknown for this long is replaced.
    pub health_timeout: Duration,
}

/// Looks after the machines of one shoot.
pub struct Machines {
    shoot: Client,
    machines: Api<DynamicObject>,
    nodes: Arc<RunningKubelets>,
    times: MachineTimes,
    /// True if its Deployment has a pod.
    pub running: AtomicBool,
    /// Machines given up and replaced.
    pub replaced: AtomicU64,
}

type Phases = BTreeMap<String, (String, Instant)>;

// === impl Machines ===

impl Machines {
    pub fn new(
        seed: &Client,
        namespace: &str,
        shoot: &Client,
        nodes: Arc<RunningKubelets>,
        times: MachineTimes,
    ) -> Self {
        Self {
            shoot: shoot.clone(),
            machines: Api::namespaced_with(seed.clone(), namespace, &machine_resource()),
            nodes,
            times,
            running: AtomicBool::new(false),
            replaced: AtomicU64::new(0),
        }
    }

    /// Until it is dropped.
    pub async fn run(self: Arc<Self>) {
        let mut phases = Phases::new();
        loop {
            sleep(self.times.period).await;
            if self.running.load(Ordering::SeqCst) {
                // An API server that is away is asked again; as it does.
                let _ = timeout(STEP_BOUND, self.step(&mut phases)).await;
            }
        }
    }

    /// True if every machine runs.
    pub async fn all_run(&self) -> anyhow::Result<bool> {
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
            let is_ready = ready.get(&name).is_some_and(|status| status == "True");
            let zone = zone(&machine);
            match phase.as_str() {
                "Running" if !is_ready => self.nodes.set_machine(&name, zone, "Unknown").await?,
                "Unknown" if is_ready => self.nodes.set_machine(&name, zone, "Running").await?,
                "Unknown" if age > self.times.health_timeout => self.replace(&name, zone).await?,
                // While its kubelet cannot reach the API server it never joins.
                "Pending" if age >= self.times.creation && !self.nodes.is_cut(&name, zone) => {
                    self.nodes.start(&name, zone).await?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Gives a machine up, with its node, and orders another one in its place.
    async fn replace(&self, name: &str, zone: &str) -> anyhow::Result<()> {
        self.replaced.fetch_add(1, Ordering::SeqCst);
        self.nodes.stop(name);
        let params = DeleteParams::default();
        self.machines.delete(name, &params).await?;
        // Either may be gone already.
        let _ = Api::<Node>::all(self.shoot.clone()).delete(name, &params).await;
        let leases = Api::<Lease>::namespaced(self.shoot.clone(), LEASE_NAMESPACE);
        let _ = leases.delete(name, &params).await;
        let next = self.nodes.next_name();
        self.nodes.set_machine(&next, zone, "Pending").await
    }
}

fn phase(machine: &DynamicObject) -> &str {
    let phase = machine.data.pointer("/status/currentStatus/phase");
    phase.and_then(|phase| phase.as_str()).unwrap_or_default()
}

fn zone(machine: &DynamicObject) -> &str {
    let labels = machine.data.pointer("/spec/nodeTemplate/metadata/labels");
    let zone = labels.and_then(|labels| labels.get(ZONE)?.as_str());
    zone.unwrap_or_default()
}
