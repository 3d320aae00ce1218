//! One simulated shoot: its objects, the task that drives its simulators, and the handle that steers it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::SignedDuration;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Surrounding,
    kubelets::Kubelets,
    lifecycle::Lifecycle,
    machines::Machines,
    objects::{self, COMPONENTS, PROBE_SECRET},
    spec::{Cut, ShootSpec},
    timing::{Clock, SimTiming, sooner},
    views::{self, MachineView, NodeView, PodView, ShootState, WorkloadView},
    workloads::Workloads,
};
use crate::{
    auth::Rule,
    error::SandboxError,
    resource::{ResourceKey, keys},
    server::{ApiOptions, ApiServer},
    status::ApiError,
    store::{
        Part, Preconditions, WriteOptions,
        object::{Object, child_mut},
        random_suffix,
    },
    time,
};

/// The user that the probe's kubeconfig stands for.
const PROBE_USER: &str = "system:serviceaccount:kube-system:dependency-watchdog-probe";

/// Changes kept per resource of a shoot: there may be hundreds of shoots, and nobody watches them for long.
const WATCH_LOG: usize = 128;

/// Requests kept in a shoot's audit log.
const AUDIT_LOG: usize = 512;

/// When nothing is due the task looks again after this long, in case a signal was missed.
const IDLE: Duration = Duration::from_secs(60);

/// Handle of a simulated shoot. Clones share it.
#[derive(Debug, Clone)]
pub struct Shoot {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    spec: ShootSpec,
    namespace: String,
    timing: SimTiming,
    clock: Clock,
    seed: ApiServer,
    api: ApiServer,
    sim: Mutex<Sim>,
    wake: Notify,
    /// Something that concerns the workloads may have changed.
    dirty: AtomicBool,
    stop: CancellationToken,
}

/// The simulators. Locked before any store, never the other way round.
#[derive(Debug, Default)]
struct Sim {
    kubelets: Kubelets,
    lifecycle: Lifecycle,
    machines: Machines,
    workloads: Workloads,
    /// When the workloads need another step although nothing changes around them.
    workloads_due: Option<Instant>,
}

impl Shoot {
    /// Makes the shoot's API server and all its objects, everything ready, and starts its simulators.
    pub(crate) async fn start(
        seed: &ApiServer,
        spec: ShootSpec,
        timing: &SimTiming,
        stop: CancellationToken,
    ) -> Result<Self, SandboxError> {
        let namespace = spec.namespace();
        let timing = spec.timing.clone().unwrap_or_else(|| timing.clone());
        let api = ApiServer::start(ApiOptions {
            name: namespace.clone(),
            watch_log: WATCH_LOG,
            audit_log: AUDIT_LOG,
            ..ApiOptions::default()
        })
        .await?;
        if spec.restrict_probe {
            api.restrict(PROBE_USER, probe_rules());
        }
        let shoot = Self {
            inner: Arc::new(Inner {
                spec,
                namespace,
                timing,
                clock: Clock::new(),
                seed: seed.clone(),
                api,
                sim: Mutex::default(),
                wake: Notify::new(),
                dirty: AtomicBool::new(true),
                stop,
            }),
        };
        shoot.inner.populate()?;
        tokio::spawn(drive(shoot.inner.clone()));
        Ok(shoot)
    }

    /// Name within the project.
    pub fn name(&self) -> &str {
        &self.inner.spec.name
    }

    /// Namespace on the seed, which is also the name of the Cluster.
    pub fn namespace(&self) -> &str {
        &self.inner.namespace
    }

    /// The shoot's own API server. Stopping or freezing it cuts off its kubelets and controllers too.
    pub fn api(&self) -> &ApiServer {
        &self.inner.api
    }

    /// The timing of the shoot's simulators.
    pub fn timing(&self) -> &SimTiming {
        &self.inner.timing
    }

    // --- steering

    /// Cuts kubelets off from the API server: they renew no Lease and post no status.
    pub fn cut(&self, cut: Cut) {
        self.inner.sim.lock().kubelets.cut(cut);
        self.inner.poke();
    }

    /// Reconnects all kubelets; each gets through at its next renewal.
    pub fn heal(&self) {
        self.inner.sim.lock().kubelets.heal();
        self.inner.poke();
    }

