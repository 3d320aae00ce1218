//! The handle that steers a simulated shoot and answers questions about it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;
use watchdog_sandbox::resource::{ResourceKey, keys};
use watchdog_sandbox::store::object::Object;
use watchdog_sandbox::{ApiOptions, ApiServer, Rule};

use super::components::COMPONENTS;
use super::lifecycle::{NodeLifecycle, elect, node_ready};
use super::timing::SimTiming;
use super::workloads::Workloads;
use crate::fixtures::{self, KCM, MCM, PROBE_SECRET};
use crate::in_process::{modify, rule};
use crate::nodes::{Cut, LEASE_NAMESPACE, MachineTimes, Machines, RunningKubelets};
use crate::real::{create_cluster, create_kubeconfig_secret, create_namespace};

/// The user that the probe's kubeconfig stands for.
const PROBE_USER: &str = "system:serviceaccount:kube-system:dependency-watchdog-probe";

/// Changes kept per resource of a shoot: there may be hundreds of shoots, and nobody watches them for long.
const WATCH_LOG: usize = 128;

/// Requests kept in a shoot's audit log.
const AUDIT_LOG: usize = 512;

/// Zones that the nodes of a shoot are spread over.
const ZONES: usize = 3;

/// A shoot to simulate.
#[derive(Debug, Clone)]
pub struct SimulatedShootSpec {
    name: String,
    nodes: usize,
}

// === impl SimulatedShootSpec ===

impl SimulatedShootSpec {
    /// A shoot of project `sandbox` with `nodes` nodes in three zones.
    pub fn new(name: &str, nodes: usize) -> Self {
        Self {
            name: name.into(),
            nodes,
        }
    }

    /// The namespace on the seed and the name of the Cluster.
    pub fn namespace(&self) -> String {
        format!("shoot--sandbox--{}", self.name)
    }
}

/// Handle of a simulated shoot. Clones share it; the simulation ends when the last one is dropped.
#[derive(Clone)]
pub struct SimulatedShoot(Arc<ShootState>);

struct ShootState {
    name: String,
    namespace: String,
    seed: ApiServer,
    api: ApiServer,
    nodes: Arc<RunningKubelets>,
    machines: Arc<Machines>,
    lifecycle: Arc<NodeLifecycle>,
    workloads: Arc<Workloads>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    pub name: String,
    /// Status of its Ready condition: True, False or Unknown.
    pub ready: String,
    /// `renewTime` of its Lease; empty without one.
    pub renew_time: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineView {
    pub name: String,
    /// `status.currentStatus.phase`.
    pub phase: String,
}

/// A Deployment or StatefulSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadView {
    pub name: String,
    pub spec_replicas: i64,
    pub ready_replicas: i64,
}

/// A pod on the seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodView {
    pub name: String,
    /// True if its container is ready.
    pub ready: bool,
    /// Why its container waits; empty when it runs.
    pub waiting: String,
}

/// Drives the workloads, and runs the controllers that have a pod.
async fn drive(workloads: Arc<Workloads>, lifecycle: Arc<NodeLifecycle>, machines: Arc<Machines>) {
    loop {
        let due = workloads.step();
        lifecycle.running.store(workloads.runs(KCM), Ordering::SeqCst);
        machines.running.store(workloads.runs(MCM), Ordering::SeqCst);
        workloads.wait(due).await;
    }
}

/// The permissions that Gardener grants the probe in the shoot: to get and list, not to watch.
fn probe_rules() -> Vec<Rule> {
    let nodes = Rule {
        groups: vec![String::new()],
        ..rule(&["get", "list"], &["nodes"])
    };
    let leases = Rule {
        groups: vec!["coordination.k8s.io".into()],
        namespaces: vec![LEASE_NAMESPACE.into()],
        ..rule(&["get", "list"], &["leases"])
    };
    vec![nodes, leases]
}

// === impl SimulatedShoot ===

