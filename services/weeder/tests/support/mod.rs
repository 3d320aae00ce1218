//! A seed in memory and the whole weeder against it.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "each test file uses its own part"
)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;
use tonic::transport::Channel;
use watchdog_proto::feed::v1::Scope;
use watchdog_proto::weeder::v1 as pb;
use watchdog_proto::weeder::v1::weeder_service_client::WeederServiceClient;
use watchdog_runtime::args::LogFormat;
use watchdog_runtime::cli::CommandLine as _;
use watchdog_runtime::process::{Bound, Process};
use watchdog_runtime::telemetry;
use watchdog_sandbox::resource::{ResourceKey, keys};
use watchdog_sandbox::store::object::Object;
use watchdog_sandbox::store::{Part, Preconditions, WriteOptions};
use watchdog_sandbox::{ApiOptions, ApiServer, AuditEntry};
use weeder::config::Args;

/// Bound of every wait: generous, because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(120);

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

/// When containers crashed, unless a test says otherwise.
pub const CRASHED_AT: &str = "2020-11-21T08:00:00Z";

/// A seed's API server and the weeder's files.
pub struct Seed {
    pub api: ApiServer,
    controllers: AtomicUsize,
    dir: TempDir,
}

/// A running weeder.
pub struct Weeder {
    pub bound: Bound,
    pub client: WeederServiceClient<Channel>,
}

impl Seed {
    pub async fn new() -> Self {
        Self::with(ApiOptions::default()).await
    }

    /// Without discovery.k8s.io/v1.
    pub async fn with_endpoints_only() -> Self {
        Self::with(ApiOptions {
            endpoint_slices: false,
            ..ApiOptions::default()
        })
        .await
    }

    pub async fn with(mut options: ApiOptions) -> Self {
        options.namespaces.push("garden".to_owned());
        if let Ok(filter) = std::env::var("TEST_LOG") {
            // Fails for all but the first test of a process.
            let _ = telemetry::init(LogFormat::Text, &filter);
        }
        let api = ApiServer::start(options).await.unwrap();
        let seed = Self {
            api,
            controllers: AtomicUsize::new(0),
            dir: tempfile::tempdir().unwrap(),
        };
        seed.configure(CONFIG);
        seed
    }

    pub fn configure(&self, config: &str) {
        // As kubelet does it: never half a file.
        let next = self.dir.path().join("next.yaml");
        std::fs::write(&next, config).unwrap();
        std::fs::rename(next, self.dir.path().join("weeder.yaml")).unwrap();
    }

    /// Starts a weeder that is known to the API server by its identity.
    pub async fn start(&self, identity: &str) -> Weeder {
        self.start_with(identity, &[]).await
    }

    /// The same with more options.
    pub async fn start_with(&self, identity: &str, options: &[&str]) -> Weeder {
        let kubeconfig: PathBuf = self.dir.path().join(format!("{identity}.kubeconfig"));
        std::fs::write(&kubeconfig, self.api.kubeconfig(identity)).unwrap();
        let config = self.dir.path().join("weeder.yaml");
        let own = [
            "weeder".to_owned(),
            "--insecure-plaintext".to_owned(),
            "--grpc-addr=127.0.0.1:0".to_owned(),
            "--admin-addr=127.0.0.1:0".to_owned(),
            format!("--identity={identity}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--config-file={}", config.display()),
        ];
        let more = options.iter().map(ToString::to_string);
        let args = Args::parse_from(own.into_iter().chain(more));
        let config = args.check().unwrap();
        let bound = weeder::app::build(config, Process::for_tests()).await.unwrap();
        let channel = Channel::from_shared(format!("http://{}", bound.grpc_addr))
            .unwrap()
            .timeout(PATIENCE);
        let client = WeederServiceClient::new(channel.connect_lazy());
        Weeder { bound, client }
    }

    /// Starts a weeder and waits until it is ready and owns all namespaces.
    pub async fn ready(&self) -> Weeder {
        let weeder = self.start("weeder-0").await;
        weeder.wait_ready().await;
        weeder
    }

    pub fn namespace(&self, name: &str) {
        self.api
            .create(&keys::NAMESPACES, "", json!({"metadata": {"name": name}}))
            .unwrap();
    }

    /// Creates or replaces an `EndpointSlice` by the `ready` conditions of its endpoints.
    pub fn slice(&self, namespace: &str, name: &str, service: &str, ready: &[Option<bool>]) {
        let endpoint = |(i, ready): (usize, &Option<bool>)| {
            let pod = self.member(namespace, &format!("{service}-member-{i}"), ready.unwrap_or(true));
            json!({
                "addresses": [format!("10.0.0.{i}")], "conditions": {"ready": ready},
                "targetRef": {"kind": "Pod", "namespace": namespace, "name": pod},
            })
        };
        let endpoints: Vec<Value> = ready.iter().enumerate().map(endpoint).collect();
        self.put(
            &keys::ENDPOINT_SLICES,
            namespace,
            name,
            json!({
                "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
                "addressType": "IPv4",
                "endpoints": endpoints,
            }),
        );
    }

