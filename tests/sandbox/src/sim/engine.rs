//! The inside of a simulated shoot: what it is made of, and the one task that drives its simulators.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    StepInputs,
    kubelets::Kubelets,
    lifecycle::Lifecycle,
    machines::Machines,
    objects::{self, COMPONENTS, PROBE_SECRET},
    spec::{POOL, SimulatedShootSpec},
    timing::{SimClock, SimTiming, sooner},
    workloads::Workloads,
};
use crate::{
    auth::Rule,
    error::SandboxError,
    resource::{ResourceKey, keys},
    server::{ApiOptions, ApiServer},
    status::ApiError,
    store::{WriteOptions, object::Object, random_suffix},
};

/// The user that the probe's kubeconfig stands for.
pub(super) const PROBE_USER: &str = "system:serviceaccount:kube-system:dependency-watchdog-probe";

/// Changes kept per resource of a shoot: there may be hundreds of shoots, and nobody watches them for long.
const WATCH_LOG: usize = 128;

/// Requests kept in a shoot's audit log.
const AUDIT_LOG: usize = 512;

/// When nothing is due the task looks again after this long, in case a signal was missed.
const IDLE: Duration = Duration::from_secs(60);

/// Everything that belongs to one shoot.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) spec: SimulatedShootSpec,
    pub(super) namespace: String,
    pub(super) timing: SimTiming,
    pub(super) clock: SimClock,
    pub(super) seed: ApiServer,
    pub(super) api: ApiServer,
    pub(super) sim: Mutex<Sim>,
    wake: Notify,
    /// Something that concerns the workloads may have changed.
    dirty: AtomicBool,
    pub(super) stop: CancellationToken,
}

/// Namespace of the leader Leases of a control plane.
const ELECTIONS_NAMESPACE: &str = "kube-system";

/// The simulators. Locked before any store, never the other way round.
#[derive(Debug, Default)]
pub(super) struct Sim {
    pub(super) kubelets: Kubelets,
    pub(super) lifecycle: Lifecycle,
    pub(super) machines: Machines,
    pub(super) workloads: Workloads,
    /// When the workloads need another step although nothing changes around them.
    workloads_due: Option<Instant>,
    elections: Elections,
}

/// The leader of the control plane's elections, which writes whatever happens to the nodes.
#[derive(Debug, Default)]
struct Elections {
    due: Option<Instant>,
}

impl Elections {
    /// Renews a leader Lease five times in a renew interval of kubelets; returns when the next renewal is due.
    fn step(&mut self, around: &StepInputs<'_>) -> Instant {
        let due = self.due.unwrap_or(around.now);
        if due > around.now {
            return due;
        }
        let renewed = crate::time::micros(around.wall);
        let store = around.shoot;
        let name = "kube-scheduler";
        let renewal = store.change(&keys::LEASES, ELECTIONS_NAMESPACE, name, |lease| {
            lease["spec"]["renewTime"] = renewed.clone().into();
        });
        let renewal = match renewal {
            Err(error) if error.code == 404 => {
                let lease = json!({ "metadata": { "name": name }, "spec": { "renewTime": renewed } });
                store.create(
                    &keys::LEASES,
                    ELECTIONS_NAMESPACE,
                    lease,
                    &WriteOptions::default(),
                )
            }
            other => other,
        };
        around.report("leader election", renewal);
        let next = around.now + around.timing.renew_interval / 5;
        self.due = Some(next);
        next
    }
}

impl Engine {
    /// Makes the shoot's API server and all its objects, everything ready, and starts its task.
    pub(super) async fn start(
        seed: &ApiServer,
        spec: SimulatedShootSpec,
        timing: &SimTiming,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, SandboxError> {
        let namespace = spec.namespace();
        let timing = spec.timing.clone().unwrap_or_else(|| timing.clone());
        let api = ApiServer::start(ApiOptions {
            name: namespace.clone(),
            watch_log: WATCH_LOG,
            audit_log: AUDIT_LOG,
            ..ApiOptions::default()
        })
        .await?;
        api.restrict(PROBE_USER, probe_rules());
        let engine = Arc::new(Self {
            spec,
            namespace,
            timing,
            clock: SimClock::new(),
            seed: seed.clone(),
            api,
            sim: Mutex::default(),
            wake: Notify::new(),
            dirty: AtomicBool::new(true),
            stop,
        });
        engine.populate()?;
        tokio::spawn(drive(engine.clone()));
        Ok(engine)
    }

    pub(super) fn poke(&self) {
        self.dirty.store(true, Ordering::SeqCst);
        self.wake.notify_one();
    }

    fn surrounding(&self, now: Instant) -> StepInputs<'_> {
        StepInputs {
            shoot: self.api.store(),
            seed: self.seed.store(),
            namespace: &self.namespace,
            timing: &self.timing,
            clock: self.clock,
            now,
            wall: self.clock.at(now),
        }
    }

    pub(super) fn on_seed(&self, resource: &ResourceKey) -> Vec<Arc<Object>> {
        self.seed.store().all(resource, Some(&self.namespace))
    }

    pub(super) fn change(
        &self,
        resource: &ResourceKey,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<(), SandboxError> {
        self.seed.store().change(resource, namespace, name, change)?;
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
            let name = format!("{POOL}-{zone}-{}", random_suffix());
            let machine = objects::machine(&name, namespace, &zone, around.wall);
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
            elections,
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
            due = sooner(due, Some(elections.step(&around)));
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
async fn drive(shoot: Arc<Engine>) {
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

/// The permissions that Gardener grants the probe in the shoot: to get and list, not to watch.
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
