//! Control planes for the weeder: pods that crash in a loop while what they need is down, and the Services before them.
//! Tests write through the API of the seed what its kubelets and controllers would write.
//!
//! ```text
//!   etcd-main-0..n  <-- etcd-main-client --  kube-apiserver  <-- kube-apiserver --  three controllers
//!                                                                 (nothing)         gardener-resource-manager
//! ```
//!
//! A pod whose need is down crashes and stays in CrashLoopBackOff until somebody deletes it: kubelet's back-off is
//! longer than any scenario. Its successor runs if the need is there.

pub mod objects;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::stream::{self, StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use self::objects::Writer;
use self::view::ReadinessView;
use super::seed::Seed;
use watchdog_test_support::real::create_namespace;
use watchdog_test_support::wait::{self, BOUND};

/// Requests at once: the API server works on two cores beside its tests.
const AT_ONCE: usize = 16;

/// The component before etcd.
pub const API_SERVER: &str = "kube-apiserver";

/// The first member of etcd.
pub const ETCD: &str = "etcd-main-0";

#[derive(Clone, Copy, Debug)]
struct ControlPlaneComponent {
    name: &'static str,
    role: &'static str,
    needs: Option<NeededService>,
}

/// The objects that others need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NeededService {
    Etcd,
    ApiServer,
}

const ETCD_MEMBERS: [&str; 3] = [ETCD, "etcd-main-1", "etcd-main-2"];

/// All but etcd.
const COMPONENTS: [ControlPlaneComponent; 5] = [
    component(API_SERVER, "apiserver", Some(NeededService::Etcd)),
    component(
        "kube-controller-manager",
        "controller-manager",
        Some(NeededService::ApiServer),
    ),
    component(
        "machine-controller-manager",
        "machine-controller-manager",
        Some(NeededService::ApiServer),
    ),
    component(
        "cluster-autoscaler",
        "cluster-autoscaler",
        Some(NeededService::ApiServer),
    ),
    component("gardener-resource-manager", "resource-manager", None),
];

const fn component(
    name: &'static str,
    role: &'static str,
    needs: Option<NeededService>,
) -> ControlPlaneComponent {
    ControlPlaneComponent { name, role, needs }
}

/// All control planes of a seed.
pub struct ControlPlanes {
    writer: Writer,
    view: Arc<ReadinessView>,
    control_planes: Mutex<BTreeMap<String, Arc<ControlPlane>>>,
    requests: Arc<Semaphore>,
}

/// Lets pods come back while it lives.
pub struct Following(#[expect(dead_code, reason = "held for its end")] AbortOnDropHandle<()>);

pub struct ControlPlane {
    namespace: String,
    members: usize,
    writer: Writer,
    view: Arc<ReadinessView>,
    state: tokio::sync::Mutex<ComponentStates>,
}

#[derive(Default)]
struct ComponentStates {
    /// Components that are down, whatever they need.
    out: BTreeSet<String>,
    /// Components that crash although what they need is there.
    broken: BTreeSet<String>,
    pods: BTreeMap<&'static str, RunningPod>,
    /// Readiness of the services as it was published last.
    published: BTreeMap<&'static str, Vec<(String, bool)>>,
    deletions: Vec<OtherDeletion>,
}

struct RunningPod {
    name: String,
    uid: String,
    created: Timestamp,
    crashed: bool,
    /// True if its status says so.
    shown: bool,
}

/// Somebody else deleted a pod.
#[derive(Clone, Debug)]
pub struct OtherDeletion {
    /// The component that it was of.
    pub component: &'static str,
    /// True if it was in CrashLoopBackOff.
    pub crashed: bool,
    /// True if what it needs was there.
    pub need_met: bool,
}

// === impl ControlPlanes ===

impl ControlPlanes {
    /// Follows the pods of a seed.
    ///
    /// # Errors
    /// When the seed does not answer.
    pub async fn start(seed: &Seed) -> anyhow::Result<(Arc<Self>, Following)> {
        let control_planes = Arc::new(Self {
            writer: Writer::new(&seed.client).await?,
            view: Arc::new(ReadinessView::follow(seed)),
            control_planes: Mutex::default(),
            requests: Arc::new(Semaphore::new(AT_ONCE)),
        });
        let task = tokio::spawn(follow(seed.client.clone(), control_planes.clone()));
        Ok((control_planes, Following(AbortOnDropHandle::new(task))))
    }

    /// Makes a control plane with this many members of etcd (at most three), all of it ready.
    ///
    /// # Errors
    /// When the seed does not answer.
    pub async fn add(&self, namespace: &str, members: usize) -> anyhow::Result<Arc<ControlPlane>> {
        create_namespace(self.writer.client(), namespace).await?;
        let plane = Arc::new(ControlPlane {
            namespace: namespace.to_owned(),
            members,
            writer: self.writer.clone(),
            view: self.view.clone(),
            state: tokio::sync::Mutex::default(),
        });
        self.control_planes
            .lock()
            .insert(namespace.to_owned(), plane.clone());
        plane.settle().await?;
        Ok(plane)
    }

    fn find(&self, namespace: &str) -> Option<Arc<ControlPlane>> {
        self.control_planes.lock().get(namespace).cloned()
    }

    fn all(&self) -> Vec<Arc<ControlPlane>> {
        self.control_planes.lock().values().cloned().collect()
    }

    /// A pod of a plane is gone.
    fn replace(&self, running: &mut JoinSet<()>, plane: Option<Arc<ControlPlane>>, uid: Option<String>) {
        let (Some(plane), Some(uid)) = (plane, uid) else {
            return;
        };
        let requests = self.requests.clone();
        running.spawn(async move {
            let _permit = requests.acquire_owned().await;
            // The seed may be away.
            let replaced = wait::until("a pod has a successor", BOUND, || async {
                plane.deleted(&uid).await?;
                Ok(Some(()))
            });
            if let Err(error) = replaced.await {
                eprintln!("no successor in {}: {error:#}", plane.namespace);
            }
        });
    }

    /// The errors in what was done to the pods of namespaces with this prefix.
    pub(super) async fn wrong_deletions(&self, prefix: &str) -> Vec<String> {
        let control_planes: Vec<_> = {
            let all = self.control_planes.lock();
            let of = all.iter().filter(|(namespace, _)| namespace.starts_with(prefix));
            of.map(|(_, plane)| plane.clone()).collect()
        };
        let mut wrong = Vec::new();
        for plane in control_planes {
            let deletions = plane.deletions().await;
            let bad = deletions
                .iter()
                .filter(|deletion| !deletion.crashed || !deletion.need_met);
            wrong.extend(bad.map(|deletion| format!("{}: weeded wrongly: {deletion:?}", plane.namespace)));
        }
        wrong
    }
}

/// Drives many, some at once.
///
/// # Errors
/// The first that there is.
pub fn at_once<T, F>(actions: impl IntoIterator<Item = F>) -> impl Future<Output = anyhow::Result<Vec<T>>>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let actions: Vec<_> = actions.into_iter().collect();
    stream::iter(actions).buffer_unordered(AT_ONCE).try_collect()
}

