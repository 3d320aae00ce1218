//! A seed in memory with shoots, and a controller that makes pods ready.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use scaling_coordinator::app::LEADER_LEASE;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;
use watchdog_sandbox::ApiServer;
use watchdog_sandbox::resource::{ResourceKey, keys};
use watchdog_sandbox::store::object::Object;
use watchdog_sandbox::store::{Part, WriteOptions};
use watchdog_test_support::fixtures;
use watchdog_test_support::in_process::{self, ServiceFiles};

use crate::{CA, KCM, MCM, eventually};

/// Gardener's configuration with shorter times.
pub const CONFIG: &str = "
kubeConfigSecretName: shoot-access-dependency-watchdog-probe
dependentResourceInfos:
- ref: {kind: Deployment, name: kube-controller-manager, apiVersion: apps/v1}
  optional: false
  scaleUp: {level: 0, timeout: 5s}
  scaleDown: {level: 1, timeout: 5s}
- ref: {kind: Deployment, name: machine-controller-manager, apiVersion: apps/v1}
  optional: false
  scaleUp: {level: 1, initialDelay: 300ms, timeout: 5s}
  scaleDown: {level: 0, timeout: 5s}
- ref: {kind: Deployment, name: cluster-autoscaler, apiVersion: apps/v1}
  optional: true
  scaleUp: {level: 2, timeout: 5s}
  scaleDown: {level: 0, timeout: 5s}
";

pub const RECORDED: &str = "dependency-watchdog.gardener.cloud/replicas";
pub const PROTECTED: &str = "dependency-watchdog.gardener.cloud/meltdown-protection-active";
pub const IGNORE: &str = "dependency-watchdog.gardener.cloud/ignore-scaling";

/// The name by which the coordinator is known to the API server.
pub const USER: &str = "coordinator";

pub struct Seed {
    pub api: ApiServer,
    pub files: ServiceFiles,
    frozen: Arc<Mutex<BTreeSet<(String, String)>>>,
    _controller: AbortOnDropHandle<()>,
}

impl Seed {
    pub async fn new() -> Self {
        Self::with_config(CONFIG).await
    }

    pub async fn with_config(config: &str) -> Self {
        let api = in_process::api_server(&["garden"]).await.unwrap();
        in_process::released_lease(&api, LEADER_LEASE).unwrap();
        let frozen = Arc::default();
        let controller = tokio::spawn(run_controller(api.clone(), Arc::clone(&frozen)));
        Self {
            api,
            files: ServiceFiles::new(config).unwrap(),
            frozen,
            _controller: AbortOnDropHandle::new(controller),
        }
    }

    pub fn configure(&self, config: &str) {
        self.files.configure(config).unwrap();
    }

    /// A shoot with `kcm` replicas of kube-controller-manager, one of machine-controller-manager and, if `with_ca`, one
    /// of the autoscaler, all ready.
    pub async fn shoot(&self, name: &str, kcm: i32, with_ca: bool) {
        self.cluster(name);
        self.deployment(name, KCM, kcm);
        self.deployment(name, MCM, 1);
        if with_ca {
            self.deployment(name, CA, 1);
        }
        eventually("all is ready", || {
            [KCM, MCM]
                .iter()
                .all(|workload| self.ready(name, workload) == self.replicas(name, workload))
        })
        .await;
    }

    pub fn cluster(&self, name: &str) {
        let namespace = json!({ "metadata": { "name": name } });
        self.api.create(&keys::NAMESPACES, "", namespace).unwrap();
        self.cluster_only(name);
    }

    /// A Cluster whose namespace is there.
    pub fn cluster_only(&self, name: &str) {
        let cluster = json!({ "metadata": { "name": name }, "spec": { "shoot": fixtures::shoot("40s") } });
        self.api.create(&keys::CLUSTERS, "", cluster).unwrap();
    }

    /// Changes the shoot inside the Cluster.
    pub fn change_shoot(&self, name: &str, change: impl FnOnce(&mut Value)) {
        self.modify(&keys::CLUSTERS, "", name, |cluster| {
            change(&mut cluster["spec"]["shoot"])
        });
    }

    /// Sets an annotation on the shoot inside the Cluster, or removes it.
    pub fn annotate_shoot(&self, name: &str, annotation: &str, value: Option<&str>) {
        self.change_shoot(name, |shoot| {
            shoot["metadata"]["annotations"] = match value {
                Some(value) => json!({ annotation: value }),
                None => json!({}),
            };
        });
    }

    pub fn hibernate(&self, name: &str) {
        self.change_shoot(name, |shoot| {
            shoot["spec"]["hibernation"] = json!({ "enabled": true })
        });
    }

