//! A seed in memory and the whole weeder against it.

use std::ops::Deref;

use clap::Parser;
use jiff::Timestamp;
use serde_json::{Value, json};
use tonic::transport::Channel;
use watchdog_api::names::LAST_CHANGE_ANNOTATION;
use watchdog_proto::weeder::v1 as pb;
use watchdog_proto::weeder::v1::weeder_service_client::WeederServiceClient;
use watchdog_runtime::args::LogFormat;
use watchdog_runtime::cli::CommandLine as _;
use watchdog_runtime::process::Process;
use watchdog_runtime::telemetry;
use watchdog_sandbox::resource::{ResourceKey, keys};
use watchdog_sandbox::store::object::Object;
use watchdog_sandbox::{ApiOptions, ApiServer, AuditEntry};
use watchdog_test_support::in_process::{self, InProcess, ServiceFiles, eventually};
use watchdog_test_support::wait::{self, BOUND};
use weeder::config::Args;

/// etcd, needed by kube-apiserver, which is needed by the rest of the control plane.
pub const CONFIG: &str = "
watchDuration: 5m
servicesAndDependantSelectors:
  etcd:
    podSelectors:
    - matchLabels: {gardener.cloud/role: controlplane, role: apiserver}
  kube-apiserver:
    podSelectors:
    - matchExpressions:
      - {key: gardener.cloud/role, operator: In, values: [controlplane]}
      - {key: role, operator: NotIn, values: [main, apiserver]}
    - matchExpressions:
      - {key: extension, operator: Exists}
      - {key: role, operator: DoesNotExist}
";

/// When containers crashed.
pub const CRASHED_AT: &str = "2020-11-21T08:00:00Z";

/// A seed's API server with the namespace of a shoot, and the weeder's files.
pub struct Seed {
    pub api: ApiServer,
    files: ServiceFiles,
}

/// A running weeder.
pub struct Weeder {
    service: InProcess,
    pub client: WeederServiceClient<Channel>,
}

impl Deref for Weeder {
    type Target = InProcess;

    fn deref(&self) -> &InProcess {
        &self.service
    }
}

impl Seed {
    pub async fn new() -> Self {
        Self::with(ApiOptions::default()).await
    }

    /// With or without discovery.k8s.io/v1.
    pub async fn with_slices(endpoint_slices: bool) -> Self {
        Self::with(ApiOptions {
            endpoint_slices,
            ..ApiOptions::default()
        })
        .await
    }

    pub async fn with(mut options: ApiOptions) -> Self {
        options.namespaces.extend(["garden", "shoot"].map(str::to_owned));
        if let Ok(filter) = std::env::var("TEST_LOG") {
            // Fails for all but the first test of a process.
            std::mem::forget(telemetry::init(LogFormat::Text, &filter));
        }
        let api = ApiServer::start(options).await.unwrap();
        in_process::released_lease(&api, "weeder-leader").unwrap();
        Self {
            api,
            files: ServiceFiles::new(CONFIG).unwrap(),
        }
    }

    pub fn configure(&self, config: &str) {
        self.files.configure(config).unwrap();
    }

    /// Starts a weeder that is known to the API server by its identity.
    pub async fn start(&self, identity: &str) -> Weeder {
        self.start_with(identity, &[]).await
    }

    /// The same with more options.
    pub async fn start_with(&self, identity: &str, options: &[&str]) -> Weeder {
        let line = self.files.command_line(&self.api, identity, identity, options);
        let config = Args::parse_from(line.unwrap()).check().unwrap();
        let service = InProcess::start(weeder::app::build(config, Process::default()));
        let service = service.await.unwrap();
        Weeder {
            client: WeederServiceClient::new(service.channel().unwrap()),
            service,
        }
    }

    /// Starts a weeder and waits until it is ready and leads.
    pub async fn ready(&self) -> Weeder {
        let weeder = self.start("weeder-0").await;
        weeder.wait_ready().await;
        eventually("it leads", || self.leader().is_some()).await;
        weeder
    }

    pub fn namespace(&self, name: &str) {
        self.api
            .create(&keys::NAMESPACES, "", json!({"metadata": {"name": name}}))
            .unwrap();
    }

