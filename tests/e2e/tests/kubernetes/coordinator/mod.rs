//! Coordinators on a real API server, with shoots whose controllers the test plays, and a lease-probe that says what
//! the test tells it to say. What happens is judged by the history checker.

mod frozen;
mod observe;
mod replicas;
mod restored;
mod scenarios;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use watchdog_proto::scaling::v1::{Direction, ResourceState};
use watchdog_test_support::coordinator::Coordinator;
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};
use watchdog_test_support::fixtures::{CA, KCM, MCM};
use watchdog_test_support::history::invariants::Expectation;
use watchdog_test_support::history::timeline::{Dependant, Fact, Recorder, Timeline};
use watchdog_test_support::history::{History, HistoryReport};
use watchdog_test_support::real::{
    ApiServerOptions, KubeApiserver, RealControlPlane, cluster_resource, create_namespace, create_shoot,
    install_seed_crds,
};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::workload_controller::{WorkloadController, WorkloadOptions, deployments, kind};

use crate::SHOOT;

/// The dependants and their replicas.
const COUNTS: [(&str, i32); 3] = [(KCM, 2), (MCM, 3), (CA, 1)];

/// How long the simulated pods take to start and to stop.
const WORKLOAD_DELAY: Duration = Duration::from_millis(200);

/// The user of the only coordinator, by which the audit log tells its writes.
const USER: &str = "coordinator";

fn stateful_sets() -> ApiResource {
    kind("apps", "v1", "StatefulSet", "statefulsets")
}

/// A custom resource with the sub-resource scale.
fn engines() -> ApiResource {
    kind("machines.example.com", "v1", "Engine", "engines")
}

/// A seed with shoots whose verdicts the test gives. The coordinators belong to the test.
struct ScriptedSeed {
    client: Client,
    shoots: Vec<String>,
    probe: Arc<FakeProbe>,
    workloads: WorkloadController,
    timeline: Arc<Timeline>,
    recorder: Recorder,
    config: PathBuf,
    server: KubeApiserver,
    // Last, so that it outlives what talks to it.
    plane: RealControlPlane,
}

// === impl ScriptedSeed ===

impl ScriptedSeed {
    /// Shoots that are healthy and run, on an API server that records what these users write.
    async fn start(name: &str, config: &str, shoots: Vec<String>, users: &[&str]) -> anyhow::Result<Self> {
        let plane = RealControlPlane::start(name).await?;
        let options = ApiServerOptions::new("seed").audited(users);
        let server = plane.api_server_with(options).await?;
        let client = server.client();
        install_seed_crds(&client).await?;
        define_engines(&client).await?;
        create_namespace(&client, "garden").await?;
        let kinds = vec![deployments(), stateful_sets(), engines()];
        let workloads = WorkloadController::start(&client, WorkloadOptions::new(WORKLOAD_DELAY).kinds(kinds));
        for shoot in &shoots {
            create_shoot(&client, shoot, &COUNTS).await?;
        }
        let (timeline, recorder) = Timeline::start(&client).await?;
        let seed = Self {
            client,
            shoots,
            probe: Arc::new(FakeProbe::start().await?),
            workloads,
            timeline,
            recorder,
            config: plane.scratch().write("prober.yaml", config)?,
            server,
            plane,
        };
        seed.say(Outcome::Healthy);
        seed.until_restored().await?;
        Ok(seed)
    }

    /// Gives all shoots this verdict.
    fn say(&self, outcome: Outcome) {
        for shoot in &self.shoots {
            self.timeline.add(shoot, Fact::Verdict(outcome));
        }
        self.probe.say(&self.shoots, outcome);
    }

    /// Waits until all dependants are held down. How they came there is judged by [`Self::judge`].
    async fn until_down(&self) -> anyhow::Result<()> {
        let is_down = |found: &Dependant| (found.wanted, found.ready, found.held) == (0, 0, true);
        let timeline = &self.timeline;
        timeline
            .until_dependants("all are down", &self.shoots, BOUND, is_down)
            .await
    }

    /// Waits until everything is as it was before.
    async fn until_restored(&self) -> anyhow::Result<()> {
        self.timeline.catch_up(&self.client).await?;
        self.timeline.until_restored(&self.shoots, &COUNTS, BOUND).await
    }

    /// The record of the writes since the start.
    fn history(&self) -> anyhow::Result<History> {
        Ok(History::new(self.server.audit()?))
    }

    /// Judges what is on record.
    fn judge(&self, expected: &Expectation) -> anyhow::Result<HistoryReport> {
        let shoots = self.shoots.iter().map(String::as_str);
        Ok(self.history()?.check_with(&self.timeline, shoots, expected))
    }

