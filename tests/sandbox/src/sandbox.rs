//! A seed with simulated shoots.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use crate::{
    error::SandboxError,
    resource::{ResourceKey, keys},
    server::{ApiOptions, ApiServer},
    sim::{SimTiming, SimulatedShoot, SimulatedShootSpec},
    store::{ListQuery, Store, WatchStep},
};

/// How a sandbox starts.
#[derive(Debug, Clone)]
pub struct SandboxConfig {
    /// The seed's API server.
    pub seed: ApiOptions,
    /// Timing of shoots that bring none of their own.
    pub timing: SimTiming,
    /// Shoots to begin with.
    pub shoots: Vec<SimulatedShootSpec>,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            seed: ApiOptions {
                name: "seed".into(),
                namespaces: vec!["garden".into()],
                ..ApiOptions::default()
            },
            timing: SimTiming::default(),
            shoots: Vec::new(),
        }
    }
}

/// A seed's API server with the shoots behind it. Everything ends when it is dropped.
#[derive(Debug)]
pub struct Sandbox {
    seed: ApiServer,
    timing: SimTiming,
    shoots: Arc<Shoots>,
    stop: CancellationToken,
}

type Shoots = RwLock<BTreeMap<String, SimulatedShoot>>;

/// The kinds on the seed whose changes concern a shoot's simulators.
const FOLLOWED: [ResourceKey; 5] = [
    keys::DEPLOYMENTS,
    keys::STATEFUL_SETS,
    keys::PODS,
    keys::SERVICES,
    keys::MACHINES,
];

impl Sandbox {
    /// Starts the seed and its shoots.
    ///
    /// # Errors
    /// When a port cannot be bound or two shoots have the same name.
    pub async fn start(config: SandboxConfig) -> Result<Self, SandboxError> {
        let seed = ApiServer::start(config.seed).await?;
        let sandbox = Self {
            seed,
            timing: config.timing,
            shoots: Arc::default(),
            stop: CancellationToken::new(),
        };
        for resource in FOLLOWED {
            let follow = follow(sandbox.seed.store().clone(), resource, sandbox.shoots.clone());
            let stop = sandbox.stop.clone();
            tokio::spawn(async move { stop.run_until_cancelled(follow).await });
        }
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
    ///
    /// # Errors
    /// When there is one of this name already or a port cannot be bound.
    pub async fn add_shoot(&self, spec: SimulatedShootSpec) -> Result<SimulatedShoot, SandboxError> {
        let namespace = spec.namespace();
        if self.shoots.read().contains_key(&namespace) {
            return Err(SandboxError::ShootExists(namespace));
        }
        let shoot = SimulatedShoot::start(&self.seed, spec, &self.timing, self.stop.child_token()).await?;
        self.shoots.write().insert(namespace, shoot.clone());
        // Changes between the start and the line above went unnoticed.
        shoot.poke();
        Ok(shoot)
    }

    /// A shoot by its name or namespace.
    ///
    /// # Errors
    /// When there is no such shoot.
    pub fn shoot(&self, name: &str) -> Result<SimulatedShoot, SandboxError> {
        let shoots = self.shoots.read();
        shoots
            .get(name)
            .or_else(|| shoots.values().find(|shoot| shoot.name() == name))
            .cloned()
            .ok_or_else(|| SandboxError::NoSuchShoot(name.to_owned()))
    }

    /// All shoots, sorted by namespace.
    pub fn shoots(&self) -> Vec<SimulatedShoot> {
        self.shoots.read().values().cloned().collect()
    }

    /// Removes a shoot with its Cluster, namespace and API server.
    ///
    /// # Errors
    /// When there is no such shoot.
    pub async fn delete_shoot(&self, name: &str) -> Result<(), SandboxError> {
        let shoot = self.shoot(name)?;
        self.shoots.write().remove(shoot.namespace());
        shoot.delete().await
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Wakes the shoots whose objects of one kind change.
async fn follow(store: Arc<Store>, resource: ResourceKey, shoots: Arc<Shoots>) {
    loop {
        let Ok(mut watch) = store.watch(&resource, ListQuery::default(), Some(store.revision())) else {
            return;
        };
        // Anything may have changed before: this task began late, or the history was compacted.
        shoots.read().values().for_each(SimulatedShoot::poke);
        loop {
            match watch.step() {
                WatchStep::Events(events) => {
                    let shoots = shoots.read();
                    for event in events {
                        if let Some(shoot) = shoots.get(event.object.namespace()) {
                            shoot.poke();
                        }
                    }
                }
                WatchStep::Idle(_) => {
                    if !watch.changed().await {
                        return;
                    }
                }
                WatchStep::Gone(_) => break,
            }
        }
    }
}
