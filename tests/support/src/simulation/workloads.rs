//! The workloads in a shoot's namespace on the seed: Deployments and StatefulSets, their pods, and the Services before
//! them. Everything that stands there is simulated, also what a test puts there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;
use watchdog_sandbox::resource::{ResourceKey, keys};
use watchdog_sandbox::store::object::{Object, string_map};
use watchdog_sandbox::store::{Preconditions, Store, WriteOptions, random_suffix};

use super::components::NEEDS_ANNOTATION;
use super::pod::{PodInputs, PodPhase, PodState};
use super::timing::SimTiming;

/// Why a container that waits out its back-off is not running.
const CRASH_LOOP: &str = "CrashLoopBackOff";

/// When that happened which made the endpoints change, as the endpoints controller writes it.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

static KINDS: [(&str, ResourceKey); 2] = [
    ("Deployment", keys::DEPLOYMENTS),
    ("StatefulSet", keys::STATEFUL_SETS),
];

type Labels = BTreeMap<String, String>;

#[derive(Debug)]
pub(super) struct Workloads {
    seed: Arc<Store>,
    namespace: String,
    timing: SimTiming,
    state: Mutex<RunningPods>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct RunningPods {
    pods: BTreeMap<String, SimulatedPod>,
    /// Services that a test made unready.
    out: BTreeSet<String>,
    addresses: u32,
    /// After the first step pods take their time to become ready.
    is_settled: bool,
}

#[derive(Debug)]
struct SimulatedPod {
    state: PodState,
    /// UID of the object: a pod of the same name that someone else made is not ours.
    uid: String,
    /// UID of its Deployment or StatefulSet.
    owner: String,
    ip: String,
    labels: Labels,
    /// The Service that it needs; empty when it needs none.
    needs: String,
    /// When it goes, once it is no longer wanted.
    leaves: Option<Instant>,
}

// === impl SimulatedPod ===

impl SimulatedPod {
    /// True if it counts as an endpoint.
    fn is_serving(&self) -> bool {
        self.state.is_ready() && self.leaves.is_none()
    }
}

// === impl Workloads ===

impl Workloads {
    pub(super) fn new(seed: &Arc<Store>, namespace: &str, timing: &SimTiming) -> Self {
        Self {
            seed: seed.clone(),
            namespace: namespace.to_owned(),
            timing: timing.clone(),
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Something may have changed in the namespace.
    pub(super) fn poke(&self) {
        self.changed.notify_one();
    }

    /// Waits until something has changed, or this time.
    pub(super) async fn wait(&self, due: Option<Instant>) {
        let timer = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.changed.notified() => {}
            () = timer => {}
        }
    }

    /// Makes the pods behind a Service unready until they are released.
    pub(super) fn set_out(&self, service: &str, out: bool) {
        let mut state = self.state.lock();
        match out {
            true => _ = state.out.insert(service.to_owned()),
            false => _ = state.out.remove(service),
        }
        self.poke();
    }

    /// True if a Deployment has a pod that is ready.
    pub(super) fn runs(&self, deployment: &str) -> bool {
        let found = self.seed.find(&keys::DEPLOYMENTS, &self.namespace, deployment);
        found.is_some_and(|object| object.number("/status/readyReplicas") > 0)
    }

    /// Follows the objects, lets the pods live, and reports back; returns when the next step is due.
    pub(super) fn step(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let mut workloads = Vec::new();
        for (kind, resource) in &KINDS {
            let objects = self.seed.all(resource, Some(&self.namespace)).into_iter();
            workloads.extend(objects.map(|object| (*kind, resource, object)));
        }
        let services = self.seed.all(&keys::SERVICES, Some(&self.namespace));
        let selectors = services.iter().map(|service| {
            let selector = string_map(service.value().pointer("/spec/selector"));
            (service.name().to_owned(), selector)
        });
        let selectors: Vec<_> = selectors.filter(|(_, selector)| !selector.is_empty()).collect();

        self.end_pods(&mut state, &workloads, now);
        for (kind, _, object) in &workloads {
            self.follow(&mut state, kind, object, now);
        }
        self.live(&mut state, &selectors, now);
        state.is_settled = true;

        for (name, pod) in &state.pods {
            self.publish_pod(name, pod);
        }
        for (service, selector) in &selectors {
            let behind = state
                .pods
                .iter()
                .filter(|(_, pod)| matches(selector, &pod.labels));
            self.publish_endpoints(service, behind);
        }
        for (_, resource, object) in &workloads {
            self.publish_status(&state, resource, object);
        }
        let pods = state.pods.values();
        pods.flat_map(|pod| [pod.leaves, pod.state.until]).flatten().min()
    }

    /// Forgets pods that somebody has deleted: they are replaced at once, with fresh back-off. Deletes those whose time
    /// to go has come.
    fn end_pods(
        &self,
        state: &mut RunningPods,
        workloads: &[(&str, &ResourceKey, Arc<Object>)],
        now: Instant,
    ) {
        state.pods.retain(|name, pod| {
            let found = self.seed.find(&keys::PODS, &self.namespace, name);
            if found.is_none_or(|object| object.uid() != pod.uid) {
                return false;
            }
            let has_owner = workloads.iter().any(|(_, _, object)| object.uid() == pod.owner);
            let stays = has_owner && pod.leaves.is_none_or(|leaves| leaves > now);
            if !stays {
                let none = Preconditions::default();
                let _ = self.seed.delete(&keys::PODS, &self.namespace, name, &none);
            }
            stays
        });
    }

    /// Makes as many pods as are wanted, and sends the surplus away.
    fn follow(&self, state: &mut RunningPods, kind: &str, object: &Object, now: Instant) {
        let wanted = usize::try_from(object.number("/spec/replicas")).unwrap_or_default();
        let is_own = |pod: &&mut SimulatedPod| pod.owner == object.uid() && pod.leaves.is_none();
        let staying = state.pods.values_mut().filter(is_own).count();
        for _ in staying..wanted {
            self.make_pod(state, kind, object, now);
        }
        let surplus = staying.saturating_sub(wanted);
        for pod in state.pods.values_mut().filter(is_own).take(surplus) {
            pod.leaves = Some(now + self.timing.stop_delay);
        }
    }

    fn make_pod(&self, state: &mut RunningPods, kind: &str, object: &Object, now: Instant) {
        let name = format!("{}-{}", object.name(), random_suffix());
        let template = &object.value()["spec"]["template"];
        let labels = string_map(template.pointer("/metadata/labels"));
        let annotations = string_map(template.pointer("/metadata/annotations"));
        let pod = json!({
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": annotations,
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": kind, "name": object.name(), "uid": object.uid(),
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": template["spec"],
        });
        let options = WriteOptions::default();
        let Ok(created) = self.seed.create(&keys::PODS, &self.namespace, pod, &options) else {
            return;
        };
        state.addresses += 1;
        let address = state.addresses;
        let pod = SimulatedPod {
            state: match state.is_settled {
                true => PodState::new(now, &self.timing),
                false => PodState::settled(),
            },
            uid: created.uid().to_owned(),
            owner: object.uid().to_owned(),
            // 100.64.0.0/10, as Gardener's pod networks.
            ip: format!("100.64.{}.{}", address / 250 % 250, address % 250 + 1),
            labels,
            needs: annotations.get(NEEDS_ANNOTATION).cloned().unwrap_or_default(),
            leaves: None,
        };
        state.pods.insert(name, pod);
    }

    /// Lets every pod live on until nothing changes any more: an unready pod may take others down.
    fn live(&self, state: &mut RunningPods, selectors: &[(String, Labels)], now: Instant) {
        // Readiness passes down a chain of services; its length bounds the rounds.
        for _ in 0..=selectors.len() {
            let RunningPods { pods, out, .. } = state;
            let is_ready = |selector: &Labels| {
                let mut behind = pods.values().filter(|pod| matches(selector, &pod.labels));
                behind.any(SimulatedPod::is_serving)
            };
            let ready: BTreeSet<_> = selectors
                .iter()
                .filter(|(_, selector)| is_ready(selector))
                .map(|(name, _)| name.as_str())
                .collect();
            let out: Vec<_> = selectors.iter().filter(|(name, _)| out.contains(name)).collect();
            let mut changed = false;
            for pod in pods.values_mut() {
                let around = PodInputs {
                    needs_met: pod.needs.is_empty() || ready.contains(pod.needs.as_str()),
                    out: out.iter().any(|(_, selector)| matches(selector, &pod.labels)),
                };
                let before = pod.state.phase;
                pod.state.step(now, around, &self.timing);
                changed |= pod.state.phase != before;
            }
            if !changed {
                return;
            }
        }
    }

    fn publish_pod(&self, name: &str, pod: &SimulatedPod) {
        let Some(object) = self.seed.find(&keys::PODS, &self.namespace, name) else {
            return;
        };
        let state = &pod.state;
        let container = object.text("/spec/containers/0/name");
        let is_waiting = state.phase == PodPhase::BackOff;
        let now = if is_waiting {
            let message = format!("back-off restarting failed container={container} pod={name}");
            json!({ "waiting": { "reason": CRASH_LOOP, "message": message } })
        } else {
            json!({ "running": { "startedAt": seconds(state.started) } })
        };
        let last = state.exited.map_or(json!({}), |exited| {
            json!({ "terminated": { "exitCode": 1, "reason": "Error", "finishedAt": seconds(exited) } })
        });
        let ready = if state.is_ready() { "True" } else { "False" };
        let status = json!({
            "phase": "Running",
            "podIP": pod.ip,
            "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": seconds(state.turned) }],
            "containerStatuses": [{
                "name": container,
                "image": object.text("/spec/containers/0/image"),
                "imageID": "",
                "ready": state.is_ready(),
                "started": !is_waiting,
                "restartCount": state.restarts,
                "state": now,
                "lastState": last,
            }],
        });
        self.set_status(&keys::PODS, &object, status);
    }

