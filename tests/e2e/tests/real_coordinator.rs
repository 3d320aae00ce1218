//! The coordinator on a real kube-apiserver, driven by verdicts that the test gives: the main scenarios, and many
//! shoots lost at the same instant.

#![cfg(test)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use watchdog_e2e::coordinator::{Coordinator, FakeProbe, Outcome};
use watchdog_e2e::fixtures::{self, CA, KCM, MCM};
use watchdog_e2e::real::{
    ApiServer, RealControlPlane, create_cluster, create_deployment, create_namespace, install_seed_crds,
};
use watchdog_e2e::wait;
use watchdog_proto::scaling::v1::Direction;

const BOUND: Duration = Duration::from_secs(60);
const SHOOT: &str = "shoot--real--one";
const ETCD: &str = "etcd-events";
const ENGINE: &str = "engine";

/// How many shoots are lost at once, where nobody says otherwise with [`SHOOTS_VARIABLE`].
const SHOOTS: usize = 100;
const SHOOTS_VARIABLE: &str = "COORDINATOR_SHOOTS";

/// Requests of the test's own at once.
const AT_ONCE: usize = 16;

/// How long the simulated pods take to start and to stop.
const DELAY: Duration = Duration::from_millis(200);

fn kind(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

fn deployments() -> ApiResource {
    kind("apps", "v1", "Deployment", "deployments")
}

fn stateful_sets() -> ApiResource {
    kind("apps", "v1", "StatefulSet", "statefulsets")
}

fn engines() -> ApiResource {
    kind("machines.example.com", "v1", "Engine", "engines")
}

/// Somebody saw this many replicas of something wanted, or ready.
#[derive(Debug, Clone)]
struct Change {
    at: Instant,
    name: String,
    wanted: i64,
    is_ready: bool,
}

/// Plays the controllers of the seed for all namespaces: the status of everything follows its spec.
#[derive(Clone)]
struct Follower {
    seed: Client,
    changes: Arc<Mutex<Vec<Change>>>,
    held: watch::Sender<BTreeSet<String>>,
}

// === impl Follower ===

impl Follower {
    fn new(seed: &Client) -> Self {
        Self {
            seed: seed.clone(),
            changes: Arc::default(),
            held: watch::Sender::new(BTreeSet::new()),
        }
    }

    fn follow(&self, resource: ApiResource) -> AbortOnDropHandle<()> {
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
        // Before it is written: its watchers may be told before the answer is here.
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
    fn first(&self, name: &str, wanted: i64, is_ready: bool) -> Option<Instant> {
        self.times(name, wanted, is_ready).into_iter().min()
    }

    fn last(&self, name: &str, wanted: i64, is_ready: bool) -> Option<Instant> {
        self.times(name, wanted, is_ready).into_iter().max()
    }

    fn times(&self, name: &str, wanted: i64, is_ready: bool) -> Vec<Instant> {
        let changes = self.changes.lock();
        let of = changes
            .iter()
            .filter(|c| c.name == name && c.wanted == wanted && c.is_ready == is_ready);
        of.map(|change| change.at).collect()
    }
}

struct World {
    server: ApiServer,
    probe: FakeProbe,
    follower: Follower,
    coordinator: Coordinator,
    _following: Vec<AbortOnDropHandle<()>>,
    // Last, so that etcd outlives what talks to it.
    _plane: RealControlPlane,
}

impl World {
    /// A seed with so many shoots of three Deployments each, and a coordinator that has seen all of them healthy.
    async fn start(
        name: &str,
        shoots: &[String],
        config: &str,
        kinds: Vec<ApiResource>,
    ) -> anyhow::Result<Self> {
        let plane = RealControlPlane::start(name).await?;
        let server = plane.api_server("seed").await?;
        let seed = server.client();
        install_seed_crds(&seed).await?;
        if kinds.iter().any(|kind| kind.kind == "Engine") {
            install_engines(&seed).await?;
        }
        create_namespace(&seed, "garden").await?;
        let follower = Follower::new(&seed);
        let following = kinds.into_iter().map(|kind| follower.follow(kind)).collect();
        stream::iter(shoots.iter().map(anyhow::Ok))
            .try_for_each_concurrent(AT_ONCE, |shoot| {
                let seed = seed.clone();
                async move {
                    create_namespace(&seed, shoot).await?;
                    for (name, replicas) in [(KCM, 2), (MCM, 3), (CA, 1)] {
                        create_deployment(&seed, shoot, name, replicas).await?;
                    }
                    create_cluster(&seed, shoot, fixtures::shoot("40s")).await
                }
            })
            .await?;
        let probe = FakeProbe::start().await?;
        probe.say(shoots.iter().map(String::as_str), Outcome::Healthy);
        let config = plane.scratch().write("prober.yaml", config)?;
        let kubeconfig = server.kubeconfig_for("admin")?;
        let coordinator = Coordinator::start(plane.scratch(), &config, &kubeconfig, &probe).await?;
        let world = Self {
            server,
            probe,
            follower,
            coordinator,
            _following: following,
            _plane: plane,
        };
        world.until_all(shoots, Direction::Up).await?;
        Ok(world)
    }

    async fn until_all(&self, shoots: &[String], direction: Direction) -> anyhow::Result<()> {
        for shoot in shoots {
            self.coordinator
                .until_settled(shoot, direction, BOUND * 2)
                .await?;
        }
        Ok(())
    }

    fn say(&self, outcome: Outcome) {
        self.probe.say([SHOOT], outcome);
    }

    async fn settled(&self, direction: Direction) {
        self.coordinator
            .until_settled(SHOOT, direction, BOUND)
            .await
            .unwrap();
    }

    async fn get(&self, resource: &ApiResource, name: &str) -> anyhow::Result<DynamicObject> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.server.client(), SHOOT, resource);
        Ok(api.get(name).await?)
    }

    /// Wanted replicas and our annotations: the recorded count, and whether it is held down.
    async fn state(&self, resource: &ApiResource, name: &str) -> (i64, Option<String>, bool) {
        let object = self.get(resource, name).await.unwrap();
        let field = if resource.kind == "Engine" {
            "/spec/size"
        } else {
            "/spec/replicas"
        };
        let replicas = object.data.pointer(field).and_then(Value::as_i64).unwrap();
        let annotation = |name: &str| {
            object
                .annotations()
                .get(&format!("dependency-watchdog.gardener.cloud/{name}"))
        };
        (
            replicas,
            annotation("replicas").cloned(),
            annotation("meltdown-protection-active").is_some(),
        )
    }

    async fn annotate(&self, name: &str, annotation: &str, value: Value) {
        let api: Api<DynamicObject> = Api::namespaced_with(self.server.client(), SHOOT, &deployments());
        let patch = json!({"metadata": {"annotations": {annotation: value}}});
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }
}