/// Makes a successor for each pod that is deleted.
async fn follow(seed: Client, control_planes: Arc<ControlPlanes>) {
    let config = watcher::Config::default().labels(objects::SELECTOR);
    let events = watcher(Api::<Pod>::all(seed), config).default_backoff();
    let mut events = std::pin::pin!(events);
    let mut running = JoinSet::new();
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Delete(pod)) => {
                let plane = control_planes.find(&pod.namespace().unwrap_or_default());
                control_planes.replace(&mut running, plane, pod.uid());
            }
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(pod)) => listed.extend(pod.uid()),
            // After a break: the watch does not bring what was deleted meanwhile.
            Ok(Event::InitDone) => {
                for plane in control_planes.all() {
                    for uid in plane.missing(&listed).await {
                        control_planes.replace(&mut running, Some(plane.clone()), Some(uid));
                    }
                }
            }
            Ok(Event::Apply(_)) | Err(_) => {}
        }
        while running.try_join_next().is_some() {}
    }
}

// === impl ControlPlane ===

impl ControlPlane {
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A component goes down: what needs it crashes.
    ///
    /// # Errors
    /// When the seed does not answer.
    pub async fn down(&self, component: &str) -> anyhow::Result<()> {
        self.state.lock().await.out.insert(component.to_owned());
        self.settle().await
    }

    /// A component is there again; what has crashed stays so until it is deleted.
    ///
    /// # Errors
    /// When the seed does not answer.
    pub async fn up(&self, component: &str) -> anyhow::Result<()> {
        self.state.lock().await.out.remove(component);
        self.settle().await
    }

    /// A component crashes from now on for reasons of its own, and so does each successor.
    ///
    /// # Errors
    /// When the seed does not answer.
    pub async fn breaks(&self, component: &str) -> anyhow::Result<()> {
        self.state.lock().await.broken.insert(component.to_owned());
        self.settle().await
    }