    /// Writes the slice of a Service, if it differs from what is stored.
    fn publish_endpoints<'a>(
        &self,
        service: &str,
        pods: impl Iterator<Item = (&'a String, &'a SimulatedPod)>,
    ) {
        let endpoint = |(name, pod): (&String, &SimulatedPod)| {
            let ready = pod.is_serving();
            json!({
                "addresses": [pod.ip],
                "conditions": { "ready": ready, "serving": ready, "terminating": false },
                "targetRef": { "kind": "Pod", "namespace": self.namespace, "name": name },
            })
        };
        let endpoints: Value = pods.map(endpoint).collect();
        let name = format!("{service}-sandbox");
        let (slices, options) = (&keys::ENDPOINT_SLICES, WriteOptions::default());
        let annotations = json!({ TRIGGER_TIME: seconds(Timestamp::now()) });
        // A write that fails is made up for by the next step: something else has changed meanwhile.
        let _ = match self.seed.find(slices, &self.namespace, &name) {
            Some(slice) if slice.value()["endpoints"] == endpoints => return,
            Some(_) => self.seed.change(slices, &self.namespace, &name, |slice| {
                slice["endpoints"] = endpoints;
                slice["metadata"]["annotations"] = annotations;
            }),
            None => {
                let labels = json!({ "kubernetes.io/service-name": service });
                let slice = json!({
                    "metadata": { "name": name, "labels": labels, "annotations": annotations },
                    "addressType": "IPv4",
                    "endpoints": endpoints,
                });
                self.seed.create(slices, &self.namespace, slice, &options)
            }
        };
    }

    /// Writes what watchers read of a workload's status. Go's types leave out counts of 0.
    fn publish_status(&self, state: &RunningPods, resource: &ResourceKey, object: &Object) {
        let own = || {
            let pods = state.pods.values();
            pods.filter(|pod| pod.owner == object.uid() && pod.leaves.is_none())
        };
        let ready = own().filter(|pod| pod.is_serving()).count();
        // Someone may have scaled since: what was observed is still this generation.
        let mut status = json!({ "observedGeneration": object.number("/metadata/generation") });
        for (key, count) in [("replicas", own().count()), ("readyReplicas", ready)] {
            if count > 0 {
                status[key] = count.into();
            }
        }
        self.set_status(resource, object, status);
    }

    fn set_status(&self, resource: &ResourceKey, object: &Object, status: Value) {
        if object.value().get("status") != Some(&status) {
            let set = |value: &mut Value| value["status"] = status;
            let _ = self.seed.change(resource, &self.namespace, object.name(), set);
        }
    }
}

fn matches(selector: &Labels, labels: &Labels) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// `metav1.Time`: whole seconds, UTC.
fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
