//! The seed's etcd goes back to a backup under a running coordinator: what was written is gone, and resource versions
//! are lower than those that it has seen.

use std::path::PathBuf;

use crate::fixture::{BOUND, COUNTS, Fixture, Seed};
use anyhow::Context;
use futures::{TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use watchdog_proto::scaling::v1::Direction;
use watchdog_test_support::coordinator::Outcome;
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::history;
use watchdog_test_support::real::{ApiServerOptions, EtcdBackup, RealControlPlane};
use watchdog_test_support::wait;
use watchdog_test_support::workload_controller::deployments;

const SHOOT: &str = "shoot--real--restored";

/// The user of the coordinator, by which the audit log tells its writes.
const USER: &str = "coordinator";

/// The backup is older by this number of revisions: more than an idle seed makes in the minute after a restore. A
/// restored etcd whose revisions have overtaken the old ones looks like one that never went back (ADR 0017).
const REVISIONS: usize = 500;

const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Request
  users: [coordinator]
  verbs: [patch, update]
  resources:
  - group: apps
    resources: [deployments, deployments/scale]
- level: None
";

struct Restored {
    fixture: Fixture,
    audit_log: PathBuf,
}

// === impl Restored ===

impl Restored {
    async fn start() -> anyhow::Result<Self> {
        let plane = RealControlPlane::start("restored-seed").await?;
        let policy = plane.scratch().write("audit-policy.yaml", POLICY)?;
        let audit_log = plane.scratch().join("audit.log");
        let options = ApiServerOptions::new("seed")
            .user(USER, &["system:masters"])
            .flag(&format!("--audit-policy-file={}", policy.display()))
            .flag(&format!("--audit-log-path={}", audit_log.display()));
        let seed = Seed::start_on(plane, options).await?;
        let kubeconfig = seed.server.kubeconfig_for(USER)?;
        let config = fixtures::prober("probeInterval: 10s", "100ms");
        let shoots = [SHOOT.to_owned()];
        let kinds = vec![deployments()];
        let fixture = Fixture::start_with("restored", seed, kubeconfig, &shoots, &config, kinds).await?;
        fixture.until_ready(SHOOT).await?;
        Ok(Self { fixture, audit_log })
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.fixture.client.clone(), "default")
    }

    async fn back_up(&self, name: &str) -> anyhow::Result<EtcdBackup> {
        let backup = self.fixture.seed.plane.back_up_etcd(name).await?;
        wait::until("the API server has its etcd again", BOUND, || async {
            self.version().await.map(Some)
        })
        .await?;
        Ok(backup)
    }

    /// Objects change that have nothing to do with the shoot.
    async fn time_passes(&self) -> anyhow::Result<()> {
        let maps = self.maps();
        let map = serde_json::from_value(json!({"metadata": {"generateName": "turns-"}}))?;
        let map = maps.create(&PostParams::default(), &map).await?;
        let name = map.metadata.name.context("a ConfigMap without a name")?;
        stream::iter((0..REVISIONS).map(anyhow::Ok))
            .try_for_each_concurrent(16, |turn| {
                let (maps, name) = (&maps, &name);
                async move {
                    let data = Patch::Merge(json!({"data": {"turn": turn.to_string()}}));
                    maps.patch(name, &PatchParams::default(), &data).await?;
                    Ok(())
                }
            })
            .await
    }

    /// Goes back to a backup. Returns when: what the coordinator writes afterwards is what it makes of that.
    async fn restore(&mut self, backup: &EtcdBackup) -> anyhow::Result<Timestamp> {
        let (server, plane) = (&self.fixture.seed.server, &self.fixture.seed.plane);
        let before = self.version().await?;
        server.stop().await?;
        plane.restore_etcd(backup).await?;
        let restored_at = Timestamp::now();
        server.start_again().await?;
        let after = self.version().await?;
        anyhow::ensure!(after < before, "revision {before} became {after}");
        eprintln!("etcd went back from revision {before} to {after}");
        self.fixture.workloads.restart();
        Ok(restored_at)
    }

    /// The newest revision of etcd.
    async fn version(&self) -> anyhow::Result<u64> {
        let list = self.maps().list_metadata(&Default::default()).await?;
        Ok(list
            .metadata
            .resource_version
            .context("a list without a version")?
            .parse()?)
    }

    /// The coordinator's writes since then, in order.
    fn writes(&self, since: Timestamp) -> anyhow::Result<Vec<String>> {
        let mut writes = history::from_audit_log(&self.audit_log)?;
        writes.retain(|write| write.author == USER && write.applied && write.at >= since);
        writes.sort_by_key(|write| write.at);
        Ok(writes
            .iter()
            .map(|write| described(&write.path, &write.body))
            .collect())
    }

    async fn until_settled(&self, direction: Direction) -> anyhow::Result<()> {
        self.fixture.until_all(&[SHOOT.to_owned()], direction).await
    }

    fn say(&self, outcome: Outcome) {
        self.fixture.probe.say([SHOOT], outcome);
    }

    fn hold(&self, name: &str) {
        self.fixture.workloads.hold(name);
    }

    fn let_go(&self) {
        self.fixture.workloads.release();
    }

    async fn until_replicas(&self, name: &str, wanted: i64) -> anyhow::Result<()> {
        wait::until_true(&format!("{name} is scaled to {wanted}"), BOUND, || async {
            Ok(self.fixture.replicas(SHOOT, name).await? == wanted)
        })
        .await
    }

    /// Checks that each of the three is scaled down and recorded, or restored.
    async fn check(&self, direction: Direction) -> anyhow::Result<()> {
        for (name, count) in COUNTS {
            let state = self.fixture.state(SHOOT, &deployments(), name).await?;
            let down = direction == Direction::Down;
            let replicas = if down { 0 } else { count };
            anyhow::ensure!((state.0, state.2) == (replicas, down), "{name} is {state:?}");
            anyhow::ensure!(!down || state.1 == Some(count.to_string()), "{name} is {state:?}");
        }
        Ok(())
    }
}