    /// Creates or changes the pod behind an endpoint: ready since an hour after [`CRASHED_AT`], or not ready since an
    /// hour before. A `StatefulSet` owns it.
    fn member(&self, namespace: &str, name: &str, ready: bool) -> String {
        if self.api.store().find(&keys::PODS, namespace, name).is_none() {
            self.pod_of(
                namespace,
                name,
                &json!({"role": "main"}),
                Some(("StatefulSet", "members")),
            );
        }
        let (status, since) = match ready {
            true => ("True", "2020-11-21T09:00:00Z"),
            false => ("False", "2020-11-21T07:00:00Z"),
        };
        self.member_ready_since(namespace, name, status, since);
        name.to_owned()
    }

    pub fn member_ready_since(&self, namespace: &str, name: &str, status: &str, since: &str) {
        let ready = json!({"type": "Ready", "status": status, "lastTransitionTime": since});
        self.pod_status(namespace, name, json!({"conditions": [ready]}));
    }

    /// Makes a service with one slice ready or not.
    pub fn service(&self, namespace: &str, service: &str, ready: bool) {
        self.slice(namespace, &format!("{service}-1"), service, &[Some(ready)]);
    }

    /// Creates or changes a Service with the annotation that declares its dependants, or without it.
    pub fn annotate(&self, namespace: &str, service: &str, dependants: Option<&str>) {
        let annotations = match dependants {
            Some(dependants) => json!({ watchdog_api::names::DEPENDANTS_ANNOTATION: dependants }),
            None => json!({"other": "annotation"}),
        };
        let store = self.api.store();
        if store.find(&keys::SERVICES, namespace, service).is_none() {
            let object = json!({"metadata": {"name": service, "annotations": annotations}, "spec": {}});
            self.api.create(&keys::SERVICES, namespace, object).unwrap();
            return;
        }
        let change = |old: &mut Value| {
            old["metadata"]["annotations"] = annotations;
            Ok(())
        };
        let options = WriteOptions::default();
        store
            .modify(&keys::SERVICES, namespace, service, Part::All, &options, change)
            .unwrap();
    }

