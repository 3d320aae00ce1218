//! The real coordinator process is killed at every write boundary of a loss and of the recovery after it: with the
//! write applied, and with the write lost.

use serde_json::Value;
use watchdog_proto::scaling::v1::Direction;
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{AuditEntry, Fault, FaultAction, SimulatedShootSpec};
use watchdog_test_support::coordinator::{Coordinator, FakeProbe, Outcome, forget_leases};
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{self, BOUND};

const COUNTS: [(&str, u32); 3] = [(KCM, 2), (MCM, 3), (CA, 1)];

struct Run {
    fixture: SandboxFixture,
    probe: FakeProbe,
    shoot: String,
    coordinator: Coordinator,
    crashes: usize,
}

impl Run {
    async fn start(name: &str) -> anyhow::Result<Self> {
        let prober = fixtures::prober("probeInterval: 5s", "100ms");
        let fixture = SandboxFixture::start_with(
            name,
            vec![SimulatedShootSpec::new("one", 1)],
            &prober,
            &fixtures::weeder("1m"),
        )
        .await?;
        let shoot = fixture.shoot("one")?;
        for (name, replicas) in COUNTS {
            shoot.scale(name, replicas)?;
        }
        wait::until_true("the control plane runs", BOUND, || async {
            let ready = |(name, replicas): &(&str, u32)| {
                shoot
                    .workload(name)
                    .is_some_and(|w| w.ready_replicas == i64::from(*replicas))
            };
            Ok(COUNTS.iter().all(ready))
        })
        .await?;
        let shoot = shoot.namespace().to_owned();
        let probe = FakeProbe::start().await?;
        probe.say([shoot.as_str()], Outcome::Healthy);
        let coordinator = start(&fixture, &probe).await?;
        coordinator.until_settled(&shoot, Direction::Up, BOUND).await?;
        Ok(Self {
            fixture,
            probe,
            shoot,
            coordinator,
            crashes: 0,
        })
    }

    /// All writes to the dependants, with their number in the audit log.
    fn writes(&self, since: u64) -> Vec<AuditEntry> {
        let ours = format!("/apis/apps/v1/namespaces/{}/deployments/", self.shoot);
        let mut entries = self.fixture.sandbox.seed().audit_since(since);
        entries.retain(|entry| entry.user == "watchdog" && entry.is_write() && entry.path.starts_with(&ours));
        entries
    }

    fn last_id(&self) -> u64 {
        self.fixture
            .sandbox
            .seed()
            .audit()
            .last()
            .map_or(0, |entry| entry.id)
    }

    /// Goes in one direction, and dies at as many writes on each of the dependants as that takes.
    async fn go(&mut self, direction: Direction, fate: &FaultAction) -> anyhow::Result<Vec<AuditEntry>> {
        let (begin, api) = (self.last_id(), self.fixture.sandbox.seed().clone());
        let times: u32 = if direction == Direction::Down { 1 } else { 2 };
        for name in [KCM, MCM, CA] {
            let path = format!("/apis/apps/v1/namespaces/{}/deployments/{name}", self.shoot);
            api.inject(
                Fault::always(fate.clone())
                    .verb("patch")
                    .path(&path)
                    .user("watchdog")
                    .times(times),
            );
        }
        let mut hit = 0;
        // A fault may only be hit by a write; when none is left, the flow comes to its end.
        loop {
            let reached = wait::until("a write is hit, or all is done", BOUND, || async {
                let unanswered = self.writes(begin).iter().filter(|entry| entry.code == 0).count();
                if unanswered > hit {
                    return Ok(Some(Some(unanswered)));
                }
                let state = self.coordinator.get(&self.shoot).await?;
                let settled = state.direction() == direction
                    && state.state() == watchdog_proto::scaling::v1::FlowState::Settled;
                Ok(settled.then_some(None))
            })
            .await?;
            let Some(unanswered) = reached else {
                break;
            };
            hit = unanswered;
            self.coordinator.process.kill_9().await?;
            self.crashes += 1;
            // What was on its way when it died counts as hit.
            hit = hit.max(self.writes(begin).iter().filter(|entry| entry.code == 0).count());
            forget_leases(&self.fixture.seed).await?;
            self.coordinator = start(&self.fixture, &self.probe).await?;
        }
        let writes = 3 * times as usize;
        anyhow::ensure!(hit == writes, "{hit} of the {writes} writes were hit");
        Ok(self.writes(begin))
    }

