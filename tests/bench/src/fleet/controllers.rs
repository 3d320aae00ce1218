//! Plays the seed's Deployment controller for the dependants of all shoots, and notes when they were scaled.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Semaphore;
use watchdog_e2e::fixtures::{CA, KCM, MCM};

use super::now;

/// From the wish for other replicas to ready ones: pods that are pulled already.
const DELAY: Duration = Duration::from_millis(200);

/// Deployments that wait for their delay at most.
const WAITING: usize = 40_000;

/// Writes of a status at the same time.
const AT_ONCE: usize = 16;

/// Changes that are remembered at most: four per dependant of 10,000 shoots, and as many again.
const MAX_CHANGES: usize = 250_000;

/// A dependant's replicas changed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Change {
    /// When, in microseconds since 1970.
    pub at: i64,
    /// The shoot's namespace.
    pub shoot: String,
    /// The Deployment.
    pub name: String,
    /// Replicas that are wanted (`ready` false) or ready (`ready` true) from now on.
    pub replicas: i32,
    /// True if they are ready, or only wanted.
    pub ready: bool,
}

/// The controller. Clones share it.
#[derive(Clone)]
pub struct Controllers {
    seed: Client,
    changes: Arc<Mutex<Vec<Change>>>,
    places: Arc<Semaphore>,
}

impl std::fmt::Debug for Controllers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controllers").finish_non_exhaustive()
    }
}

impl Controllers {
    /// Starts it; it runs as long as the process.
    #[must_use]
    pub fn start(seed: &Client) -> Self {
        let controllers = Self {
            seed: seed.clone(),
            changes: Arc::default(),
            places: Arc::new(Semaphore::new(AT_ONCE)),
        };
        tokio::spawn(controllers.clone().run());
        controllers
    }

    /// Everything that was seen so far.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        self.changes.lock().clone()
    }

    async fn run(self) {
        let all: Api<Deployment> = Api::all(self.seed.clone());
        let deployments = watcher(all, watcher::Config::default())
            .default_backoff()
            .applied_objects();
        deployments
            .for_each_concurrent(WAITING, |deployment| async {
                if let Ok(deployment) = deployment
                    && [KCM, MCM, CA].contains(&deployment.name_any().as_str())
                    && let Err(error) = self.settle(&deployment).await
                {
                    eprintln!(
                        "the status of {} was not written: {error:#}",
                        deployment.name_any()
                    );
                }
            })
            .await;
    }

    async fn settle(&self, deployment: &Deployment) -> anyhow::Result<()> {
        let wanted = deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1);
        let status = deployment.status.clone().unwrap_or_default();
        let ready = status.ready_replicas.unwrap_or(0);
        if ready == wanted && status.observed_generation == deployment.metadata.generation {
            return Ok(());
        }
        if ready != wanted {
            self.note(deployment, wanted, false);
            tokio::time::sleep(DELAY).await;
        }
        let patch = json!({"status": {
            "observedGeneration": deployment.metadata.generation, "replicas": wanted, "readyReplicas": wanted,
        }});
        let namespace = deployment.namespace().unwrap_or_default();
        let api: Api<Deployment> = Api::namespaced(self.seed.clone(), &namespace);
        let _place = self.places.acquire().await?;
        api.patch_status(
            &deployment.name_any(),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await?;
        if ready != wanted {
            self.note(deployment, wanted, true);
        }
        Ok(())
    }

    fn note(&self, deployment: &Deployment, replicas: i32, ready: bool) {
        let mut changes = self.changes.lock();
        if changes.len() < MAX_CHANGES {
            changes.push(Change {
                at: now(),
                shoot: deployment.namespace().unwrap_or_default(),
                name: deployment.name_any(),
                replicas,
                ready,
            });
        }
    }
}