impl SimulatedShoot {
    /// Makes the shoot's API server and all its objects, everything ready, and starts the simulation. The Cluster comes
    /// last: everything it leads to is there then.
    pub(super) async fn start(
        seed: &ApiServer,
        spec: &SimulatedShootSpec,
        timing: &SimTiming,
    ) -> anyhow::Result<Self> {
        let namespace = spec.namespace();
        let options = ApiOptions {
            name: namespace.clone(),
            watch_log: WATCH_LOG,
            audit_log: AUDIT_LOG,
            ..ApiOptions::default()
        };
        let api = ApiServer::start(options).await?;
        api.restrict(PROBE_USER, probe_rules());

        let (on_seed, on_shoot) = (super::component(seed), super::component(&api));
        create_namespace(&on_seed, &namespace).await?;
        create_kubeconfig_secret(&on_seed, &namespace, PROBE_SECRET, &api.kubeconfig(PROBE_USER)).await?;
        for component in COMPONENTS {
            let resource = match component.stateful {
                true => keys::STATEFUL_SETS,
                false => keys::DEPLOYMENTS,
            };
            seed.create(&resource, &namespace, component.workload())?;
            if let Some(service) = component.service() {
                seed.create(&keys::SERVICES, &namespace, service)?;
            }
        }
        let nodes = RunningKubelets::new(&on_shoot, &on_seed, &namespace, timing.renew_interval).spread();
        let nodes = Arc::new(nodes);
        for index in 0..spec.nodes {
            let zone = format!("zone-{}", index % ZONES + 1);
            nodes.start(&nodes.next_name(), &zone).await?;
        }
        let times = MachineTimes {
            period: timing.node_monitor_period,
            creation: timing.node_monitor_period,
            health_timeout: timing.machine_health_timeout,
        };
        let machines = Machines::new(&on_seed, &namespace, &on_shoot, nodes.clone(), times);
        let machines = Arc::new(machines);
        let lifecycle = Arc::new(NodeLifecycle::new(&api, timing));
        let workloads = Arc::new(Workloads::new(seed.store(), &namespace, timing));
        workloads.step();

        let mut shoot = fixtures::shoot(&format!("{}ms", timing.node_monitor_grace_period.as_millis()));
        shoot["metadata"] = json!({ "name": spec.name, "namespace": "garden-sandbox" });
        create_cluster(&on_seed, &namespace, shoot).await?;

        let spawn = |task| AbortOnDropHandle::new(tokio::spawn(task));
        let controls = lifecycle.clone();
        let tasks = vec![
            spawn(Box::pin(drive(workloads.clone(), lifecycle.clone(), machines.clone())) as BoxFuture<_>),
            spawn(Box::pin(async move { controls.run().await })),
            spawn(Box::pin(machines.clone().run())),
            spawn(Box::pin(elect(api.clone(), timing.renew_interval / 5))),
        ];
        Ok(Self(Arc::new(ShootState {
            name: spec.name.clone(),
            namespace,
            seed: seed.clone(),
            api,
            nodes,
            machines,
            lifecycle,
            workloads,
            _tasks: tasks,
        })))
    }

    /// Name within the project.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Namespace on the seed, which is also the name of the Cluster.
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    /// The shoot's own API server. Stopping or freezing it cuts off its kubelets and controllers too.
    pub fn api(&self) -> &ApiServer {
        &self.0.api
    }

    // --- steering

    /// Cuts kubelets off from the API server: they renew no Lease and post no status.
    pub fn cut(&self, cut: Cut) {
        self.0.nodes.cut_now(cut);
    }

    /// Reconnects all kubelets; each gets through at its next renewal.
    pub fn heal(&self) {
        self.0.nodes.reconnect();
    }

    /// Sets the clock of a node ahead of everyone else's (negative: behind).
    pub fn set_clock_skew(&self, node: &str, skew: SignedDuration) -> anyhow::Result<()> {
        self.0.nodes.set_clock_skew(node, skew)
    }

    /// Makes the pods behind a Service of the control plane (`etcd-main-client`, `kube-apiserver`) unready. What needs
    /// the Service begins to crash.
    pub fn service_down(&self, service: &str) {
        self.0.workloads.set_out(service, true);
    }

    /// Lets the pods behind a Service become ready again.
    pub fn service_up(&self, service: &str) {
        self.0.workloads.set_out(service, false);
    }

    /// Scales a Deployment as an operator would.
    pub fn scale(&self, deployment: &str, replicas: u32) -> anyhow::Result<()> {
        let set = |value: &mut Value| value["spec"]["replicas"] = replicas.into();
        let (seed, namespace) = (&self.0.seed, self.namespace());
        Ok(modify(seed, &keys::DEPLOYMENTS, namespace, deployment, set)?)
    }

    /// Changes the Cluster object.
    pub fn update_cluster(&self, change: impl FnOnce(&mut Value)) -> anyhow::Result<()> {
        Ok(modify(
            &self.0.seed,
            &keys::CLUSTERS,
            "",
            self.namespace(),
            change,
        )?)
    }

    /// Sets `spec.hibernation.enabled` and, as when that is done, `status.hibernated`. Replica counts are left alone:
    /// the audit log shows who writes to a hibernated shoot.
    pub fn set_hibernated(&self, on: bool) -> anyhow::Result<()> {
        self.update_cluster(|cluster| {
            let shoot = &mut cluster["spec"]["shoot"];
            shoot["spec"]["hibernation"] = json!({ "enabled": on });
            shoot["status"]["hibernated"] = on.into();
        })
    }