    /// Creates or replaces an Endpoints.
    pub fn endpoints(&self, namespace: &str, service: &str, ready: usize, not_ready: usize) {
        let addresses = |ready: bool, count: usize| -> Vec<Value> {
            let address = |i: usize| {
                let state = if ready { "ready" } else { "unready" };
                let pod = self.member(namespace, &format!("{service}-{state}-{i}"), ready);
                json!({"ip": format!("10.0.0.{i}"), "targetRef": {"kind": "Pod", "namespace": namespace, "name": pod}})
            };
            (0..count).map(address).collect()
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
        let number = self.controllers.fetch_add(1, Ordering::Relaxed);
        let owner = format!("{name}-rs-{number}");
        self.pod_of(namespace, name, labels, Some(("ReplicaSet", &owner)));
    }

    /// A pod with this controller, its kind and name, or without one.
    pub fn pod_of(&self, namespace: &str, name: &str, labels: &Value, controller: Option<(&str, &str)>) {
        let owners: Vec<Value> = controller
            .iter()
            .map(|(kind, name)| {
                json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": true})
            })
            .collect();
        let pod = json!({
            "metadata": {"name": name, "labels": labels, "ownerReferences": owners},
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

    /// Puts a pod's container into a crash loop that began at this time.
    pub fn crash_at(&self, namespace: &str, name: &str, ended_at: &str) {
        let mut status = waiting("main");
        status["lastState"]["terminated"]["finishedAt"] = ended_at.into();
        self.pod_status(namespace, name, json!({"containerStatuses": [status]}));
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
        let options = WriteOptions::default();
        let change = |pod: &mut Value| {
            pod["status"] = status;
            Ok(())
        };
        self.api
            .store()
            .modify(&keys::PODS, namespace, name, Part::All, &options, change)
            .unwrap();
    }

    pub fn delete(&self, resource: &ResourceKey, namespace: &str, name: &str) {
        self.api
            .store()
            .delete(resource, namespace, name, &Preconditions::default(), false)
            .unwrap();
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

    pub fn events(&self) -> Vec<std::sync::Arc<Object>> {
        self.api.store().all(&keys::EVENTS, None)
    }

    /// Creates an object, or replaces its labels and all but its metadata.
    pub fn put(&self, resource: &ResourceKey, namespace: &str, name: &str, value: Value) {
        let store = self.api.store();
        let options = WriteOptions::default();
        if store.find(resource, namespace, name).is_none() {
            self.api.create(resource, namespace, value).unwrap();
            return;
        }
        let change = |old: &mut Value| {
            for (field, new) in value.as_object().unwrap() {
                if field != "metadata" {
                    old[field] = new.clone();
                }
            }
            old["metadata"]["labels"] = value["metadata"]["labels"].clone();
            Ok(())
        };
        store
            .modify(resource, namespace, name, Part::All, &options, change)
            .unwrap();
    }
}

impl Weeder {
    pub async fn wait_ready(&self) {
        let readiness = &self.bound.readiness;
        eventually("the weeder is ready", || readiness.blockers().is_empty()).await;
    }

    /// The collectors' part of /metrics; the exporter itself belongs to the process.
    pub async fn metrics(&self) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let exchange = async {
            let mut stream = tokio::net::TcpStream::connect(self.bound.admin_addr).await?;
            let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            stream.write_all(request).await?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await?;
            std::io::Result::Ok(text)
        };
        tokio::time::timeout(PATIENCE, exchange).await.unwrap().unwrap()
    }

    /// The watches on pods that it needs: over all namespaces, and of one namespace.
    pub async fn pod_watches_by_scope(&self) -> (usize, usize) {
        let text = self.metrics().await;
        let value = |scope: &str| -> usize {
            let series = format!("watchdog_weeder_pod_watches{{scope=\"{scope}\"}} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&series));
            value.unwrap().parse().unwrap()
        };
        (value("selector") + value("all"), value("namespace"))
    }

    /// Stops it as SIGTERM does.
    pub async fn stop(self) {
        let (failed, in_time) = self.bound.tasks.drain(PATIENCE).await;
        assert_eq!((failed, in_time), (vec![], true));
    }

    /// Stops it as SIGKILL does.
    pub async fn kill(self) {
        self.bound.tasks.drain(Duration::ZERO).await;
    }

    pub async fn list(&mut self) -> Vec<pb::Weeder> {
        self.list_in(Scope::Unspecified).await
    }

    pub async fn list_in(&mut self, scope: Scope) -> Vec<pb::Weeder> {
        let request = pb::ListWeedersRequest {
            scope: scope.into(),
            ..Default::default()
        };
        self.client
            .list_weeders(request)
            .await
            .unwrap()
            .into_inner()
            .weeders
    }

    /// All weeders, in pages of this size.
    pub async fn pages(&mut self, page_size: i32) -> Vec<pb::ListWeedersResponse> {
        let mut request = pb::ListWeedersRequest {
            page_size,
            ..Default::default()
        };
        let mut pages = Vec::new();
        loop {
            let page = self
                .client
                .list_weeders(request.clone())
                .await
                .unwrap()
                .into_inner();
            request.page_token.clone_from(&page.next_page_token);
            pages.push(page);
            if request.page_token.is_empty() {
                return pages;
            }
        }
    }

    /// The weeder of a service.
    pub async fn find(&mut self, namespace: &str, service: &str) -> Option<pb::Weeder> {
        let key = pb::ServiceKey {
            namespace: namespace.to_owned(),
            service: service.to_owned(),
        };
        self.list()
            .await
            .into_iter()
            .find(|weeding| weeding.key.as_ref() == Some(&key))
    }

    /// Waits until the weeder of a service is as wanted.
    pub async fn wait(
        &mut self,
        namespace: &str,
        service: &str,
        what: &str,
        wanted: impl Fn(&pb::Weeder) -> bool,
    ) -> pb::Weeder {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.find(namespace, service).await;
            if let Some(weeding) = found.as_ref().filter(|weeding| wanted(weeding)) {
                return weeding.clone();
            }
            assert!(
                Instant::now() < deadline,
                "gave up waiting until {what}; it is {found:#?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until a weeder follows its dependants: its first look is over, and the watches are open.
    pub async fn wait_following(&mut self, seed: &Seed, namespace: &str, service: &str, watches: usize) {
        self.wait(namespace, service, "it is active", |w| {
            w.state() == pb::WeederState::Active
        })
        .await;
        eventually("the pods are watched", || pod_watches(seed) >= watches).await;
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

/// Writes the log of this process to a file, in JSON, until a line is as wanted.
pub struct JsonLog(tempfile::NamedTempFile);

impl JsonLog {
    pub fn start() -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (subscriber, _) = telemetry::subscriber(LogFormat::Json, "info", file.reopen().unwrap()).unwrap();
        tracing::subscriber::set_global_default(subscriber).unwrap();
        Self(file)
    }

    pub async fn line(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut found = None;
        eventually(what, || {
            let text = std::fs::read_to_string(self.0.path()).unwrap();
            let mut lines = text
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            found = lines.find(&wanted);
            found.is_some()
        })
        .await;
        found.unwrap()
    }
}

/// Waits until `condition` holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, async || condition()).await;
}

/// The same for a condition that must be asked for.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "gave up waiting until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
