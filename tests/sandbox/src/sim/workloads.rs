//! Deployments and StatefulSets of a shoot's control plane, their pods, and the Services in front of them.
//!
//! Whatever stands in the shoot's namespace is simulated, also what a test puts there: a pod template says
//! with [`NEEDS_ANNOTATION`] which Services its pods cannot live without.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::json;
use tokio::time::Instant;

use super::{
    StepInputs, endpoints,
    objects::NEEDS_ANNOTATION,
    pod::{PodInputs, PodState},
    podstatus,
    timing::sooner,
};
use crate::{
    resource::{ResourceKey, keys},
    store::{
        WriteOptions,
        object::{Object, StoreKey, string_map},
        random_suffix,
    },
};

/// A pod that is simulated.
#[derive(Debug)]
pub(super) struct SimulatedPod {
    pub(super) state: PodState,
    /// UID of the object: a pod of the same name that someone else made is not ours.
    uid: String,
    pub(super) ip: String,
    pub(super) labels: BTreeMap<String, String>,
    needs: BTreeSet<String>,
    /// When it goes, once it is no longer wanted.
    leaves: Option<Instant>,
}

#[derive(Debug, Default)]
struct SimulatedWorkload {
    pods: BTreeMap<String, SimulatedPod>,
}

/// Everything that runs in a shoot's namespace on the seed.
#[derive(Debug, Default)]
pub(crate) struct Workloads {
    workloads: BTreeMap<(&'static str, String), SimulatedWorkload>,
    /// Services that a test made unready.
    out: BTreeSet<String>,
    addresses: u32,
    /// Pods made from now on are ready at once: the state that a shoot begins in.
    pub(crate) settled: bool,
}

/// Both kinds of workload.
const KINDS: [(&str, ResourceKey); 2] = [
    ("Deployment", keys::DEPLOYMENTS),
    ("StatefulSet", keys::STATEFUL_SETS),
];

impl Workloads {
    /// Makes the pods behind a Service unready until they are released.
    pub(crate) fn set_out(&mut self, service: &str, out: bool) {
        if out {
            self.out.insert(service.to_owned());
        } else {
            self.out.remove(service);
        }
    }

    /// Follows the objects, lets the pods live, and reports back.
    pub(crate) fn step(&mut self, around: &StepInputs<'_>) -> Option<Instant> {
        let mut wake = None;
        let mut present = BTreeSet::new();
        for (kind, resource) in KINDS {
            for object in around.seed.all(&resource, Some(around.namespace)) {
                let key = (kind, object.name().to_owned());
                wake = sooner(wake, self.follow(&key, &object, around));
                present.insert(key);
            }
        }
        self.retire(&present, around);
        let services = around.seed.all(&keys::SERVICES, Some(around.namespace));
        wake = sooner(wake, self.live(&services, around));
        for service in &services {
            if let Some(selector) = selector(service) {
                let pods: Vec<_> = self
                    .pods()
                    .filter(|(_, pod)| matches(&selector, &pod.labels))
                    .collect();
                endpoints::publish(service, &pods, around);
            }
        }
        for (kind, resource) in KINDS {
            for object in around.seed.all(&resource, Some(around.namespace)) {
                if let Some(workload) = self.workloads.get(&(kind, object.name().to_owned())) {
                    report(&resource, &object, workload, around);
                }
            }
        }
        wake
    }

    fn pods(&self) -> impl Iterator<Item = (&str, &SimulatedPod)> {
        self.workloads
            .values()
            .flat_map(|workload| &workload.pods)
            .map(|(name, pod)| (name.as_str(), pod))
    }

    /// Makes as many pods as are wanted, and sends the surplus away.
    fn follow(
        &mut self,
        key: &(&'static str, String),
        object: &Arc<Object>,
        around: &StepInputs<'_>,
    ) -> Option<Instant> {
        let wanted = usize::try_from(object.number("/spec/replicas")).unwrap_or_default();
        let workload = self.workloads.entry(key.clone()).or_default();
        // Deleted pods are replaced at once, with fresh back-off.
        workload.pods.retain(|name, pod| {
            around
                .seed
                .find(&keys::PODS, around.namespace, name)
                .is_some_and(|object| object.uid() == pod.uid)
        });
        let staying = workload.pods.values().filter(|pod| pod.leaves.is_none()).count();
        for _ in staying..wanted {
            self.addresses += 1;
            let pod = make_pod(key, object, self.addresses, self.settled, around);
            if let (Some((name, pod)), Some(workload)) = (pod, self.workloads.get_mut(key)) {
                workload.pods.insert(name, pod);
            }
        }
        let workload = self.workloads.get_mut(key)?;
        let surplus = staying.saturating_sub(wanted);
        for pod in workload
            .pods
            .values_mut()
            .filter(|pod| pod.leaves.is_none())
            .take(surplus)
        {
            pod.leaves = Some(around.now + around.timing.stop_delay);
        }
        let gone: Vec<String> = workload
            .pods
            .iter()
            .filter(|(_, pod)| pod.leaves.is_some_and(|leaves| leaves <= around.now))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            workload.pods.remove(&name);
            delete_pod(&name, around);
        }
        workload.pods.values().filter_map(|pod| pod.leaves).min()
    }