    /// Sets `status.lastOperation`, for instance `("Migrate", "Processing")`.
    pub fn set_last_operation(&self, operation: &str, state: &str) -> anyhow::Result<()> {
        self.update_cluster(|cluster| {
            let last = json!({ "type": operation, "state": state });
            cluster["spec"]["shoot"]["status"]["lastOperation"] = last;
        })
    }

    /// Sets the Shoot's deletionTimestamp, with which its deletion begins.
    pub fn mark_deleting(&self) -> anyhow::Result<()> {
        self.update_cluster(|cluster| {
            let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            cluster["spec"]["shoot"]["metadata"]["deletionTimestamp"] = now.into();
        })
    }

    /// Makes the probe's token invalid and writes a kubeconfig with a new one into its Secret.
    pub fn rotate_kubeconfig(&self) -> anyhow::Result<()> {
        self.api().revoke(PROBE_USER);
        let kubeconfig = json!(ByteString(self.probe_kubeconfig().into_bytes()));
        let set = |secret: &mut Value| secret["data"]["kubeconfig"] = kubeconfig;
        let (seed, namespace) = (&self.0.seed, self.namespace());
        Ok(modify(seed, &keys::SECRETS, namespace, PROBE_SECRET, set)?)
    }

    /// The kubeconfig that the probe's Secret was made with, or the newest after a rotation.
    pub fn probe_kubeconfig(&self) -> String {
        self.api().kubeconfig(PROBE_USER)
    }

    /// Removes the Cluster and the namespace, and ends the API server.
    pub(super) async fn delete(&self) -> anyhow::Result<()> {
        for resource in [&keys::CLUSTERS, &keys::NAMESPACES] {
            let none = Default::default();
            self.0
                .seed
                .store()
                .delete(resource, "", self.namespace(), &none)?;
        }
        Ok(self.api().stop().await?)
    }

    /// Something may have changed in its namespace on the seed.
    pub(super) fn poke(&self) {
        self.0.workloads.poke();
    }

    // --- asking

    pub fn nodes(&self) -> Vec<NodeView> {
        let store = self.api().store();
        let view = |name: &str, ready: &str| NodeView {
            name: name.to_owned(),
            ready: ready.to_owned(),
            renew_time: store
                .find(&keys::LEASES, LEASE_NAMESPACE, name)
                .map(|lease| lease.text("/spec/renewTime").to_owned())
                .unwrap_or_default(),
        };
        let nodes = store.all(&keys::NODES, None);
        let nodes = nodes.iter();
        nodes
            .map(|node| view(node.name(), node_ready(node.value())))
            .collect()
    }

    /// How often a node was marked Unknown so far.
    pub fn marked_unknown(&self) -> u64 {
        self.0.lifecycle.marked_unknown.load(Ordering::SeqCst)
    }

    /// How many machines were replaced so far.
    pub fn machines_replaced(&self) -> u64 {
        self.0.machines.replaced.load(Ordering::SeqCst)
    }

    pub fn machines(&self) -> Vec<MachineView> {
        self.on_seed(&keys::MACHINES, |machine| MachineView {
            name: machine.name().into(),
            phase: machine.text("/status/currentStatus/phase").into(),
        })
    }

    /// A Deployment or StatefulSet of the control plane.
    pub fn workload(&self, name: &str) -> Option<WorkloadView> {
        let mut workloads = self.workloads().into_iter();
        workloads.find(|workload| workload.name == name)
    }

    /// The Deployments and StatefulSets of the control plane.
    pub fn workloads(&self) -> Vec<WorkloadView> {
        let view = |object: &Object| WorkloadView {
            name: object.name().into(),
            spec_replicas: object.number("/spec/replicas"),
            ready_replicas: object.number("/status/readyReplicas"),
        };
        [
            self.on_seed(&keys::DEPLOYMENTS, view),
            self.on_seed(&keys::STATEFUL_SETS, view),
        ]
        .concat()
    }

    /// The pods of the control plane.
    pub fn pods(&self) -> Vec<PodView> {
        self.on_seed(&keys::PODS, |pod| {
            let container = &pod.value()["status"]["containerStatuses"][0];
            PodView {
                name: pod.name().into(),
                ready: container["ready"] == true,
                waiting: container["state"]["waiting"]["reason"]
                    .as_str()
                    .unwrap_or_default()
                    .into(),
            }
        })
    }

    fn on_seed<T>(&self, resource: &ResourceKey, view: impl Fn(&Object) -> T) -> Vec<T> {
        let objects = self.0.seed.store().all(resource, Some(self.namespace()));
        objects.iter().map(|object| view(object)).collect()
    }
}
