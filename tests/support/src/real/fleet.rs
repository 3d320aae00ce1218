//! The nodes of a shoot: simulated kubelets that can be cut off, and their Machines on the seed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::future::join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::task::JoinSet;

use super::kubelet::{LEASE_NAMESPACE, RealKubelet};
use super::{bounded, create_namespace, exists_already, machine_resource};

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

impl std::fmt::Debug for MachineOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MachineOptions")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// The nodes to simulate. The defaults are those of a real kubelet.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// How many nodes.
    pub nodes: usize,
    /// Nodes are called PREFIX-0, PREFIX-1, ...
    pub prefix: String,
    /// Label `worker.gardener.cloud/pool`.
    pub pool: String,
    /// Label `topology.kubernetes.io/zone`, dealt out in turn.
    pub zones: Vec<String>,
    /// How often a Lease is renewed.
    pub renew_interval: Duration,
    /// `leaseDurationSeconds` of a Lease.
    pub lease_duration_seconds: i32,
    /// How often conditions are posted.
    pub status_interval: Duration,
    /// True if each node gets a running Machine on the seed.
    pub machines: Option<MachineOptions>,
}

impl Default for FleetOptions {
    fn default() -> Self {
        Self {
            nodes: 3,
            prefix: "node".to_owned(),
            pool: "worker".to_owned(),
            zones: vec!["zone-a".to_owned(), "zone-b".to_owned(), "zone-c".to_owned()],
            renew_interval: Duration::from_secs(10),
            lease_duration_seconds: 40,
            status_interval: Duration::from_secs(10),
            machines: None,
        }
    }
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
        if let Some(machines) = &options.machines {
            create_namespace(&machines.seed, &machines.namespace).await?;
        }
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
            let (renew, status) = (options.renew_interval, options.status_interval);
            tasks.spawn(async move { kubelet.run(renew, status, spacing * i).await });
        }
        Ok(Self {
            kubelets,
            _tasks: tasks,
        })
    }

    /// The names of the nodes.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.kubelets.iter().map(|kubelet| kubelet.name.clone()).collect()
    }

    /// Cuts the network between these nodes and the API server. When this returns, nothing of theirs is on its way
    /// any more.
    ///
    /// # Errors
    /// When a node is not in this fleet.
    pub async fn cut<S: AsRef<str>>(&self, names: &[S]) -> anyhow::Result<()> {
        self.set_cut(names, true).await
    }

    /// Heals the network: the nodes renew again at their next turn.
    ///
    /// # Errors
    /// When a node is not in this fleet.
    pub async fn reconnect<S: AsRef<str>>(&self, names: &[S]) -> anyhow::Result<()> {
        self.set_cut(names, false).await
    }

    /// Cuts off all nodes.
    pub async fn cut_all(&self) {
        join_all(self.kubelets.iter().map(|kubelet| kubelet.set_cut(true))).await;
    }

    /// Heals the network of all nodes.
    pub async fn reconnect_all(&self) {
        join_all(self.kubelets.iter().map(|kubelet| kubelet.set_cut(false))).await;
    }

    /// Renewals that the API server took, over all nodes.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.kubelets.iter().map(|kubelet| kubelet.renewals()).sum()
    }

    /// Renewals and reports that failed, over all nodes.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.kubelets.iter().map(|kubelet| kubelet.failures()).sum()
    }

    async fn set_cut<S: AsRef<str>>(&self, names: &[S], cut: bool) -> anyhow::Result<()> {
        let find = |name: &S| {
            let name = name.as_ref();
            self.kubelets
                .iter()
                .find(|k| k.name == name)
                .with_context(|| format!("no node {name:?} in this fleet"))
        };
        let kubelets = names.iter().map(find).collect::<anyhow::Result<Vec<_>>>()?;
        join_all(kubelets.into_iter().map(|kubelet| kubelet.set_cut(cut))).await;
        Ok(())
    }
}

async fn register(kubelet: &RealKubelet, options: &FleetOptions) -> anyhow::Result<()> {
    kubelet.register(options).await?;
    match &options.machines {
        Some(machines) => create_machine(machines, &kubelet.name).await,
        None => Ok(()),
    }
}

/// A Machine as machine-controller-manager keeps it for a node that has joined.
async fn create_machine(options: &MachineOptions, node: &str) -> anyhow::Result<()> {
    let resource = machine_resource();
    let machines: Api<DynamicObject> =
        Api::namespaced_with(options.seed.clone(), &options.namespace, &resource);
    let name = format!("machine-{node}");
    let mut machine = DynamicObject::new(&name, &resource).data(json!({"spec": {"nodeTemplate": {}}}));
    machine.metadata.labels = Some([("node".to_owned(), node.to_owned())].into());
    match bounded(
        "create a Machine",
        machines.create(&PostParams::default(), &machine),
    )
    .await
    {
        Err(error) if !exists_already(&error) => return Err(error),
        _ => {}
    }
    let status = Patch::Merge(json!({"status": {"currentStatus": {"phase": "Running"}}}));
    bounded(
        "set the phase",
        machines.patch_status(&name, &PatchParams::default(), &status),
    )
    .await?;
    Ok(())
}