    fn counts(&self) -> Vec<(i64, Option<String>, bool)> {
        let store = self.fixture.sandbox.seed().store();
        let count = |(name, _): &(&str, u32)| {
            let object = store.find(&keys::DEPLOYMENTS, &self.shoot, name).unwrap();
            let annotation =
                |name: &str| object.annotation(&format!("dependency-watchdog.gardener.cloud/{name}"));
            (
                object.number("/spec/replicas"),
                annotation("replicas").map(str::to_owned),
                annotation("meltdown-protection-active").is_some(),
            )
        };
        COUNTS.iter().map(count).collect()
    }
}

async fn start(fixture: &SandboxFixture, probe: &FakeProbe) -> anyhow::Result<Coordinator> {
    Coordinator::start(
        &fixture.scratch,
        fixture.setup.prober_file(),
        &fixture.kubeconfig(),
        probe,
    )
    .await
}

/// Numbers of the writes on a dependant: the first one and the last one.
fn span(writes: &[AuditEntry], name: &str) -> (u64, u64) {
    let of = writes.iter().filter(|entry| {
        let path = entry.path.strip_suffix("/scale").unwrap_or(&entry.path);
        path.ends_with(&format!("/{name}"))
    });
    let ids: Vec<_> = of.map(|entry| entry.id).collect();
    (*ids.first().unwrap(), *ids.last().unwrap())
}

/// No write ever records a zero. The body of one that was lost is not known.
fn assert_no_zero_recorded(writes: &[AuditEntry]) {
    for write in writes.iter().filter(|write| write.verb == "patch") {
        let body: Value = serde_json::from_slice(&write.body).unwrap_or_default();
        let recorded = &body["metadata"]["annotations"]["dependency-watchdog.gardener.cloud/replicas"];
        assert_ne!(recorded, "0", "{write:?}");
    }
}

async fn killed_at_every_write(name: &str, fate: FaultAction) {
    let mut run = Run::start(name).await.unwrap();
    run.probe.say([run.shoot.as_str()], Outcome::LeasesExpired);
    let down = run.go(Direction::Down, &fate).await.unwrap();
    let held = |count: &str| (0, Some(count.to_owned()), true);
    assert_eq!(run.counts(), [held("2"), held("3"), held("1")]);
    let (kcm, mcm, ca) = (span(&down, KCM), span(&down, MCM), span(&down, CA));
    assert!(
        kcm.0 > mcm.1 && kcm.0 > ca.1,
        "kube-controller-manager goes last: {down:#?}"
    );
    assert_no_zero_recorded(&down);

    run.probe.say([run.shoot.as_str()], Outcome::Healthy);
    let up = run.go(Direction::Up, &fate).await.unwrap();
    let counts: Vec<_> = run
        .counts()
        .into_iter()
        .map(|(replicas, _, held)| (replicas, held))
        .collect();
    assert_eq!(counts, [(2, false), (3, false), (1, false)]);
    let (kcm, mcm, ca) = (span(&up, KCM), span(&up, MCM), span(&up, CA));
    assert!(
        kcm.1 < mcm.0 && mcm.1 < ca.0,
        "one level after the other: {up:#?}"
    );
    eprintln!("killed {} times", run.crashes);
    assert!(run.crashes >= 8, "killed {} times only", run.crashes);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_write_that_is_applied() {
    killed_at_every_write("crash-applied", FaultAction::ApplyAndHang).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_write_that_is_lost() {
    killed_at_every_write("crash-lost", FaultAction::Hang).await;
}
