//! The seed's etcd goes back to a backup under a running coordinator: what was written is gone, and resource versions
//! are lower than those that it has seen.

use anyhow::Context;
use futures::{TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use watchdog_proto::scaling::v1::Direction;
use watchdog_test_support::fake_probe::Outcome;
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::real::EtcdBackup;
use watchdog_test_support::wait::{self, BOUND};

use super::{COUNTS, Fixture, ScriptedSeed, USER};

/// The backup is older by this number of revisions: more than an idle seed makes in the minute after a restore. A
/// restored etcd whose revisions have overtaken the old ones looks like one that never went back (ADR 0016).
const REVISIONS: usize = 500;

// === impl ScriptedSeed ===

impl ScriptedSeed {
    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn back_up(&self, name: &str) -> anyhow::Result<EtcdBackup> {
        let backup = self.plane.etcd.back_up(name).await?;
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

    /// The newest revision of etcd.
    async fn version(&self) -> anyhow::Result<u64> {
        let list = self.maps().list_metadata(&Default::default()).await?;
        let version = list.metadata.resource_version;
        Ok(version.context("a list without a version")?.parse()?)
    }

    /// The Deployments that the coordinator has written to since then, in order. The record begins after the first
    /// writes, so their order is checked here.
    fn writes(&self, since: Timestamp) -> anyhow::Result<Vec<String>> {
        let mut writes = self.server.audit()?;
        writes.sort_by_key(|write| write.at);
        let ours = writes
            .iter()
            .filter(|write| write.author == USER && write.applied && write.at >= since);
        let names = ours.filter_map(|write| Some(write.path.split_once("/deployments/")?.1.to_owned()));
        Ok(names.collect())
    }
}

// === impl Fixture ===

impl Fixture {
    /// Judges what was before, and goes back to a backup. Returns when: what the coordinator writes afterwards is what
    /// it makes of that.
    async fn restore(&mut self, backup: &EtcdBackup) -> anyhow::Result<Timestamp> {
        self.judge(COUNTS, false)?;
        let before = self.seed.version().await?;
        self.seed.server.stop().await?;
        self.seed.plane.etcd.restore(backup).await?;
        let restored_at = Timestamp::now();
        self.seed.server.start_again().await?;
        let after = self.seed.version().await?;
        anyhow::ensure!(after < before, "revision {before} became {after}");
        eprintln!("etcd went back from revision {before} to {after}");
        // It ends, and its Pod starts it again.
        self.coordinator.service.process.wait_exit(BOUND).await?;
        self.coordinator = self.coordinator.again().await?;
        self.begin().await?;
        self.seed.workloads.restart();
        Ok(restored_at)
    }
}

/// The writes that restore everything: a count, and the end of the protection.
const WRITES_UP: [&str; 6] = [KCM, KCM, MCM, MCM, CA, CA];

#[tokio::test(flavor = "multi_thread")]
async fn etcd_goes_back_under_a_running_coordinator() {
    let config = fixtures::prober("probeInterval: 10s", "100ms");
    let mut fixture = Fixture::start("restored", &config).await.unwrap();
    let up = fixture.seed.back_up("up").await.unwrap();
    fixture.seed.time_passes().await.unwrap();

    // In the middle of a flow down, to before its first write.
    fixture.seed.workloads.hold(MCM);
    fixture.seed.say(Outcome::LeasesExpired);
    fixture.seed.until_replicas(MCM, 0).await.unwrap();
    let restored_at = fixture.restore(&up).await.unwrap();
    fixture.seed.workloads.release();
    fixture.seed.until_replicas(KCM, 0).await.unwrap();
    fixture.until_settled(Direction::Down).await.unwrap();
    fixture.seed.until_down().await.unwrap();
    let mut writes = fixture.seed.writes(restored_at).unwrap();
    assert_eq!(writes.pop().as_deref(), Some(KCM), "after {writes:?}");
    writes.sort_unstable();
    assert_eq!(writes, [CA, MCM]);

    // In the middle of a flow up, to before its first write.
    let down = fixture.seed.back_up("down").await.unwrap();
    fixture.seed.time_passes().await.unwrap();
    fixture.seed.workloads.hold(KCM);
    fixture.seed.say(Outcome::Healthy);
    fixture.seed.until_replicas(KCM, 2).await.unwrap();
    let restored_at = fixture.restore(&down).await.unwrap();
    fixture.seed.workloads.release();
    fixture.seed.until_replicas(CA, 1).await.unwrap();
    fixture.until_settled(Direction::Up).await.unwrap();
    fixture.end(COUNTS).await.unwrap();
    assert_eq!(fixture.seed.writes(restored_at).unwrap(), WRITES_UP);

    // At rest, to what was held down. No watch brings it, and nothing is waited for.
    fixture.seed.time_passes().await.unwrap();
    let restored_at = fixture.restore(&down).await.unwrap();
    fixture.end(COUNTS).await.unwrap();
    fixture.until_settled(Direction::Up).await.unwrap();
    assert_eq!(fixture.seed.writes(restored_at).unwrap(), WRITES_UP);
}
