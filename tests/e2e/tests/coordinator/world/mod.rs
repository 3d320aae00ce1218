//! A seed with shoots whose controllers the test plays, and a coordinator that listens to a
//! lease-probe that says what the test tells it to say.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its share of it")]

pub mod scenarios;

use std::sync::Arc;
use std::time::Duration;

use futures::{TryStreamExt, stream};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use watchdog_proto::scaling::v1::Direction;
use watchdog_test_support::coordinator::{Coordinator, FakeProbe, Outcome, forget_leases};
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::real::{
    ApiServer, ApiServerOptions, RealControlPlane, create_cluster, create_deployment, create_namespace,
    install_seed_crds,
};
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::wait;
pub use watchdog_test_support::wait::BOUND;

use watchdog_test_support::workload_controller::{WorkloadController, WorkloadOptions, deployments, kind};

pub const ETCD: &str = "etcd-events";
pub const ENGINE: &str = "engine";

/// The dependants of every shoot and their replicas.
pub const COUNTS: [(&str, i64); 3] = [(KCM, 2), (MCM, 3), (CA, 1)];

/// How long the simulated pods take to start and to stop.
const WORKLOAD_DELAY: Duration = Duration::from_millis(200);

pub fn stateful_sets() -> ApiResource {
    kind("apps", "v1", "StatefulSet", "statefulsets")
}

pub fn engines() -> ApiResource {
    kind("machines.example.com", "v1", "Engine", "engines")
}

/// Requests of the test's own at once.
const AT_ONCE: usize = 16;

/// A real API server as the seed, which ends before its etcd.
pub struct Seed {
    pub server: ApiServer,
    pub plane: RealControlPlane,
}

// === impl Seed ===

impl Seed {
    pub async fn start(name: &str) -> anyhow::Result<Self> {
        let plane = RealControlPlane::start(name).await?;
        Self::start_on(plane, ApiServerOptions::new("seed")).await
    }

    pub async fn start_on(plane: RealControlPlane, options: ApiServerOptions) -> anyhow::Result<Self> {
        let server = plane.api_server_with(options).await?;
        install_seed_crds(&server.client()).await?;
        Ok(Self { server, plane })
    }
}

pub struct World {
    pub client: Client,
    pub probe: FakeProbe,
    pub workloads: WorkloadController,
    pub coordinator: Coordinator,
    scratch: Arc<Scratch>,
    config: std::path::PathBuf,
    kubeconfig: String,
    // Last, so that it outlives what talks to it.
    pub seed: Seed,
}

// === impl World ===

impl World {
    /// A seed with so many shoots of three Deployments each, and a coordinator that has seen all of them healthy.
    pub async fn start(
        name: &str,
        seed: Seed,
        shoots: &[String],
        config: &str,
        kinds: Vec<ApiResource>,
    ) -> anyhow::Result<Self> {
        let kubeconfig = seed.server.kubeconfig_for("admin")?;
        Self::start_with(name, seed, kubeconfig, shoots, config, kinds).await
    }

    /// The same with a kubeconfig for the coordinator that is not the test's own.
    pub async fn start_with(
        name: &str,
        seed: Seed,
        kubeconfig: String,
        shoots: &[String],
        config: &str,
        kinds: Vec<ApiResource>,
    ) -> anyhow::Result<Self> {
        let client = seed.server.client();
        if kinds.iter().any(|kind| kind.kind == "Engine") {
            define_engines(&client).await?;
        }
        create_namespace(&client, "garden").await?;
        let options = WorkloadOptions::new(WORKLOAD_DELAY).kinds(kinds);
        let workloads = WorkloadController::start(&client, options);
        stream::iter(shoots.iter().map(anyhow::Ok))
            .try_for_each_concurrent(AT_ONCE, |shoot| create_shoot(&client, shoot))
            .await?;
        let scratch = Scratch::new(name)?;
        let probe = FakeProbe::start().await?;
        probe.say(shoots.iter().map(String::as_str), Outcome::Healthy);
        let config = scratch.write("prober.yaml", config)?;
        let coordinator = Coordinator::start(&scratch, &config, &kubeconfig, &probe).await?;
        let world = Self {
            client,
            probe,
            workloads,
            coordinator,
            scratch,
            config,
            kubeconfig,
            seed,
        };
        world.until_all(shoots, Direction::Up).await?;
        Ok(world)
    }

    pub async fn until_all(&self, shoots: &[String], direction: Direction) -> anyhow::Result<()> {
        for shoot in shoots {
            self.coordinator
                .until_settled(shoot, direction, BOUND * 2)
                .await?;
        }
        Ok(())
    }

    /// Waits until the coordinator sees all replicas of a shoot ready. A shoot that never was counts as settled too.
    pub async fn until_ready(&self, shoot: &str) -> anyhow::Result<()> {
        wait::until(&format!("{shoot} is ready"), BOUND, || async {
            let state = self.coordinator.get(shoot).await?;
            for resource in state.resources {
                let (wanted, ready) = (resource.spec_replicas, resource.ready_replicas);
                anyhow::ensure!(wanted.is_some() && wanted == ready, "{resource:?}");
            }
            Ok(Some(()))
        })
        .await
    }