    /// Makes a service with one slice ready or not.
    pub fn service(&self, namespace: &str, service: &str, ready: bool) {
        let name = format!("{service}-1");
        let slice = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}],
        });
        self.put(&keys::ENDPOINT_SLICES, namespace, &name, slice);
    }

    /// Makes a service with one slice ready, as the endpoints controller does, which dates the change.
    pub fn recover(&self, namespace: &str, service: &str) {
        let name = format!("{service}-1");
        self.service(namespace, service, true);
        self.modify(&keys::ENDPOINT_SLICES, namespace, &name, |slice| {
            slice["metadata"]["annotations"][LAST_CHANGE_ANNOTATION] = Timestamp::now().to_string().into();
        });
    }

    /// Waits until what is written from now on is younger than all that there is, whatever the revisions say: times are
    /// whole seconds.
    pub async fn next_second(&self) {
        let now = Timestamp::now().as_second();
        eventually("the next second", || Timestamp::now().as_second() > now).await;
    }

    /// Creates or replaces an Endpoints.
    pub fn endpoints(&self, namespace: &str, service: &str, ready: usize, not_ready: usize) {
        let addresses = |ready: bool, count: usize| -> Vec<Value> {
            let block = u8::from(ready);
            (0..count)
                .map(|i| json!({"ip": format!("10.0.{block}.{i}")}))
                .collect()
        };
        self.put(
            &keys::ENDPOINTS,
            namespace,
            service,
            json!({
                "metadata": {"name": service},
                "subsets": [{"addresses": addresses(true, ready), "notReadyAddresses": addresses(false, not_ready)}],
            }),
        );
    }

    /// Creates a pod of the control plane that runs, owned by a `ReplicaSet`.
    pub fn pod(&self, namespace: &str, name: &str, role: &str) {
        let labels = json!({"gardener.cloud/role": "controlplane", "role": role});
        self.pod_with(namespace, name, &labels);
    }

    /// Each has a controller of its own.
    pub fn pod_with(&self, namespace: &str, name: &str, labels: &Value) {
        let owner = format!("{name}-rs");
        let owner = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": true,
        });
        let pod = json!({
            "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
            "spec": {"containers": [{"name": "main", "image": "i"}]},
        });
        self.api.create(&keys::PODS, namespace, pod).unwrap();
        self.run(namespace, name);
    }

    /// A pod that is in a crash loop from the beginning.
    pub fn crashing(&self, namespace: &str, name: &str, role: &str) {
        self.pod(namespace, name, role);
        self.crash(namespace, name);
    }

    /// Puts a pod's container into a crash loop.
    pub fn crash(&self, namespace: &str, name: &str) {
        self.pod_status(namespace, name, json!({"containerStatuses": [waiting("main")]}));
    }

    /// Puts a pod's init container into a crash loop.
    pub fn crash_in_init(&self, namespace: &str, name: &str) {
        self.pod_status(
            namespace,
            name,
            json!({"initContainerStatuses": [waiting("setup")]}),
        );
    }

    /// Lets a pod run.
    pub fn run(&self, namespace: &str, name: &str) {
        let running = json!({"name": "main", "restartCount": 0, "state": {"running": {}}});
        self.pod_status(namespace, name, json!({"containerStatuses": [running]}));
    }

    pub fn pod_status(&self, namespace: &str, name: &str, status: Value) {
        self.modify(&keys::PODS, namespace, name, |pod| pod["status"] = status);
    }

    fn modify(&self, resource: &ResourceKey, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
        in_process::modify(&self.api, resource, namespace, name, change).unwrap();
    }

    pub fn delete(&self, resource: &ResourceKey, namespace: &str, name: &str) {
        in_process::delete(&self.api, resource, namespace, name).unwrap();
    }

    pub fn exists(&self, namespace: &str, pod: &str) -> bool {
        self.api.store().find(&keys::PODS, namespace, pod).is_some()
    }

    pub async fn gone(&self, namespace: &str, pod: &str) {
        eventually(&format!("pod {namespace}/{pod} is deleted"), || {
            !self.exists(namespace, pod)
        })
        .await;
    }

    /// The attempts to delete a pod so far.
    pub fn deletions(&self) -> Vec<AuditEntry> {
        let mut entries = self.api.audit();
        entries.retain(|entry| entry.verb == "delete" && entry.path.contains("/pods/"));
        entries
    }

    /// The holder of the Lease of the leader election, if it has one.
    pub fn leader(&self) -> Option<String> {
        let lease = self
            .api
            .store()
            .find(&keys::LEASES, "garden", weeder::app::LEASE)?;
        let holder = lease.text("/spec/holderIdentity").to_owned();
        Some(holder).filter(|holder| !holder.is_empty())
    }

    pub fn events(&self) -> Vec<std::sync::Arc<Object>> {
        self.api.store().all(&keys::EVENTS, None)
    }

    /// Creates an object, or replaces its labels and all but its metadata.
    pub fn put(&self, resource: &ResourceKey, namespace: &str, name: &str, value: Value) {
        if self.api.store().find(resource, namespace, name).is_none() {
            self.api.create(resource, namespace, value).unwrap();
            return;
        }
        self.modify(resource, namespace, name, |old| {
            for (field, new) in value.as_object().unwrap() {
                if field != "metadata" {
                    old[field] = new.clone();
                }
            }
            old["metadata"]["labels"] = value["metadata"]["labels"].clone();
        });
    }
}

