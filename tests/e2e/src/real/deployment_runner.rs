//! Plays what a seed's deployment controller and kubelets do: the status of Deployments follows their spec.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::bounded;
use crate::wait::BOUND;

/// One task per Deployment; a shoot's namespace holds about twenty.
const MAX_DEPLOYMENTS: usize = 100;

/// Pause after a hook or a write that failed.
const RETRY: Duration = Duration::from_millis(500);

/// How to run Deployments.
#[derive(Clone, Debug)]
pub struct DeploymentRunnerOptions {
    /// From a change of `spec.replicas` to the change of the ready replicas, in both directions.
    pub delay: Duration,
}

impl Default for DeploymentRunnerOptions {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(500),
        }
    }
}

/// A Deployment's ready replicas changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// When.
    pub at: Timestamp,
    /// The Deployment's name.
    pub name: String,
    /// Ready replicas before.
    pub previous: i32,
    /// Ready replicas from now on.
    pub ready: i32,
}

type Hook = Arc<dyn Fn(Change) -> BoxFuture<'static, anyhow::Result<()>> + Send + Sync>;

/// Runs the Deployments of one namespace until it is dropped.
#[derive(Debug)]
#[must_use = "the Deployments stop following their spec when this is dropped"]
pub struct DeploymentRunner {
    changes: Arc<Mutex<Vec<Change>>>,
    held: watch::Sender<BTreeSet<String>>,
    task: AbortHandle,
}

// === impl DeploymentRunner ===

impl DeploymentRunner {
    /// Starts it. `on_change` runs before each change of ready replicas is written, so that a test can start or stop
    /// the real program first; if it fails, that is printed and the change tried again.
    pub fn start<F, R>(seed: &Client, namespace: &str, options: DeploymentRunnerOptions, on_change: F) -> Self
    where
        F: Fn(Change) -> R + Send + Sync + 'static,
        R: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let changes = Arc::new(Mutex::new(Vec::new()));
        let held = watch::Sender::new(BTreeSet::new());
        let template = Worker {
            name: String::new(),
            deployments: Api::namespaced(seed.clone(), namespace),
            delay: options.delay,
            on_change: Arc::new(move |change| Box::pin(on_change(change))),
            changes: Arc::clone(&changes),
        };
        let task = tokio::spawn(dispatch(template, held.clone())).abort_handle();
        Self { changes, held, task }
    }

    /// Every change of ready replicas so far, in order.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        self.changes.lock().clone()
    }

    /// Keeps a Deployment as it is whatever its spec says: pods that do not start, or do not end.
    pub fn hold(&self, name: &str) {
        self.held.send_modify(|held| {
            held.insert(name.to_owned());
        });
    }

    /// Lets a held Deployment follow its spec again.
    pub fn release(&self, name: &str) {
        self.held.send_modify(|held| {
            held.remove(name);
        });
    }
}

impl Drop for DeploymentRunner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The state that a Deployment should have, or has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Replicas {
    count: i32,
    generation: i64,
}

/// Hands what the watch tells to one worker per Deployment. Ends, with the workers, when it is aborted.
async fn dispatch(template: Worker, held: watch::Sender<BTreeSet<String>>) {
    let mut workers = JoinSet::new();
    let mut wanted: BTreeMap<String, watch::Sender<Replicas>> = BTreeMap::new();
    let mut listed = BTreeSet::new();
    let events = watcher(template.deployments.clone(), watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        let deployment = match event {
            Ok(Event::Apply(deployment)) => deployment,
            Ok(Event::InitApply(deployment)) => {
                listed.insert(deployment.name_any());
                deployment
            }
            Ok(Event::Delete(deployment)) => {
                wanted.remove(&deployment.name_any());
                continue;
            }
            Ok(Event::InitDone) => {
                wanted.retain(|name, _| listed.contains(name));
                continue;
            }
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            // The watcher lists again by itself.
            Err(_) => continue,
        };
        let name = deployment.name_any();
        let (now, target) = (current(&deployment), target(&deployment));
        if let Some(sender) = wanted.get(&name) {
            sender.send_if_modified(|old| std::mem::replace(old, target) != target);
        } else if wanted.len() < MAX_DEPLOYMENTS {
            let (sender, receiver) = watch::channel(target);
            let worker = Worker {
                name: name.clone(),
                ..template.clone()
            };
            workers.spawn(worker.run(now, receiver, held.subscribe()));
            wanted.insert(name, sender);
        } else {
            eprintln!("the deployment runner ignores {name}: more than {MAX_DEPLOYMENTS} Deployments");
        }
        // Workers of deleted Deployments have ended.
        while workers.try_join_next().is_some() {}
    }
}