    /// Sets the clock of a node ahead of everyone else's (negative: behind).
    ///
    /// # Errors
    /// When there is no such node.
    pub fn set_clock_skew(&self, node: &str, skew: SignedDuration) -> Result<(), SandboxError> {
        if self.inner.sim.lock().kubelets.set_skew(node, skew) {
            Ok(())
        } else {
            Err(SandboxError::Invalid(format!("no node {node}")))
        }
    }

    /// Makes the pods behind a Service of the control plane (`etcd-main-client`, `kube-apiserver`) unready.
    /// What needs the Service begins to crash.
    pub fn service_down(&self, service: &str) {
        self.inner.sim.lock().workloads.set_out(service, true);
        self.inner.poke();
    }

    /// Lets the pods behind a Service become ready again.
    pub fn service_up(&self, service: &str) {
        self.inner.sim.lock().workloads.set_out(service, false);
        self.inner.poke();
    }

    /// Scales a Deployment as an operator would.
    ///
    /// # Errors
    /// When there is no such Deployment.
    pub fn scale(&self, deployment: &str, replicas: u32) -> Result<(), SandboxError> {
        self.inner
            .change(&keys::DEPLOYMENTS, deployment, Part::Main, |value| {
                child_mut(value, "spec").insert("replicas".into(), replicas.into());
            })
    }

    /// Changes the Cluster object.
    ///
    /// # Errors
    /// When it is gone.
    pub fn update_cluster(&self, change: impl FnOnce(&mut Value)) -> Result<(), SandboxError> {
        let options = WriteOptions::default();
        let store = self.inner.seed.store();
        store.modify(
            &keys::CLUSTERS,
            "",
            &self.inner.namespace,
            Part::All,
            &options,
            |value| {
                change(value);
                Ok(())
            },
        )?;
        Ok(())
    }

    /// Sets `spec.hibernation.enabled` and, as when that is done, `status.isHibernated`. Replica counts are
    /// left alone: what writes to a hibernated shoot is seen in the audit log.
    ///
    /// # Errors
    /// When the Cluster is gone.
    pub fn set_hibernated(&self, on: bool) -> Result<(), SandboxError> {
        self.update_cluster(|cluster| {
            if let Some(enabled) = cluster.pointer_mut("/spec/shoot/spec/hibernation") {
                *enabled = json!({ "enabled": on });
            }
            if let Some(hibernated) = cluster.pointer_mut("/spec/shoot/status/isHibernated") {
                *hibernated = on.into();
            }
        })
    }

    /// Sets `status.lastOperation`, for instance `("Migrate", "Processing")`.
    ///
    /// # Errors
    /// When the Cluster is gone.
    pub fn set_last_operation(&self, operation: &str, state: &str) -> Result<(), SandboxError> {
        let now = time::seconds(self.inner.clock.at(Instant::now()));
        self.update_cluster(|cluster| {
            if let Some(last) = cluster.pointer_mut("/spec/shoot/status/lastOperation") {
                *last = objects::last_operation(operation, state, &now);
            }
        })
    }

    /// Sets the Shoot's deletionTimestamp, with which its deletion begins.
    ///
    /// # Errors
    /// When the Cluster is gone.
    pub fn mark_deleting(&self) -> Result<(), SandboxError> {
        let now = time::seconds(self.inner.clock.at(Instant::now()));
        self.update_cluster(|cluster| {
            if let Some(metadata) = cluster
                .pointer_mut("/spec/shoot/metadata")
                .and_then(Value::as_object_mut)
            {
                metadata.insert("deletionTimestamp".into(), now.into());
            }
        })
    }

    /// Makes the probe's token invalid and writes a kubeconfig with a new one into its Secret.
    ///
    /// # Errors
    /// When the Secret is gone.
    pub fn rotate_kubeconfig(&self) -> Result<(), SandboxError> {
        self.inner.api.revoke(PROBE_USER);
        let kubeconfig = STANDARD.encode(self.inner.api.kubeconfig(PROBE_USER));
        self.inner
            .change(&keys::SECRETS, PROBE_SECRET, Part::Main, |value| {
                child_mut(value, "data").insert("kubeconfig".into(), kubeconfig.into());
            })
    }

