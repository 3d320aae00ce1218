//! Plays the controllers of a seed: what is wanted becomes ready after a while, or when the test lets it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// How long the simulated pods take to start and to stop.
const DELAY: Duration = Duration::from_millis(200);

pub fn kind(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

pub fn deployments() -> ApiResource {
    kind("apps", "v1", "Deployment", "deployments")
}

pub fn stateful_sets() -> ApiResource {
    kind("apps", "v1", "StatefulSet", "statefulsets")
}

pub fn engines() -> ApiResource {
    kind("machines.example.com", "v1", "Engine", "engines")
}

/// Somebody saw this many replicas of something wanted, or ready.
#[derive(Debug, Clone)]
pub struct Change {
    pub at: Instant,
    pub name: String,
    pub wanted: i64,
    pub is_ready: bool,
}

/// Plays the controllers of the seed for all namespaces: the status of everything follows its spec.
#[derive(Clone)]
pub struct Follower {
    seed: Client,
    pub changes: Arc<Mutex<Vec<Change>>>,
    pub held: watch::Sender<BTreeSet<String>>,
}

// === impl Follower ===

impl Follower {
    pub fn new(seed: &Client) -> Self {
        Self {
            seed: seed.clone(),
            changes: Arc::default(),
            held: watch::Sender::new(BTreeSet::new()),
        }
    }

    pub fn follow(&self, resource: ApiResource) -> AbortOnDropHandle<()> {
        let this = self.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            let all: Api<DynamicObject> = Api::all_with(this.seed.clone(), &resource);
            let objects = watcher(all, watcher::Config::default())
                .default_backoff()
                .applied_objects();
            // As many as there are objects at most; each waits for its delay only.
            objects
                .for_each_concurrent(2_000, |object| {
                    let (this, resource) = (this.clone(), resource.clone());
                    async move {
                        if let Ok(object) = object
                            && let Err(error) = this.settle(&resource, &object).await
                        {
                            eprintln!("the status of {} was not written: {error:#}", object.name_any());
                        }
                    }
                })
                .await;
        }))
    }

    async fn settle(&self, resource: &ApiResource, object: &DynamicObject) -> anyhow::Result<()> {
        let number = |pointer: &str| object.data.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
        let (spec, ready) = if resource.kind == "Engine" {
            (number("/spec/size"), number("/status/size"))
        } else {
            (number("/spec/replicas"), number("/status/readyReplicas"))
        };
        let generation = object.metadata.generation;
        if ready == spec && Some(number("/status/observedGeneration")) == generation {
            return Ok(());
        }
        let name = object.name_any();
        if ready != spec {
            self.note(&name, spec, false);
            tokio::time::sleep(DELAY).await;
        }
        self.held
            .subscribe()
            .wait_for(|held| !held.contains(&name))
            .await?;
        let status = json!({"status": {
            "observedGeneration": generation, "replicas": spec, "readyReplicas": spec, "size": spec,
        }});
        let namespace = object.namespace().unwrap_or_default();
        let api: Api<DynamicObject> = Api::namespaced_with(self.seed.clone(), &namespace, resource);
        // Before it is written: its watchers may see it before the answer is here.
        self.note(&name, spec, true);
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(())
    }

    fn note(&self, name: &str, wanted: i64, is_ready: bool) {
        let change = Change {
            at: Instant::now(),
            name: name.to_owned(),
            wanted,
            is_ready,
        };
        self.changes.lock().push(change);
    }

    /// When something was first, and last, seen to be wanted or ready at a count.
    pub fn first(&self, name: &str, wanted: i64, is_ready: bool) -> Option<Instant> {
        self.times(name, wanted, is_ready).into_iter().min()
    }

    pub fn last(&self, name: &str, wanted: i64, is_ready: bool) -> Option<Instant> {
        self.times(name, wanted, is_ready).into_iter().max()
    }

    pub fn times(&self, name: &str, wanted: i64, is_ready: bool) -> Vec<Instant> {
        let changes = self.changes.lock();
        let of = changes
            .iter()
            .filter(|c| c.name == name && c.wanted == wanted && c.is_ready == is_ready);
        of.map(|change| change.at).collect()
    }
}
