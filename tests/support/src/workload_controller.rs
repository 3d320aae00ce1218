//! Plays what a seed's workload controllers and kubelets do: the status of Deployments, and of other kinds with
//! replicas, follows their spec after a while, or when the test lets it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::wait::BOUND;

/// One task per object: three for each of 10,000 shoots, and room.
const MAX_OBJECTS: usize = 40_000;

/// Changes that are remembered: four per dependant of 10,000 shoots, and as many again.
const MAX_CHANGES: usize = 250_000;

/// Writes of a status at the same time.
const MAX_WRITES: usize = 16;

/// Pause after a hook or a write that failed.
const RETRY: Duration = Duration::from_millis(500);

/// How long one write may take.
const WRITE_BOUND: Duration = Duration::from_secs(30);

/// Deployments, as [`WorkloadOptions::kinds`] takes them.
pub fn deployments() -> ApiResource {
    kind("apps", "v1", "Deployment", "deployments")
}

/// Any kind.
pub fn kind(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// Replicas of an object changed: those that it wants, or those that are ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicasChange {
    /// When.
    pub at: Timestamp,
    /// The object's namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// Replicas from now on.
    pub replicas: i64,
    /// True if they are ready, false if they are only wanted.
    pub is_ready: bool,
}

type Hook = Arc<dyn Fn(ReplicasChange) -> BoxFuture<'static, anyhow::Result<()>> + Send + Sync>;

/// The objects that follow their spec, and how.
#[derive(Clone)]
pub struct WorkloadOptions {
    kinds: Vec<ApiResource>,
    namespace: Option<String>,
    delay: Duration,
    hook: Hook,
}

// === impl WorkloadOptions ===

impl WorkloadOptions {
    /// The Deployments of all namespaces. `delay` passes from a change of the wanted replicas to the change of the
    /// ready ones, in both directions.
    pub fn new(delay: Duration) -> Self {
        Self {
            kinds: vec![deployments()],
            namespace: None,
            delay,
            hook: Arc::new(|_| Box::pin(async { Ok(()) })),
        }
    }

    /// Only those of one namespace.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// These kinds. Replicas are at `/spec/replicas` or `/spec/size`.
    pub fn kinds(mut self, kinds: Vec<ApiResource>) -> Self {
        self.kinds = kinds;
        self
    }

    /// Runs `hook` before each change of ready replicas is written, so that a test can start or stop the real program
    /// first. A hook that fails is printed and tried again.
    pub fn before_ready<F, R>(mut self, hook: F) -> Self
    where
        F: Fn(ReplicasChange) -> R + Send + Sync + 'static,
        R: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.hook = Arc::new(move |change| Box::pin(hook(change)));
        self
    }
}

/// Runs the workloads of a seed until it is dropped.
#[must_use = "the workloads stop following their spec when this is dropped"]
pub struct WorkloadController {
    shared: Arc<ControllerState>,
    tasks: Vec<AbortOnDropHandle<()>>,
}

struct ControllerState {
    seed: Client,
    options: WorkloadOptions,
    changes: Mutex<Vec<ReplicasChange>>,
    held: watch::Sender<BTreeSet<String>>,
    writes: Semaphore,
}

// === impl WorkloadController ===

impl WorkloadController {
    pub fn start(seed: &Client, options: WorkloadOptions) -> Self {
        let shared = Arc::new(ControllerState {
            seed: seed.clone(),
            options,
            changes: Mutex::default(),
            held: watch::Sender::new(BTreeSet::new()),
            writes: Semaphore::new(MAX_WRITES),
        });
        let tasks = follow_all(&shared);
        Self { shared, tasks }
    }

    /// Starts again from a list: watches know nothing of an etcd that was restored.
    pub fn restart(&mut self) {
        self.tasks.clear();
        self.tasks = follow_all(&self.shared);
    }

    /// Every change so far, in order.
    pub fn changes(&self) -> Vec<ReplicasChange> {
        self.shared.changes.lock().clone()
    }

    /// Forgets the changes so far.
    pub fn forget_changes(&self) {
        self.shared.changes.lock().clear();
    }

    /// When an object was seen first to want (or have ready) this many replicas.
    pub fn first(&self, name: &str, replicas: i64, is_ready: bool) -> Option<Timestamp> {
        let changes = self.shared.changes.lock();
        let mut of = changes.iter().filter(|change| {
            (change.name.as_str(), change.replicas, change.is_ready) == (name, replicas, is_ready)
        });
        of.next().map(|change| change.at)
    }

    /// Keeps objects of this name as they are whatever their spec says: pods that do not start, or do not end.
    pub fn hold(&self, name: &str) {
        self.shared
            .held
            .send_modify(|held| _ = held.insert(name.to_owned()));
    }

    /// Lets everything that is held follow its spec again.
    pub fn release(&self) {
        self.shared.held.send_modify(BTreeSet::clear);
    }
}

fn follow_all(shared: &Arc<ControllerState>) -> Vec<AbortOnDropHandle<()>> {
    let kinds = shared.options.kinds.iter().cloned();
    kinds
        .map(|kind| AbortOnDropHandle::new(tokio::spawn(follow(shared.clone(), kind))))
        .collect()
}

/// The replicas that an object should have, or has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scale {
    count: i64,
    generation: i64,
}