impl Weeder {
    /// The reason why this blocks readiness, if it does.
    pub fn blocker(&self, name: &str) -> Option<String> {
        self.bound.readiness.blockers().get(name).cloned()
    }

    /// Waits until it knows whether a service is ready.
    pub async fn wait_service(&self, namespace: &str, service: &str, ready: bool) {
        let request = pb::ListEndpointReadinessRequest {
            namespace: namespace.to_owned(),
            service: service.to_owned(),
            ..Default::default()
        };
        let wanted = if ready {
            pb::Readiness::Ready
        } else {
            pb::Readiness::NotReady
        };
        wait::until_true("the readiness of the service is known", BOUND, || async {
            let answer = self
                .client
                .clone()
                .list_endpoint_readiness(request.clone())
                .await?;
            Ok(answer
                .into_inner()
                .services
                .iter()
                .any(|found| found.readiness() == wanted))
        })
        .await
        .unwrap();
    }

    pub async fn list(&self) -> Vec<pb::Weeder> {
        let request = pb::ListWeedersRequest::default();
        let answer = self.client.clone().list_weeders(request).await.unwrap();
        answer.into_inner().weeders
    }

    /// Waits until the weeder of a service is as wanted.
    pub async fn wait(
        &self,
        namespace: &str,
        service: &str,
        what: &str,
        wanted: impl Fn(&pb::Weeder) -> bool,
    ) -> pb::Weeder {
        let key = pb::ServiceKey {
            namespace: namespace.to_owned(),
            service: service.to_owned(),
        };
        let found = wait::until(what, BOUND, || async {
            let mut weeders = self.list().await.into_iter();
            let found = weeders.find(|weeder| weeder.key.as_ref() == Some(&key));
            anyhow::ensure!(found.as_ref().is_some_and(&wanted), "it is {found:#?}");
            Ok(found)
        });
        found.await.unwrap()
    }

    /// Waits until the weeder of a service has deleted that many pods.
    pub async fn wait_deleted(&self, namespace: &str, service: &str, pods: u64) -> pb::Weeder {
        let what = format!("{pods} are deleted");
        self.wait(namespace, service, &what, |w| w.deleted == pods).await
    }
}

/// Watches on pods that were opened so far.
pub fn pod_watches(seed: &Seed) -> usize {
    let audit = seed.api.audit();
    audit
        .iter()
        .filter(|entry| entry.verb == "watch" && entry.path == "/api/v1/pods" && entry.code == 200)
        .count()
}

fn waiting(container: &str) -> Value {
    json!({
        "name": container, "restartCount": 5,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 2m40s restarting failed container"}},
        "lastState": {"terminated": {
            "exitCode": 1, "reason": "Error", "message": "cannot reach its service", "finishedAt": CRASHED_AT,
        }},
    })
}