/// A custom resource whose replicas are not where they usually are.
async fn install_engines(seed: &Client) -> anyhow::Result<()> {
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

async fn create_others(seed: &Client) -> anyhow::Result<()> {
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
        let api: Api<DynamicObject> = Api::namespaced_with(seed.clone(), SHOOT, &resource);
        let object = DynamicObject::new(name, &resource).data(data);
        api.create(&PostParams::default(), &object).await?;
    }
    Ok(())
}

/// Gardener's three, then a StatefulSet and a custom resource: the last to go down, the first to come up.
fn config_with_other_kinds() -> String {
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

#[tokio::test(flavor = "multi_thread")]
async fn the_main_scenarios() {
    let kinds = vec![deployments(), stateful_sets(), engines()];
    let world = World::start(
        "coordinator",
        &[SHOOT.to_owned()],
        &config_with_other_kinds(),
        kinds,
    )
    .await
    .unwrap();
    create_others(&world.server.client()).await.unwrap();
    let all = [
        (deployments(), KCM, 2),
        (deployments(), MCM, 3),
        (deployments(), CA, 1),
    ];
    let others = [(stateful_sets(), ETCD, 3), (engines(), ENGINE, 2)];
    wait::until_true("the others run", BOUND, || async {
        Ok(others
            .iter()
            .all(|(_, name, count)| world.follower.last(name, *count, true).is_some()))
    })
    .await
    .unwrap();
    world.settled(Direction::Up).await;

    // Down in order, with recorded counts.
    world.follower.changes.lock().clear();
    world.say(Outcome::LeasesExpired);
    world.settled(Direction::Down).await;
    for (resource, name, count) in all.iter().chain(&others) {
        assert_eq!(
            world.state(resource, name).await,
            (0, Some(count.to_string()), true),
            "{name}"
        );
    }
    let wanted = |name| world.follower.first(name, 0, false).unwrap();
    let gone = |name| world.follower.first(name, 0, true).unwrap();
    for first in [MCM, CA] {
        assert!(
            gone(first) < wanted(KCM),
            "{first} before kube-controller-manager"
        );
    }
    for last in [ETCD, ENGINE] {
        assert!(gone(KCM) < wanted(last), "kube-controller-manager before {last}");
    }

    // Up in order, to the recorded counts.
    world.follower.changes.lock().clear();
    world.say(Outcome::Healthy);
    world.settled(Direction::Up).await;
    for (resource, name, count) in all.iter().chain(&others) {
        let (replicas, _, held) = world.state(resource, name).await;
        assert_eq!((replicas, held), (*count, false), "{name}");
    }
    let wanted = |name, count| world.follower.first(name, count, false).unwrap();
    let ready = |name, count| world.follower.first(name, count, true).unwrap();
    for first in [(KCM, 2), (ETCD, 3), (ENGINE, 2)] {
        assert!(
            ready(first.0, first.1) < wanted(MCM, 3),
            "{first:?} before machine-controller-manager"
        );
    }
    assert!(ready(MCM, 3) < wanted(CA, 1), "cluster-autoscaler last");

    // A contrary verdict in the middle: what is not down yet never goes down.
    world.follower.changes.lock().clear();
    world
        .follower
        .held
        .send_modify(|held| _ = held.insert(MCM.to_owned()));
    world.say(Outcome::LeasesExpired);
    wait::until_true("machine-controller-manager is scaled down", BOUND, || async {
        Ok(world.state(&deployments(), MCM).await.0 == 0)
    })
    .await
    .unwrap();
    world.say(Outcome::Healthy);
    world.follower.held.send_modify(BTreeSet::clear);
    world.settled(Direction::Up).await;
    assert_eq!(
        world.state(&deployments(), MCM).await,
        (3, Some("3".to_owned()), false)
    );
    assert_eq!(
        world.follower.first(KCM, 0, false),
        None,
        "kube-controller-manager was not touched"
    );

    // Somebody wants one of them left alone.
    let ignore = "dependency-watchdog.gardener.cloud/ignore-scaling";
    world.annotate(KCM, ignore, json!("true")).await;
    world.say(Outcome::ExternalUnreachable);
    world.settled(Direction::Down).await;
    assert_eq!(world.state(&deployments(), KCM).await.0, 2);
    assert_eq!(world.state(&deployments(), MCM).await.0, 0);
    world.annotate(KCM, ignore, Value::Null).await;
    wait::until_true("kube-controller-manager goes down after all", BOUND, || async {
        Ok(world.state(&deployments(), KCM).await.0 == 0)
    })
    .await
    .unwrap();
    world.say(Outcome::Healthy);
    world.settled(Direction::Up).await;
    assert_eq!(world.state(&deployments(), KCM).await.0, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_shoots_lost_at_the_same_instant() {
    let count = std::env::var(SHOOTS_VARIABLE).map_or(SHOOTS, |text| text.parse().unwrap());
    let shoots: Vec<_> = (0..count).map(|i| format!("shoot--real--{i}")).collect();
    let config = fixtures::prober("probeInterval: 10s", "100ms");
    let world = World::start("coordinator-bulk", &shoots, &config, vec![deployments()])
        .await
        .unwrap();
    for (outcome, direction) in [
        (Outcome::LeasesExpired, Direction::Down),
        (Outcome::Healthy, Direction::Up),
    ] {
        world.follower.changes.lock().clear();
        let begin = Instant::now();
        world.probe.say(shoots.iter().map(String::as_str), outcome);
        world.until_all(&shoots, direction).await.unwrap();
        let settled = begin.elapsed();
        let (kcm, mcm, ca) = if direction == Direction::Down {
            (0, 0, 0)
        } else {
            (2, 3, 1)
        };
        let scaled =
            [(KCM, kcm), (MCM, mcm), (CA, ca)].map(|(name, to)| world.follower.times(name, to, false));
        let first = scaled.iter().flatten().min().unwrap().duration_since(begin);
        let last = scaled.iter().flatten().max().unwrap().duration_since(begin);
        let last_kcm = world.follower.last(KCM, kcm, true).unwrap().duration_since(begin);
        eprintln!(
            "{count} shoots {direction:?}: first scale write seen after {first:?}, last after {last:?}; \
             kube-controller-manager ready at {kcm} everywhere after {last_kcm:?}; all settled after {settled:?}"
        );
        // From the last renewal to 40 s, less what the verdict takes.
        if direction == Direction::Down {
            assert!(last_kcm < Duration::from_secs(30), "it took {last_kcm:?}");
        }
    }
}