/// `scale NAME COUNT`, or `clean NAME` where a write only removes meltdown-protection-active.
fn described(path: &str, body: &Value) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    match body.pointer("/spec/replicas") {
        Some(replicas) => format!("scale {name} {replicas}"),
        None => format!("clean {name}"),
    }
}

/// The writes that restore everything, in order.
fn writes_up() -> Vec<String> {
    let all = COUNTS.iter();
    all.flat_map(|(name, count)| [format!("scale {name} {count}"), format!("clean {name}")])
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_goes_back_under_a_running_coordinator() {
    let mut seed = Restored::start().await.unwrap();
    let up = seed.back_up("up").await.unwrap();
    seed.time_passes().await.unwrap();

    // In the middle of a flow down, to before its first write.
    seed.hold(MCM);
    seed.say(Outcome::LeasesExpired);
    seed.until_replicas(MCM, 0).await.unwrap();
    let restored_at = seed.restore(&up).await.unwrap();
    seed.let_go();
    seed.until_replicas(KCM, 0).await.unwrap();
    seed.until_settled(Direction::Down).await.unwrap();
    seed.check(Direction::Down).await.unwrap();
    let mut writes = seed.writes(restored_at).unwrap();
    assert_eq!(writes.pop(), Some(format!("scale {KCM} 0")), "after {writes:?}");
    writes.sort_unstable();
    assert_eq!(
        writes,
        [CA, MCM].map(|name| format!("scale {name} 0")),
        "once each"
    );

    // In the middle of a flow up, to before its first write.
    let down = seed.back_up("down").await.unwrap();
    seed.time_passes().await.unwrap();
    seed.hold(KCM);
    seed.say(Outcome::Healthy);
    seed.until_replicas(KCM, 2).await.unwrap();
    let restored_at = seed.restore(&down).await.unwrap();
    seed.let_go();
    seed.until_replicas(CA, 1).await.unwrap();
    seed.until_settled(Direction::Up).await.unwrap();
    seed.check(Direction::Up).await.unwrap();
    assert_eq!(seed.writes(restored_at).unwrap(), writes_up(), "once each");

    // At rest, to what was held down. No watch brings it, and nothing is waited for.
    seed.time_passes().await.unwrap();
    let restored_at = seed.restore(&down).await.unwrap();
    wait::until("it is restored again", BOUND, || async {
        seed.check(Direction::Up).await.map(Some)
    })
    .await
    .unwrap();
    seed.until_settled(Direction::Up).await.unwrap();
    assert_eq!(seed.writes(restored_at).unwrap(), writes_up(), "once each");
}