    /// Ends the pods of workloads that are no more.
    fn retire(&mut self, present: &BTreeSet<(&'static str, String)>, around: &StepInputs<'_>) {
        self.workloads.retain(|key, workload| {
            let keep = present.contains(key);
            if !keep {
                workload.pods.keys().for_each(|name| delete_pod(name, around));
            }
            keep
        });
    }

    /// Lets every pod live on until nothing changes any more: an unready pod may take others down.
    fn live(&mut self, services: &[Arc<Object>], around: &StepInputs<'_>) -> Option<Instant> {
        let selectors: Vec<_> = services
            .iter()
            .filter_map(|service| Some((service.name().to_owned(), selector(service)?)))
            .collect();
        let mut wake = None;
        for (name, pod) in self
            .workloads
            .values_mut()
            .flat_map(|workload| &mut workload.pods)
        {
            podstatus::publish(name, pod, around);
        }
        // Readiness passes down a chain of services; its length bounds the rounds.
        for _ in 0..=selectors.len() {
            let ready: BTreeSet<String> = selectors
                .iter()
                .filter(|(_, selector)| {
                    self.pods()
                        .any(|(_, pod)| pod.is_serving() && matches(selector, &pod.labels))
                })
                .map(|(name, _)| name.clone())
                .collect();
            let out: Vec<_> = selectors
                .iter()
                .filter(|(name, _)| self.out.contains(name))
                .map(|(_, s)| s.clone())
                .collect();
            let mut changed = false;
            wake = None;
            for (name, pod) in self
                .workloads
                .values_mut()
                .flat_map(|workload| &mut workload.pods)
            {
                let surroundings = PodInputs {
                    needs_met: pod.needs.is_subset(&ready),
                    out: out.iter().any(|selector| matches(selector, &pod.labels)),
                };
                let before = pod.state.phase;
                wake = sooner(wake, pod.state.step(around.now, surroundings, around.timing));
                if pod.state.phase != before {
                    changed = true;
                    podstatus::publish(name, pod, around);
                }
            }
            if !changed {
                break;
            }
        }
        wake
    }
}

impl SimulatedPod {
    /// True if it counts as an endpoint.
    pub(super) fn is_serving(&self) -> bool {
        self.state.is_ready() && self.leaves.is_none()
    }
}

fn make_pod(
    (kind, workload): &(&'static str, String),
    object: &Object,
    address: u32,
    settled: bool,
    around: &StepInputs<'_>,
) -> Option<(String, SimulatedPod)> {
    let template = object
        .value()
        .pointer("/spec/template")
        .cloned()
        .unwrap_or_default();
    let labels = string_map(template.pointer("/metadata/labels"));
    let annotations = string_map(template.pointer("/metadata/annotations"));
    let name = format!("{workload}-{}", random_suffix());
    // 100.64.0.0/10, as Gardener's pod networks.
    let ip = format!("100.64.{}.{}", address / 250 % 250, address % 250 + 1);
    let value = json!({
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": kind, "name": workload, "uid": object.uid(),
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": template.get("spec").cloned().unwrap_or_default(),
    });
    let created = around
        .seed
        .create(&keys::PODS, around.namespace, value, &WriteOptions::default());
    let uid = created.as_ref().ok().map(|pod| pod.uid().to_owned());
    around.report("pod creation", created);
    let needs = annotations
        .get(NEEDS_ANNOTATION)
        .map(String::as_str)
        .unwrap_or_default();
    let needs = needs
        .split(',')
        .map(str::trim)
        .filter(|need| !need.is_empty())
        .map(str::to_owned)
        .collect();
    let state = if settled {
        PodState::settled(around.now)
    } else {
        PodState::new(around.now, around.timing)
    };
    let pod = SimulatedPod {
        state,
        uid: uid?,
        ip,
        labels,
        needs,
        leaves: None,
    };
    Some((name, pod))
}

fn delete_pod(name: &str, around: &StepInputs<'_>) {
    let deleted = around.seed.discard(&keys::PODS, around.namespace, name);
    around.report("pod deletion", deleted);
}

/// Writes what watchers read of a workload's status. Go's types leave out counts of 0.
fn report(resource: &ResourceKey, object: &Object, workload: &SimulatedWorkload, around: &StepInputs<'_>) {
    let replicas = workload.pods.values().filter(|pod| pod.leaves.is_none()).count();
    let ready = workload.pods.values().filter(|pod| pod.is_serving()).count();
    let mut status = json!({ "observedGeneration": object.number("/metadata/generation") });
    for (key, count) in [("replicas", replicas), ("readyReplicas", ready)] {
        if count > 0 {
            status[key] = count.into();
        }
    }
    if object.value().get("status") == Some(&status) {
        return;
    }
    let StoreKey { namespace, name } = object.key();
    // Someone may have scaled since: what was observed is still the generation read above.
    let changed = around
        .seed
        .change(resource, namespace, name, |value| value["status"] = status);
    around.report("workload status", changed);
}

/// The selector of a Service that has one.
fn selector(service: &Object) -> Option<BTreeMap<String, String>> {
    let selector = string_map(service.value().pointer("/spec/selector"));
    (!selector.is_empty()).then_some(selector)
}

fn matches(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}
