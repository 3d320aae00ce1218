//! No connection can be opened: no file descriptor is left, or the kernel has no memory for a socket. Open connections
//! go on.

use std::time::Duration;

use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::process::{ChildProcess, Command};
use watchdog_test_support::tools;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::Service;

use crate::fleet::{Fleet, Symptom};

const OUT_OF_FILE_DESCRIPTORS: Symptom = Symptom {
    name: "file-descriptors",
    reason: "local_limit",
    message: Some("no file descriptor is left; no connection can be opened"),
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shortage {
    FileDescriptors,
    Memory,
}

/// A program that gets no socket.
enum Starved<'a> {
    /// With its limit of open files until now.
    OfFileDescriptors(&'a Service, u64),
    /// By strace, which makes the kernel refuse each socket.
    OfMemory(ChildProcess),
}

// === impl Shortage ===

impl Shortage {
    const fn error(self) -> &'static str {
        match self {
            Self::FileDescriptors => "Too many open files",
            Self::Memory => "Cannot allocate memory",
        }
    }

    /// Leaves programs with the connections that they have.
    async fn begin<'a>(self, fleet: &Fleet, services: &[&'a Service]) -> anyhow::Result<Vec<Starved<'a>>> {
        let mut starved = Vec::new();
        for &service in services {
            starved.push(match self {
                // Standard input is the only file whose number is below 1.
                Self::FileDescriptors => {
                    Starved::OfFileDescriptors(service, service.process.limit_open_files(1)?)
                }
                Self::Memory => Starved::OfMemory(refuse_sockets(fleet, service).await?),
            });
        }
        self.until_shown(services).await?;
        Ok(starved)
    }

    /// Only file descriptors are looked after all the time; what else is short shows when it is needed.
    async fn until_shown(self, services: &[&Service]) -> anyhow::Result<()> {
        match self {
            Self::FileDescriptors => OUT_OF_FILE_DESCRIPTORS.until_shown(services).await,
            Self::Memory => Ok(()),
        }
    }
}

impl Starved<'_> {
    async fn end(self) -> anyhow::Result<()> {
        match self {
            Self::OfFileDescriptors(service, limit) => service.process.limit_open_files(limit).map(drop),
            Self::OfMemory(strace) => strace.stop(BOUND).await.map(drop),
        }
    }
}

async fn refuse_sockets(fleet: &Fleet, service: &Service) -> anyhow::Result<ChildProcess> {
    let name = format!("strace-{}", service.process.name());
    let traced = service.process.id().to_string();
    let strace = Command::new(name, tools::path(tools::STRACE)?)
        .args(["--follow-forks", "--trace=socket", "--inject=socket:error=ENOMEM"])
        .args(["--attach", &traced])
        .spawn(&fleet.fixture.scratch)?;
    strace.wait_for_text("attached", BOUND).await?;
    Ok(strace)
}

async fn lease_probe_blames_itself(name: &str, shortage: Shortage) {
    let fleet = Fleet::start(name).await.unwrap();
    // From then on nobody gets a connection.
    let channel = fleet.channel_to_lease_probe().await.unwrap();
    let starved = shortage.begin(&fleet, &[&fleet.lease_probe]).await.unwrap();
    fleet
        .check_it_blames_itself(&channel, shortage.error())
        .await
        .unwrap();
    // Longer than the expiry age.
    fleet.no_false_alarm_for(Duration::from_secs(8)).await.unwrap();
    for starved in starved {
        starved.end().await.unwrap();
    }
    fleet.check_still_protects().await.unwrap();
    OUT_OF_FILE_DESCRIPTORS
        .until_gone(&[&fleet.lease_probe])
        .await
        .unwrap();
}

/// Nodes are lost while the coordinator cannot write. Where it lacks file descriptors they are also back before it can.
async fn coordinator_writes_nothing_late(name: &str, shortage: Shortage) {
    let fleet = Fleet::start(name).await.unwrap();
    let shoot = &fleet.shoots()[0];
    let services = [&fleet.coordinator, &fleet.weeder];
    let starved = shortage.begin(&fleet, &services).await.unwrap();
    fleet.fixture.sandbox.seed().cut_connections();
    for service in services {
        let series = "watchdog_retry_loop_failing{loop=\"leader-election\",reason=\"local_limit\"}";
        wait::until_true("the leader election names the cause", BOUND, || async {
            let (_, body) = service.admin_get("/readyz").await?;
            anyhow::ensure!(body.contains("leader-election: the last try failed: "), "{body}");
            Ok(service.metric(series).await? == Some(1.0))
        })
        .await
        .unwrap();
        service
            .process
            .wait_for_text(shortage.error(), BOUND)
            .await
            .unwrap();
    }
    let known = async |outcome| {
        let known = fleet
            .fixture
            .wait_outcome(&fleet.lease_probe, shoot.namespace(), outcome);
        known.await.unwrap();
        assert_eq!(fleet.fixture.writes(shoot), [""; 0]);
    };
    fleet.fixture.cut_off(shoot);
    known(Outcome::LeasesExpired).await;
    let is_back = shortage == Shortage::FileDescriptors;
    if is_back {
        fleet.fixture.reconnect(shoot);
        known(Outcome::Healthy).await;
    }
    // It lasts, and so does the sign of it.
    shortage.until_shown(&services).await.unwrap();
    for starved in starved {
        starved.end().await.unwrap();
    }
    if is_back {
        OUT_OF_FILE_DESCRIPTORS.until_gone(&services).await.unwrap();
        assert_eq!(fleet.fixture.writes(shoot), [""; 0]);
        fleet.fixture.cut_off(shoot);
    }
    fleet.check_acts_on_loss().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_file_descriptors_lease_probe_blames_itself() {
    lease_probe_blames_itself("no-files-lease-probe", Shortage::FileDescriptors).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_memory_lease_probe_blames_itself() {
    lease_probe_blames_itself("no-memory-lease-probe", Shortage::Memory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_file_descriptors_a_coordinator_writes_nothing_late() {
    coordinator_writes_nothing_late("no-files-coordinator", Shortage::FileDescriptors).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_memory_a_coordinator_writes_nothing_and_acts_once_it_can() {
    coordinator_writes_nothing_late("no-memory-coordinator", Shortage::Memory).await;
}