    fn api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), SHOOT, resource)
    }

    /// Wanted replicas and our annotations: the recorded count, and whether it is held down.
    async fn state(&self, resource: &ApiResource, name: &str) -> anyhow::Result<(i32, Option<String>, bool)> {
        let object = self.api(resource).get(name).await?;
        let mut fields = ["/spec/replicas", "/spec/size"].into_iter();
        let replicas = fields.find_map(|field| object.data.pointer(field)?.as_i64());
        let annotation = |name: &str| {
            let annotations = object.annotations();
            annotations.get(&format!("dependency-watchdog.gardener.cloud/{name}"))
        };
        Ok((
            i32::try_from(replicas.unwrap_or_default())?,
            annotation("replicas").cloned(),
            annotation("meltdown-protection-active").is_some(),
        ))
    }

    /// Wanted replicas of a Deployment.
    async fn replicas_of(&self, name: &str) -> anyhow::Result<i32> {
        Ok(self.state(&deployments(), name).await?.0)
    }

    async fn until_replicas(&self, name: &str, wanted: i32) -> anyhow::Result<()> {
        wait::until_true(&format!("{name} is scaled to {wanted}"), BOUND, || async {
            Ok(self.replicas_of(name).await? == wanted)
        })
        .await
    }

    /// Changes a Deployment in the part of somebody else.
    async fn patch(&self, name: &str, patch: Value) -> anyhow::Result<()> {
        let (api, params) = (self.api(&deployments()), PatchParams::default());
        self.note_write(&api.patch(name, &params, &Patch::Merge(patch)).await?)
    }

    /// Records a write of somebody else.
    fn note_write(&self, written: &impl ResourceExt) -> anyhow::Result<()> {
        let version = written
            .resource_version()
            .context("an object without a version")?;
        self.timeline.add(SHOOT, Fact::Operator(version.parse()?));
        Ok(())
    }

    /// Changes the Shoot in the Cluster.
    async fn change_shoot(&self, change: Value) -> anyhow::Result<()> {
        let clusters: Api<DynamicObject> = Api::all_with(self.client.clone(), &cluster_resource());
        let patch = Patch::Merge(json!({"spec": {"shoot": change}}));
        clusters.patch(SHOOT, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

/// One shoot, and one coordinator that has seen it healthy.
struct Fixture {
    coordinator: Coordinator,
    seed: ScriptedSeed,
}

// === impl Fixture ===

impl Fixture {
    async fn start(name: &str, config: &str) -> anyhow::Result<Self> {
        let seed = ScriptedSeed::start(name, config, vec![SHOOT.to_owned()], &[USER]).await?;
        let (scratch, kubeconfig) = (seed.plane.scratch(), seed.server.kubeconfig_for(USER)?);
        let address = seed.probe.address();
        let command = Coordinator::command(scratch, "coordinator-0", &kubeconfig, &seed.config, address)?;
        let coordinator = Coordinator::start(command, scratch).await?;
        let fixture = Self { coordinator, seed };
        fixture.recover().await?;
        fixture.until_ready().await?;
        Ok(fixture)
    }

    async fn until_settled(&self, direction: Direction) -> anyhow::Result<()> {
        self.coordinator.until_settled(SHOOT, direction, BOUND * 2).await
    }

    async fn lose(&self) -> anyhow::Result<()> {
        self.seed.say(Outcome::LeasesExpired);
        self.until_settled(Direction::Down).await
    }

    async fn recover(&self) -> anyhow::Result<()> {
        self.seed.say(Outcome::Healthy);
        self.until_settled(Direction::Up).await
    }

    /// Waits until all three are at these counts, judges how they came there, and begins the record anew.
    async fn end(&mut self, counts: [(&'static str, i32); 3]) -> anyhow::Result<()> {
        self.seed
            .timeline
            .until_restored(&[SHOOT], &counts, BOUND)
            .await?;
        self.judge(counts, true)?;
        self.begin().await
    }

    /// Judges what is on record.
    fn judge(&self, counts: [(&'static str, i32); 3], restored: bool) -> anyhow::Result<()> {
        let expected = Expectation {
            counts: counts.to_vec(),
            nodes: None,
            restored,
            verdicts: true,
        };
        self.seed.judge(&expected)?.check()
    }

    /// Begins the record anew, with the verdict that is in force.
    async fn begin(&mut self) -> anyhow::Result<()> {
        let seed = &mut self.seed;
        let mut entries = seed.timeline.of(SHOOT).into_iter().rev();
        let verdict = entries.find(|entry| matches!(entry.fact, Fact::Verdict(_)));
        (seed.timeline, seed.recorder) = Timeline::start(&seed.client).await?;
        seed.timeline.add(SHOOT, verdict.context("no verdict")?.fact);
        Ok(())
    }

    /// Waits until the coordinator sees all replicas of what exists ready. A shoot that never was ready counts as
    /// settled too.
    async fn until_ready(&self) -> anyhow::Result<()> {
        wait::until("the shoot is ready", BOUND, || async {
            let state = self.coordinator.get(SHOOT).await?;
            for resource in state
                .resources
                .iter()
                .filter(|resource| resource.state() != ResourceState::Absent)
            {
                let (wanted, ready) = (resource.spec_replicas, resource.ready_replicas);
                anyhow::ensure!(wanted.is_some() && wanted == ready, "{resource:?}");
            }
            Ok(Some(()))
        })
        .await
    }

    /// The coordinator dies at once, and another process takes its place when the Lease has ended.
    async fn crash(&mut self) -> anyhow::Result<()> {
        self.coordinator.service.process.kill_9().await?;
        self.coordinator = self.coordinator.again().await?;
        Ok(())
    }
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