    /// The coordinator dies at once, and another process takes its place.
    pub async fn crash(&mut self) -> anyhow::Result<()> {
        self.coordinator.process.kill_9().await?;
        forget_leases(&self.client).await?;
        let (config, kubeconfig) = (&self.config, &self.kubeconfig);
        self.coordinator = Coordinator::start(&self.scratch, config, kubeconfig, &self.probe).await?;
        Ok(())
    }

    fn api(&self, shoot: &str, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), shoot, resource)
    }

    /// Wanted replicas and our annotations: the recorded count, and whether it is held down.
    pub async fn state(
        &self,
        shoot: &str,
        resource: &ApiResource,
        name: &str,
    ) -> anyhow::Result<(i64, Option<String>, bool)> {
        let object = self.api(shoot, resource).get(name).await?;
        let field = if resource.kind == "Engine" {
            "/spec/size"
        } else {
            "/spec/replicas"
        };
        let replicas = object.data.pointer(field).and_then(Value::as_i64);
        let annotation = |name: &str| {
            object
                .annotations()
                .get(&format!("dependency-watchdog.gardener.cloud/{name}"))
        };
        Ok((
            replicas.unwrap_or_default(),
            annotation("replicas").cloned(),
            annotation("meltdown-protection-active").is_some(),
        ))
    }

    /// Wanted replicas of a Deployment.
    pub async fn replicas(&self, shoot: &str, name: &str) -> anyhow::Result<i64> {
        Ok(self.state(shoot, &deployments(), name).await?.0)
    }

    pub async fn patch(&self, shoot: &str, name: &str, patch: Value) -> anyhow::Result<()> {
        let api = self.api(shoot, &deployments());
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    pub async fn annotate(
        &self,
        shoot: &str,
        name: &str,
        annotation: &str,
        value: Value,
    ) -> anyhow::Result<()> {
        let patch = json!({"metadata": {"annotations": {annotation: value}}});
        self.patch(shoot, name, patch).await
    }

    /// Changes the Shoot in a Cluster.
    pub async fn change_shoot(&self, shoot: &str, change: Value) -> anyhow::Result<()> {
        let clusters = Api::<DynamicObject>::all_with(
            self.client.clone(),
            &watchdog_test_support::real::cluster_resource(),
        );
        let patch = Patch::Merge(json!({"spec": {"shoot": change}}));
        clusters.patch(shoot, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

/// The namespace of a shoot with its Deployments and its Cluster.
pub async fn create_shoot(seed: &Client, shoot: &str) -> anyhow::Result<()> {
    create_namespace(seed, shoot).await?;
    for (name, replicas) in COUNTS {
        create_deployment(seed, shoot, name, i32::try_from(replicas)?).await?;
    }
    create_cluster(seed, shoot, fixtures::shoot("40s")).await
}

async fn define_engines(seed: &Client) -> anyhow::Result<()> {
    let definitions = kind(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    );
    let api: Api<DynamicObject> = Api::all_with(seed.clone(), &definitions);
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = DynamicObject::new("engines.machines.example.com", &definitions).data(json!({"spec": {
        "group": "machines.example.com",
        "names": {"kind": "Engine", "plural": "engines", "singular": "engine"},
        "scope": "Namespaced",
        "versions": [{
            "name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}},
            "subresources": {
                "status": {},
                "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"},
            },
        }],
    }}));
    api.create(&PostParams::default(), &definition).await?;
    let all: Api<DynamicObject> = Api::all_with(seed.clone(), &engines());
    wait::until("Engines are served", BOUND, || async {
        all.list(&Default::default()).await?;
        Ok(Some(()))
    })
    .await
}

/// A StatefulSet and a custom resource in a shoot.
pub async fn create_others(seed: &Client, shoot: &str) -> anyhow::Result<()> {
    let set = json!({"spec": {
        "replicas": 3, "serviceName": ETCD,
        "selector": {"matchLabels": {"app": ETCD}},
        "template": {
            "metadata": {"labels": {"app": ETCD}},
            "spec": {"containers": [{"name": "etcd", "image": "simulated"}]},
        },
    }});
    for (resource, name, data) in [
        (stateful_sets(), ETCD, set),
        (engines(), ENGINE, json!({"spec": {"size": 2}})),
    ] {
        let api: Api<DynamicObject> = Api::namespaced_with(seed.clone(), shoot, &resource);
        let object = DynamicObject::new(name, &resource).data(data);
        api.create(&PostParams::default(), &object).await?;
    }
    Ok(())
}

/// Gardener's three, then a StatefulSet and a custom resource: the last to go down, the first to come up.
pub fn config_with_other_kinds() -> String {
    let three = fixtures::prober("probeInterval: 10s", "100ms");
    format!(
        "{three}
- ref: {{apiVersion: apps/v1, kind: StatefulSet, name: {ETCD}}}
  optional: true
  scaleUp: {{level: 0}}
  scaleDown: {{level: 2}}
- ref: {{apiVersion: machines.example.com/v1, kind: Engine, name: {ENGINE}}}
  optional: true
  scaleUp: {{level: 0}}
  scaleDown: {{level: 2}}
"
    )
}