/// Gives each object of a kind a task. Ends, with the tasks, when it is aborted.
async fn follow(shared: Arc<ControllerState>, resource: ApiResource) {
    let objects: Api<DynamicObject> = match &shared.options.namespace {
        Some(namespace) => Api::namespaced_with(shared.seed.clone(), namespace, &resource),
        None => Api::all_with(shared.seed.clone(), &resource),
    };
    let events = watcher(objects, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    let mut tasks = JoinSet::new();
    let mut wanted: BTreeMap<(String, String), watch::Sender<Scale>> = BTreeMap::new();
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        let object = match event {
            Ok(Event::Apply(object)) => object,
            Ok(Event::InitApply(object)) => {
                listed.insert(key(&object));
                object
            }
            Ok(Event::Delete(object)) => {
                wanted.remove(&key(&object));
                continue;
            }
            Ok(Event::InitDone) => {
                wanted.retain(|key, _| listed.contains(key));
                continue;
            }
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            // The watcher lists again by itself.
            Err(_) => continue,
        };
        let target = target(&object);
        if let Some(sender) = wanted.get(&key(&object)) {
            sender.send_if_modified(|old| std::mem::replace(old, target) != target);
        } else if wanted.len() < MAX_OBJECTS {
            let (sender, receiver) = watch::channel(target);
            let workload = ControlledWorkload::new(&shared, &resource, &object);
            tasks.spawn(workload.run(current(&object), receiver));
            wanted.insert(key(&object), sender);
        } else {
            eprintln!(
                "the workload controller ignores {}: more than {MAX_OBJECTS} objects",
                object.name_any()
            );
        }
        // Those of deleted objects have ended.
        while tasks.try_join_next().is_some() {}
    }
}

fn key(object: &DynamicObject) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn number(object: &DynamicObject, pointers: [&str; 2]) -> Option<i64> {
    let mut found = pointers.iter().filter_map(|pointer| object.data.pointer(pointer));
    found.next().and_then(Value::as_i64)
}

fn target(object: &DynamicObject) -> Scale {
    Scale {
        count: number(object, ["/spec/replicas", "/spec/size"]).unwrap_or(1),
        generation: object.metadata.generation.unwrap_or_default(),
    }
}

fn current(object: &DynamicObject) -> Scale {
    let observed = object.data.pointer("/status/observedGeneration");
    Scale {
        count: number(object, ["/status/readyReplicas", "/status/size"]).unwrap_or_default(),
        generation: observed.and_then(Value::as_i64).unwrap_or_default(),
    }
}

/// One object.
struct ControlledWorkload {
    shared: Arc<ControllerState>,
    api: Api<DynamicObject>,
    namespace: String,
    name: String,
    /// True if its replicas are at `size`.
    has_size: bool,
    /// The replicas that were noted last: wanted, and ready.
    noted: (i64, i64),
}

// === impl ControlledWorkload ===

impl ControlledWorkload {
    fn new(shared: &Arc<ControllerState>, resource: &ApiResource, object: &DynamicObject) -> Self {
        let (namespace, name) = key(object);
        let ready = current(object).count;
        Self {
            shared: shared.clone(),
            api: Api::namespaced_with(shared.seed.clone(), &namespace, resource),
            namespace,
            name,
            has_size: object.data.pointer("/spec/size").is_some(),
            noted: (ready, ready),
        }
    }

    /// Ends when the sender of `wanted` is dropped: the object is gone.
    async fn run(mut self, mut now: Scale, mut wanted: watch::Receiver<Scale>) {
        let mut held = self.shared.held.subscribe();
        loop {
            let target = *wanted.borrow_and_update();
            if target.count != self.noted.0 {
                self.noted.0 = target.count;
                self.note(self.change(target.count, false));
            }
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
                    () = sleep(self.shared.options.delay) => {}
                    // Turned round meanwhile, held, or deleted: look again.
                    gone = wanted.changed() => if gone.is_err() { break } else { continue },
                    gone = held.changed() => if gone.is_err() { break } else { continue },
                }
            }
            match self.reach(now, target).await {
                Ok(()) => now = target,
                Err(error) => {
                    eprintln!("the workload controller tries {} again: {error:#}", self.name);
                    sleep(RETRY).await;
                    if wanted.has_changed().is_err() {
                        break;
                    }
                }
            }
        }
        if now.count != 0
            && let Err(error) = self.change_ready(0).await
        {
            eprintln!("the workload controller could not end {}: {error:#}", self.name);
        }
    }

    async fn reach(&mut self, now: Scale, target: Scale) -> anyhow::Result<()> {
        if now.count != target.count {
            self.change_ready(target.count).await?;
        }
        let Scale { count, generation } = target;
        let mut status = json!({
            "observedGeneration": generation,
            "replicas": count,
            "updatedReplicas": count,
            "readyReplicas": count,
            "availableReplicas": count,
        });
        if self.has_size {
            status = json!({"observedGeneration": generation, "size": count});
        }
        let patch = Patch::Merge(json!({"status": status}));
        let params = PatchParams::default();
        let _permit = self.shared.writes.acquire().await?;
        timeout(WRITE_BOUND, self.api.patch_status(&self.name, &params, &patch))
            .await
            .context("the API server does not answer")??;
        Ok(())
    }

    /// Noted before it is written: watchers may see it before the answer is here.
    async fn change_ready(&mut self, ready: i64) -> anyhow::Result<()> {
        let change = self.change(ready, true);
        timeout(BOUND, (self.shared.options.hook)(change.clone()))
            .await
            .context("the hook did not come to an end")??;
        // A write that failed is tried again with its hook; it is one change all the same.
        if self.noted.1 != ready {
            self.noted.1 = ready;
            self.note(change);
        }
        Ok(())
    }

    fn change(&self, replicas: i64, is_ready: bool) -> ReplicasChange {
        ReplicasChange {
            at: Timestamp::now(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            replicas,
            is_ready,
        }
    }

    fn note(&self, change: ReplicasChange) {
        let mut changes = self.shared.changes.lock();
        if changes.len() < MAX_CHANGES {
            changes.push(change);
        }
    }
}