    /// The kubeconfig that the probe's Secret was made with, or the newest after a rotation.
    pub fn probe_kubeconfig(&self) -> String {
        self.inner.api.kubeconfig(PROBE_USER)
    }

    /// Ends the simulators and the API server and removes the Cluster and the namespace.
    pub(crate) async fn delete(&self) -> Result<(), SandboxError> {
        self.inner.stop.cancel();
        let store = self.inner.seed.store();
        for resource in [&keys::CLUSTERS, &keys::NAMESPACES] {
            match store.delete(
                resource,
                "",
                &self.inner.namespace,
                &Preconditions::default(),
                false,
            ) {
                Ok(_) => {}
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.inner.api.stop().await
    }

    /// Tells the simulators that something changed on the seed.
    pub(crate) fn poke(&self) {
        self.inner.poke();
    }

    // --- asking

    /// The nodes.
    pub fn nodes(&self) -> Vec<NodeView> {
        let store = self.inner.api.store();
        let nodes = store.all(&keys::NODES, None);
        let sim = self.inner.sim.lock();
        nodes
            .iter()
            .map(|node| views::node(node, store, |name, zone| sim.kubelets.is_cut(name, zone)))
            .collect()
    }

    /// How many nodes are Unknown now.
    pub fn nodes_unknown(&self) -> usize {
        self.nodes().iter().filter(|node| node.ready == "Unknown").count()
    }

    /// How often a node was marked Unknown so far.
    pub fn marked_unknown(&self) -> u64 {
        self.inner.sim.lock().lifecycle.marked_unknown
    }

    /// How many machines were replaced so far.
    pub fn machines_replaced(&self) -> u64 {
        self.inner.sim.lock().machines.replaced
    }

    /// The machines.
    pub fn machines(&self) -> Vec<MachineView> {
        self.inner
            .on_seed(&keys::MACHINES)
            .iter()
            .map(|machine| views::machine(machine))
            .collect()
    }

    /// A Deployment or StatefulSet of the control plane.
    pub fn workload(&self, name: &str) -> Option<WorkloadView> {
        let store = self.inner.seed.store();
        [keys::DEPLOYMENTS, keys::STATEFUL_SETS]
            .iter()
            .find_map(|resource| store.find(resource, &self.inner.namespace, name))
            .map(|object| views::workload(&object))
    }

    /// The pods of the control plane.
    pub fn pods(&self) -> Vec<PodView> {
        self.inner
            .on_seed(&keys::PODS)
            .iter()
            .map(|pod| views::pod(pod))
            .collect()
    }

    /// Everything at this moment.
    pub fn state(&self) -> ShootState {
        let workloads = [keys::DEPLOYMENTS, keys::STATEFUL_SETS];
        ShootState {
            namespace: self.inner.namespace.clone(),
            api_server: self.inner.api.url(),
            api_server_running: self.inner.api.is_running(),
            nodes: self.nodes(),
            machines: self.machines(),
            workloads: workloads
                .iter()
                .flat_map(|resource| self.inner.on_seed(resource))
                .map(|object| views::workload(&object))
                .collect(),
            pods: self.pods(),
            marked_unknown: self.marked_unknown(),
            machines_replaced: self.machines_replaced(),
            timing: self.inner.timing.clone(),
        }
    }
}

impl Inner {
    fn poke(&self) {
        self.dirty.store(true, Ordering::SeqCst);
        self.wake.notify_one();
    }

    fn surrounding(&self, now: Instant) -> Surrounding<'_> {
        Surrounding {
            shoot: self.api.store(),
            seed: self.seed.store(),
            namespace: &self.namespace,
            pool: &self.spec.pool,
            timing: &self.timing,
            clock: self.clock,
            now,
            wall: self.clock.at(now),
        }
    }

    fn on_seed(&self, resource: &ResourceKey) -> Vec<Arc<Object>> {
        self.seed.store().all(resource, Some(&self.namespace))
    }

    fn change(
        &self,
        resource: &ResourceKey,
        name: &str,
        part: Part,
        change: impl FnOnce(&mut Value),
    ) -> Result<(), SandboxError> {
        let options = WriteOptions::default();
        self.seed
            .store()
            .modify(resource, &self.namespace, name, part, &options, |value| {
                change(value);
                Ok(())
            })?;
        Ok(())
    }

    /// Makes all objects of the shoot; the Cluster comes last, as everything it leads to is there then.
    fn populate(&self) -> Result<(), ApiError> {
        let now = Instant::now();
        let around = self.surrounding(now);
        let options = WriteOptions::default();
        let seed = self.seed.store();
        let namespace = self.namespace.as_str();
        let labels = json!({ "gardener.cloud/role": "shoot" });
        seed.create(
            &keys::NAMESPACES,
            "",
            json!({ "metadata": { "name": namespace, "labels": labels } }),
            &options,
        )?;
        let kubeconfig = STANDARD.encode(self.api.kubeconfig(PROBE_USER));
        seed.create(
            &keys::SECRETS,
            namespace,
            json!({
                "metadata": { "name": PROBE_SECRET },
                "type": "Opaque",
                "data": { "kubeconfig": kubeconfig },
            }),
            &options,
        )?;
        for component in COMPONENTS {
            let resource = if component.stateful {
                keys::STATEFUL_SETS
            } else {
                keys::DEPLOYMENTS
            };
            seed.create(&resource, namespace, component.workload(), &options)?;
            if let Some(service) = component.service() {
                seed.create(&keys::SERVICES, namespace, service, &options)?;
            }
        }
        let mut sim = self.sim.lock();
        for index in 0..self.spec.nodes {
            let zone = self.spec.zone(index);
            let name = format!("{}-{zone}-{}", self.spec.pool, random_suffix());
            let machine = objects::machine(&name, namespace, &zone, "Running", around.wall);
            seed.create(&keys::MACHINES, namespace, machine, &options)?;
            sim.kubelets.start(&name, &zone, &around);
        }
        sim.workloads.settled = true;
        sim.workloads.step(&around);
        sim.workloads.settled = false;
        drop(sim);
        let cluster = objects::cluster(&self.spec, &self.timing, around.wall);
        seed.create(&keys::CLUSTERS, "", cluster, &options)?;
        Ok(())
    }

    /// Does everything that is due; returns when something is next.
    fn step(&self, now: Instant) -> Option<Instant> {
        let around = self.surrounding(now);
        // Without its API server nothing in the shoot can read or write.
        let reachable = self.api.is_reachable();
        let mut sim = self.sim.lock();
        let Sim {
            kubelets,
            lifecycle,
            machines,
            workloads,
            workloads_due,
        } = &mut *sim;
        if self.dirty.swap(false, Ordering::SeqCst) || workloads_due.is_some_and(|due| due <= now) {
            *workloads_due = workloads.step(&around);
        }
        let mut due = *workloads_due;
        let running = |name: &str| {
            reachable
                && around
                    .seed
                    .find(&keys::DEPLOYMENTS, around.namespace, name)
                    .is_some_and(|deployment| deployment.number("/status/readyReplicas") > 0)
        };
        if reachable {
            due = sooner(due, kubelets.step(&around));
        } else {
            due = sooner(due, Some(now + self.timing.renew_interval));
        }
        due = sooner(due, lifecycle.step(running("kube-controller-manager"), &around));
        sooner(
            due,
            machines.step(running("machine-controller-manager"), kubelets, &around),
        )
    }
}

/// The shoot's only task.
async fn drive(shoot: Arc<Inner>) {
    loop {
        let now = Instant::now();
        let due = shoot.step(now).unwrap_or(now + IDLE).min(now + IDLE);
        tokio::select! {
            () = shoot.stop.cancelled() => return,
            () = shoot.wake.notified() => {}
            () = tokio::time::sleep_until(due) => {}
        }
    }
}

/// What Gardener grants the probe in the shoot: to get and list, not to watch.
fn probe_rules() -> Vec<Rule> {
    let read = || vec!["get".to_owned(), "list".to_owned()];
    vec![
        Rule {
            verbs: read(),
            groups: vec![String::new()],
            resources: vec!["nodes".into()],
            ..Rule::default()
        },
        Rule {
            verbs: read(),
            groups: vec!["coordination.k8s.io".into()],
            resources: vec!["leases".into()],
            namespaces: vec!["kube-node-lease".into()],
            ..Rule::default()
        },
    ]
}
