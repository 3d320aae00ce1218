//! A seed in memory with simulated shoots.
//!
//! Each shoot has an API server of its own. Its kubelets and machines are those of [`crate::nodes`]; the node
//! lifecycle, and the control-plane pods on the seed, are simulated here.
//!
//! ```text
//!   Sandbox ── ApiServer "seed"
//!     └─ SimulatedShoot
//!          ├─ ApiServer        of the shoot
//!          ├─ RunningKubelets  Nodes and Leases in the shoot, Machines on the seed
//!          ├─ Machines         the machine-controller-manager: replaces machines
//!          ├─ NodeLifecycle    the kube-controller-manager: marks nodes Unknown
//!          └─ Workloads        pods, endpoints and replicas on the seed; says whether the two above run
//! ```
//!
//! [`program`] runs it as a program of its own, which [`Control`] steers.

#![allow(
    clippy::indexing_slicing,
    reason = "into JSON that the simulation made itself; a failed test may panic"
)]

mod components;
mod control;
mod lifecycle;
mod pod;
pub mod program;
mod shoot;
mod timing;
mod workloads;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use http_body_util::BodyExt;
use kube::Client;
use parking_lot::RwLock;
use tokio_util::task::AbortOnDropHandle;
use watchdog_sandbox::resource::{ResourceKey, keys};
use watchdog_sandbox::store::{ListQuery, Store, WatchStep};
use watchdog_sandbox::{ApiOptions, ApiServer};

use crate::history::LEADER_LEASE;
use crate::in_process::released_lease;
pub use crate::nodes::Cut;
pub use control::Control;
pub use shoot::{MachineView, NodeView, PodView, SimulatedShoot, SimulatedShootSpec, WorkloadView};
pub use timing::SimTiming;

/// How a sandbox starts.
#[derive(Debug, Clone, Default)]
pub struct SandboxConfig {
    /// Timing of shoots that bring none of their own.
    pub timing: SimTiming,
    /// Shoots to begin with.
    pub shoots: Vec<SimulatedShootSpec>,
}

/// A seed's API server with the shoots behind it. Everything ends when it and the handles of its shoots are dropped.
pub struct Sandbox {
    seed: ApiServer,
    timing: SimTiming,
    shoots: Arc<Shoots>,
    _following: Vec<AbortOnDropHandle<()>>,
}

type Shoots = RwLock<BTreeMap<String, SimulatedShoot>>;

/// The kinds on the seed whose changes concern the workloads of a shoot.
const FOLLOWED: [ResourceKey; 4] = [keys::DEPLOYMENTS, keys::STATEFUL_SETS, keys::PODS, keys::SERVICES];

// === impl Sandbox ===

impl Sandbox {
    /// Starts the seed and its shoots.
    pub async fn start(config: SandboxConfig) -> anyhow::Result<Self> {
        let seed = ApiServer::start(ApiOptions {
            name: "seed".into(),
            namespaces: vec!["garden".into()],
            ..ApiOptions::default()
        });
        let seed = seed.await?;
        for name in [LEADER_LEASE, "weeder-leader"] {
            released_lease(&seed, name)?;
        }
        let shoots: Arc<Shoots> = Arc::default();
        let following = FOLLOWED.map(|resource| {
            let follow = follow(seed.store().clone(), resource, shoots.clone());
            AbortOnDropHandle::new(tokio::spawn(follow))
        });
        let sandbox = Self {
            seed,
            timing: config.timing,
            shoots,
            _following: following.into(),
        };
        for spec in config.shoots {
            sandbox.add_shoot(spec).await?;
        }
        Ok(sandbox)
    }

    /// The seed's API server.
    pub fn seed(&self) -> &ApiServer {
        &self.seed
    }

    /// Adds a shoot, everything in it ready.
    pub async fn add_shoot(&self, spec: SimulatedShootSpec) -> anyhow::Result<SimulatedShoot> {
        let shoot = SimulatedShoot::start(&self.seed, &spec, &self.timing).await?;
        self.shoots.write().insert(spec.namespace(), shoot.clone());
        // Changes between the start and the line above went unnoticed.
        shoot.poke();
        Ok(shoot)
    }

    /// A shoot by its name or namespace.
    pub fn shoot(&self, name: &str) -> anyhow::Result<SimulatedShoot> {
        let shoots = self.shoots.read();
        let mut all = shoots.values();
        all.find(|shoot| [shoot.name(), shoot.namespace()].contains(&name))
            .cloned()
            .with_context(|| format!("no shoot {name}"))
    }

    /// All shoots, sorted by namespace.
    pub fn shoots(&self) -> Vec<SimulatedShoot> {
        self.shoots.read().values().cloned().collect()
    }

    /// Removes a shoot with its Cluster, namespace and API server.
    pub async fn delete_shoot(&self, name: &str) -> anyhow::Result<()> {
        let shoot = self.shoot(name)?;
        self.shoots.write().remove(shoot.namespace());
        shoot.delete().await
    }
}

/// Wakes the shoots whose objects of one kind change.
async fn follow(store: Arc<Store>, resource: ResourceKey, shoots: Arc<Shoots>) {
    while let Ok(mut watch) = store.watch(&resource, ListQuery::default(), Some(store.revision())) {
        // Anything may have changed before: this task began late, or the history was compacted.
        shoots.read().values().for_each(SimulatedShoot::poke);
        loop {
            match watch.step() {
                WatchStep::Events(events) => {
                    let shoots = shoots.read();
                    let touched = events
                        .iter()
                        .filter_map(|event| shoots.get(event.object.namespace()));
                    touched.for_each(SimulatedShoot::poke);
                }
                WatchStep::Idle(_) => _ = watch.changed().await,
                WatchStep::Gone(_) => break,
            }
        }
    }
}

/// A client for the parts of a cluster itself: without a network, and whatever happens to the requests of others.
fn component(api: &ApiServer) -> Client {
    let api = api.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let api = api.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            anyhow::Ok(api.answer_component(&parts, &body)?)
        }
    });
    Client::new(service, "default")
}
