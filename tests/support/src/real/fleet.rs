//! The nodes of a shoot: simulated kubelets that can be cut off, and their Machines on the seed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use futures::future::join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::json;
use tokio::task::JoinSet;

use super::kubelet::{LEASE_NAMESPACE, RealKubelet};
use super::{bounded, create_namespace, create_unless_there, machine_resource};

/// Requests at the same time while a fleet registers; the API server works on two cores beside its tests.
const REGISTER_CONCURRENCY: usize = 8;

/// One task each: more nodes than this belong into a load test.
const MAX_NODES: usize = 1_000;

/// Where the Machines of a fleet are.
#[derive(Clone)]
pub struct MachineOptions {
    pub seed: Client,
    /// The shoot's namespace there; made when it is missing.
    pub namespace: String,
}

/// The nodes to simulate.
pub struct FleetOptions {
    /// How many nodes.
    pub nodes: usize,
    /// Nodes are called PREFIX-0, PREFIX-1, ...
    pub prefix: String,
    /// Label `topology.kubernetes.io/zone`, dealt out in turn.
    pub zones: Vec<String>,
    /// How often a Lease is renewed and the conditions are posted. A Lease lasts four times as long, as in a real
    /// kubelet.
    pub renew_interval: Duration,
    /// Each node gets a running Machine there.
    pub machines: MachineOptions,
}

/// Running kubelets. They stop renewing when this is dropped; their objects stay.
#[derive(Debug)]
#[must_use = "the kubelets stop when this is dropped"]
pub struct RunningKubelets {
    kubelets: Vec<Arc<RealKubelet>>,
    /// Ends its tasks when dropped.
    _tasks: JoinSet<()>,
}

impl RunningKubelets {
    /// Registers the nodes with fresh Leases and Ready conditions, makes their Machines, and starts renewing.
    ///
    /// # Errors
    /// When there are too many nodes or an API server does not answer.
    pub async fn start(shoot: &Client, options: FleetOptions) -> anyhow::Result<Self> {
        if options.nodes > MAX_NODES || options.zones.is_empty() {
            bail!("a fleet has at most {MAX_NODES} nodes and at least one zone");
        }
        create_namespace(shoot, LEASE_NAMESPACE).await?;
        create_namespace(&options.machines.seed, &options.machines.namespace).await?;
        let kubelets: Vec<_> = (0..options.nodes)
            .zip(options.zones.iter().cycle())
            .map(|(i, zone)| {
                Arc::new(RealKubelet::new(
                    shoot,
                    format!("{}-{i}", options.prefix),
                    zone.clone(),
                ))
            })
            .collect();
        let registrations: Vec<_> = kubelets
            .iter()
            .map(|kubelet| register(kubelet, &options))
            .collect();
        stream::iter(registrations)
            .buffer_unordered(REGISTER_CONCURRENCY)
            .try_collect::<Vec<()>>()
            .await?;
        let mut tasks = JoinSet::new();
        let spacing = options.renew_interval / u32::try_from(options.nodes.max(1))?;
        for (i, kubelet) in (0..).zip(&kubelets) {
            let kubelet = Arc::clone(kubelet);
            let every = options.renew_interval;
            tasks.spawn(async move { kubelet.run(every, spacing * i).await });
        }
        Ok(Self {
            kubelets,
            _tasks: tasks,
        })
    }

    /// Cuts the network between the nodes and the API server. When this returns, nothing of theirs is on its way any
    /// more.
    pub async fn cut_all(&self) {
        join_all(self.kubelets.iter().map(|kubelet| kubelet.set_cut(true))).await;
    }

    /// Heals the network: the nodes renew again at their next turn.
    pub async fn reconnect_all(&self) {
        join_all(self.kubelets.iter().map(|kubelet| kubelet.set_cut(false))).await;
    }
}

async fn register(kubelet: &RealKubelet, options: &FleetOptions) -> anyhow::Result<()> {
    kubelet.register(options.renew_interval).await?;
    create_machine(&options.machines, &kubelet.name).await
}

/// A Machine as machine-controller-manager keeps it for a node that has joined.
async fn create_machine(options: &MachineOptions, node: &str) -> anyhow::Result<()> {
    let resource = machine_resource();
    let machines: Api<DynamicObject> =
        Api::namespaced_with(options.seed.clone(), &options.namespace, &resource);
    let name = format!("machine-{node}");
    let mut machine = DynamicObject::new(&name, &resource).data(json!({"spec": {"nodeTemplate": {}}}));
    machine.metadata.labels = Some([("node".to_owned(), node.to_owned())].into());
    create_unless_there(&machines, &machine).await?;
    let status = Patch::Merge(json!({"status": {"currentStatus": {"phase": "Running"}}}));
    bounded(
        "set the phase",
        machines.patch_status(&name, &PatchParams::default(), &status),
    )
    .await?;
    Ok(())
}