    /// Components whose pod is in CrashLoopBackOff now.
    pub async fn crashed(&self) -> Vec<&'static str> {
        let state = self.state.lock().await;
        let crashed = state.pods.iter().filter(|(_, pod)| pod.crashed);
        crashed.map(|(name, _)| *name).collect()
    }

    /// The deletions so far.
    pub async fn deletions(&self) -> Vec<OtherDeletion> {
        self.state.lock().await.deletions.clone()
    }

    /// Components whose pods were deleted so far, in that order.
    pub async fn deleted_components(&self) -> Vec<&'static str> {
        let deletions = self.deletions().await;
        deletions.iter().map(|deletion| deletion.component).collect()
    }

    /// Waits until nothing crashes any more.
    ///
    /// # Errors
    /// When something still does.
    pub async fn wait_runs(&self, bound: Duration) -> anyhow::Result<()> {
        let what = format!("everything runs in {}", self.namespace);
        wait::until_true(&what, bound, || async {
            let crashed = self.crashed().await;
            if crashed.is_empty() {
                return Ok(true);
            }
            bail!("{crashed:?} crashed");
        })
        .await
    }

    /// Waits until no pod was created in the current second: Kubernetes' times are whole seconds, and a pod takes
    /// longer than one from its creation to CrashLoopBackOff.
    ///
    /// # Errors
    /// When one still was.
    pub async fn wait_aged(&self, bound: Duration) -> anyhow::Result<()> {
        let what = format!("the pods in {} are older than a second", self.namespace);
        wait::until_true(&what, bound, || async {
            let state = self.state.lock().await;
            let newest = state.pods.values().map(|pod| pod.created.as_second()).max();
            Ok(newest.is_none_or(|newest| newest < Timestamp::now().as_second()))
        })
        .await
    }

    /// UIDs of pods that were not listed and are really gone.
    async fn missing(&self, listed: &BTreeSet<String>) -> Vec<String> {
        let state = self.state.lock().await;
        let mut missing = Vec::new();
        for pod in state.pods.values().filter(|pod| !listed.contains(&pod.uid)) {
            // It may be younger than the list.
            if self.writer.is_gone(&self.namespace, &pod.name).await {
                missing.push(pod.uid.clone());
            }
        }
        missing
    }

    async fn deleted(&self, uid: &str) -> anyhow::Result<()> {
        let mut state = self.state.lock().await;
        let found = state.pods.iter().find(|(_, pod)| pod.uid == uid);
        let Some((&component, pod)) = found else {
            // Known already; its successor may still be missing.
            drop(state);
            return self.settle().await;
        };
        let needs = COMPONENTS
            .iter()
            .find(|c| c.name == component)
            .and_then(|c| c.needs);
        let deletion = OtherDeletion {
            component,
            crashed: pod.crashed,
            need_met: needs.is_some_and(|service| self.is_ready(service, &state)),
        };
        state.deletions.push(deletion);
        state.pods.remove(component);
        drop(state);
        self.settle().await
    }

    /// Does what kubelets and controllers would do now: a Service that has lost what is behind it is known to be down
    /// before anything crashes because of it.
    async fn settle(&self) -> anyhow::Result<()> {
        let mut state = self.state.lock().await;
        let members = ETCD_MEMBERS.iter().take(self.members);
        let etcd = members.map(|name| component(name, "main", None));
        // In the order of their needs, so that one round is enough.
        for component in etcd.chain(COMPONENTS) {
            if !state.pods.contains_key(component.name) {
                let running = self.start_pod(component).await?;
                state.pods.insert(component.name, running);
            }
            let met = component
                .needs
                .is_none_or(|service| self.is_ready(service, &state));
            let met = met && !state.broken.contains(component.name);
            if let Some(pod) = state.pods.get_mut(component.name) {
                pod.crashed |= !met;
            }
        }
        self.publish(&mut state).await?;
        for pod in state.pods.values_mut().filter(|pod| pod.crashed && !pod.shown) {
            self.writer.crash(&self.namespace, &pod.name).await?;
            pod.shown = true;
        }
        Ok(())
    }

    async fn start_pod(&self, component: ControlPlaneComponent) -> anyhow::Result<RunningPod> {
        let created = self
            .writer
            .create(&self.namespace, component.name, component.role);
        let pod = created.await?;
        Ok(RunningPod {
            name: pod.name_any(),
            uid: pod.uid().context("a pod without a UID")?,
            created: pod
                .creation_timestamp()
                .context("a pod without a creation time")?
                .0,
            crashed: false,
            shown: false,
        })
    }

    /// Writes what is behind the Services, and waits until the weeder has received it.
    async fn publish(&self, state: &mut ComponentStates) -> anyhow::Result<()> {
        let etcd: Vec<_> = ETCD_MEMBERS.iter().take(self.members).copied().collect();
        for (service, behind) in [("etcd-main-client", etcd), ("kube-apiserver", vec![API_SERVER])] {
            let pod = |name: &&str| Some((state.pods.get(name)?.name.clone(), state.is_up(name)));
            let pods: Vec<_> = behind.iter().filter_map(pod).collect();
            if state.published.get(service) == Some(&pods) {
                continue;
            }
            self.writer.publish(&self.namespace, service, &pods).await?;
            let count = pods.iter().filter(|(_, ready)| *ready).count();
            state.published.insert(service, pods);
            self.view.knows(&self.namespace, service, count).await?;
        }
        Ok(())
    }

    fn is_ready(&self, service: NeededService, state: &ComponentStates) -> bool {
        match service {
            NeededService::Etcd => ETCD_MEMBERS
                .iter()
                .take(self.members)
                .any(|name| state.is_up(name)),
            NeededService::ApiServer => state.is_up(API_SERVER),
        }
    }
}

impl ComponentStates {
    fn is_up(&self, component: &str) -> bool {
        let crashed = |name| self.pods.get(name).is_none_or(|pod: &RunningPod| pod.crashed);
        !self.out.contains(component) && !crashed(component)
    }
}