fn target(deployment: &Deployment) -> Replicas {
    let count = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    Replicas {
        count,
        generation: deployment.metadata.generation.unwrap_or_default(),
    }
}

fn current(deployment: &Deployment) -> Replicas {
    let status = deployment.status.clone().unwrap_or_default();
    Replicas {
        count: status.ready_replicas.unwrap_or_default(),
        generation: status.observed_generation.unwrap_or_default(),
    }
}

/// Runs one Deployment.
#[derive(Clone)]
struct Worker {
    name: String,
    deployments: Api<Deployment>,
    delay: Duration,
    on_change: Hook,
    changes: Arc<Mutex<Vec<Change>>>,
}

// === impl Worker ===

impl Worker {
    /// Ends when the sender of `wanted` is dropped: the Deployment is gone.
    async fn run(
        self,
        mut now: Replicas,
        mut wanted: watch::Receiver<Replicas>,
        mut held: watch::Receiver<BTreeSet<String>>,
    ) {
        loop {
            let target = *wanted.borrow_and_update();
            let is_held = held.borrow_and_update().contains(&self.name);
            if is_held || target == now {
                tokio::select! {
                    gone = wanted.changed() => if gone.is_err() { break },
                    gone = held.changed() => if gone.is_err() { break },
                }
                continue;
            }
            if target.count != now.count {
                tokio::select! {
                    () = sleep(self.delay) => {}
                    // Turned round meanwhile, held, or deleted: look again.
                    gone = wanted.changed() => if gone.is_err() { break } else { continue },
                    gone = held.changed() => if gone.is_err() { break } else { continue },
                }
            }
            match self.apply(now, target).await {
                Ok(()) => now = target,
                Err(error) => {
                    eprintln!("the deployment runner tries {} again: {error:#}", self.name);
                    sleep(RETRY).await;
                    if wanted.has_changed().is_err() {
                        break;
                    }
                }
            }
        }
        if now.count != 0
            && let Err(error) = self.change(now.count, 0).await
        {
            eprintln!("the deployment runner could not end {}: {error:#}", self.name);
        }
    }

    async fn apply(&self, now: Replicas, target: Replicas) -> anyhow::Result<()> {
        if now.count != target.count {
            self.change(now.count, target.count).await?;
        }
        let Replicas { count, generation } = target;
        let status = json!({"status": {
            "observedGeneration": generation,
            "replicas": count,
            "updatedReplicas": count,
            "readyReplicas": count,
            "availableReplicas": count,
        }});
        let params = PatchParams::default();
        let patch = Patch::Merge(status);
        bounded(
            "write a status",
            self.deployments.patch_status(&self.name, &params, &patch),
        )
        .await?;
        Ok(())
    }

    async fn change(&self, previous: i32, ready: i32) -> anyhow::Result<()> {
        let change = Change {
            at: Timestamp::now(),
            name: self.name.clone(),
            previous,
            ready,
        };
        timeout(BOUND, (self.on_change)(change.clone()))
            .await
            .context("the hook did not come to an end")??;
        let mut changes = self.changes.lock();
        // A write that failed is tried again with its hook; it is one change all the same.
        if changes
            .iter()
            .rev()
            .find(|c| c.name == self.name)
            .map(|c| c.ready)
            != Some(ready)
        {
            changes.push(change);
        }
        Ok(())
    }
}