    pub fn deployment(&self, namespace: &str, name: &str, replicas: i32) {
        let object = json!({
            "metadata": { "name": name },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": name } },
                "template": {
                    "metadata": { "labels": { "app": name } },
                    "spec": { "containers": [{ "name": name, "image": "none" }] },
                },
            },
        });
        self.api.create(&keys::DEPLOYMENTS, namespace, object).unwrap();
    }

    pub fn modify(
        &self,
        resource: &ResourceKey,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) {
        in_process::modify(&self.api, resource, namespace, name, change).unwrap();
    }

    pub fn annotate(&self, namespace: &str, name: &str, annotation: &str, value: &str) {
        self.modify(&keys::DEPLOYMENTS, namespace, name, |object| {
            object["metadata"]["annotations"][annotation] = value.into();
        });
    }

    pub fn scale(&self, namespace: &str, name: &str, replicas: i32) {
        self.modify(&keys::DEPLOYMENTS, namespace, name, |object| {
            object["spec"]["replicas"] = replicas.into()
        });
    }

    /// Scales a Deployment as the Go program does: first the annotations, then the replicas. Up without a count.
    pub fn scale_as_dwd(&self, namespace: &str, name: &str, down_from: Option<i32>, to: i32) {
        let annotate = |object: &mut Value| match down_from {
            Some(from) => {
                object["metadata"]["annotations"] = json!({ RECORDED: from.to_string(), PROTECTED: "" });
            }
            None => object["metadata"]["annotations"] = json!({}),
        };
        let scale = |object: &mut Value| object["spec"]["replicas"] = to.into();
        if down_from.is_some() {
            self.write_as_dwd(namespace, name, annotate);
            self.write_as_dwd(namespace, name, scale);
        } else {
            self.write_as_dwd(namespace, name, scale);
            self.write_as_dwd(namespace, name, annotate);
        }
    }

    fn write_as_dwd(&self, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let options = WriteOptions {
            manager: Some("dependency-watchdog".to_owned()),
        };
        let change = |value: &mut Value| {
            change(value);
            Ok(())
        };
        let store = self.api.store();
        store
            .modify(&keys::DEPLOYMENTS, namespace, name, Part::Main, &options, change)
            .unwrap();
    }

    pub fn delete(&self, resource: &ResourceKey, namespace: &str, name: &str) {
        in_process::delete(&self.api, resource, namespace, name).unwrap();
    }

    /// Nothing becomes ready, or stops, from now on.
    pub fn freeze(&self, namespace: &str, name: &str) {
        self.frozen.lock().insert((namespace.to_owned(), name.to_owned()));
    }

    pub fn thaw(&self, namespace: &str, name: &str) {
        self.frozen
            .lock()
            .remove(&(namespace.to_owned(), name.to_owned()));
    }

    pub fn object(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.api.store().find(&keys::DEPLOYMENTS, namespace, name)
    }

    pub fn replicas(&self, namespace: &str, name: &str) -> i64 {
        self.object(namespace, name)
            .map_or(-1, |object| object.number("/spec/replicas"))
    }

    pub fn ready(&self, namespace: &str, name: &str) -> i64 {
        self.object(namespace, name)
            .map_or(-1, |object| object.number("/status/readyReplicas"))
    }

    pub fn annotation(&self, namespace: &str, name: &str, annotation: &str) -> Option<String> {
        self.object(namespace, name)?
            .annotation(annotation)
            .map(str::to_owned)
    }

    /// Wanted replicas of the three dependants.
    pub fn all(&self, namespace: &str) -> [i64; 3] {
        [KCM, MCM, CA].map(|name| self.replicas(namespace, name))
    }

    /// The coordinator's writes in a namespace, in order. A conflict right after a write is no surprise:
    /// annotations count for the generation of a Deployment, so its controller updates the status.
    pub fn writes(&self, namespace: &str) -> Vec<String> {
        let mut writes = self.attempts(namespace);
        writes.retain(|write| !write.ends_with(": 409"));
        writes
    }

    /// The same with conflicts; what was refused carries its status code, what was not answered a zero.
    pub fn attempts(&self, namespace: &str) -> Vec<String> {
        let prefix = format!("/apis/apps/v1/namespaces/{namespace}/deployments/");
        let entries = self.api.audit().into_iter();
        entries
            .filter(|entry| entry.user == USER && entry.is_write())
            .filter_map(|entry| {
                let name = entry.path.strip_prefix(&prefix)?;
                let body: Value = serde_json::from_slice(&entry.body).unwrap_or_default();
                let what = match name.strip_suffix("/scale") {
                    Some(name) => format!("scale {name} {}", body["spec"]["replicas"]),
                    None => {
                        let recorded = body["metadata"]["annotations"].get(RECORDED);
                        match (recorded, body["spec"].get("replicas")) {
                            (Some(count), Some(_)) => format!("down {name} {}", count.as_str().unwrap()),
                            (Some(count), None) => format!("record {name} {}", count.as_str().unwrap()),
                            (None, Some(replicas)) => format!("scale {name} {replicas}"),
                            (None, None) => format!("clean {name}"),
                        }
                    }
                };
                Some(if entry.code == 200 {
                    what
                } else {
                    format!("{what}: {}", entry.code)
                })
            })
            .collect()
    }

    /// Everything that the coordinator has written, except its membership Leases.
    pub fn all_writes(&self) -> Vec<String> {
        in_process::writes(&self.api, USER)
    }

    /// Reasons of the Kubernetes Events about an object.
    pub fn events(&self, namespace: &str, name: &str) -> Vec<String> {
        let events = self.api.store().all(&keys::EVENTS, Some(namespace)).into_iter();
        let about = events.filter(|event| event.text("/regarding/name") == name);
        about.map(|event| event.text("/reason").to_owned()).collect()
    }
}

/// Brings every Deployment to its replicas, in steps: what the real controllers do.
async fn run_controller(api: ApiServer, frozen: Arc<Mutex<BTreeSet<(String, String)>>>) {
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    loop {
        ticks.tick().await;
        for object in api.store().all(&keys::DEPLOYMENTS, None) {
            let (namespace, name) = (object.namespace().to_owned(), object.name().to_owned());
            let generation = object.number("/metadata/generation");
            let replicas = object.number("/spec/replicas");
            let settled = object.number("/status/observedGeneration") == generation
                && object.number("/status/readyReplicas") == replicas;
            if settled || frozen.lock().contains(&(namespace.clone(), name.clone())) {
                continue;
            }
            let status = json!({
                "observedGeneration": generation,
                "replicas": replicas,
                "readyReplicas": replicas,
            });
            let change = |value: &mut Value| value["status"] = status;
            // It may be gone by now.
            let _ = in_process::modify(&api, &keys::DEPLOYMENTS, &namespace, &name, change);
        }
    }
}
