//! One of several coordinators leads while they are killed, frozen, cut off and stopped: at most one acts at any time,
//! as the API server recorded it, and no flow is lost. What is meant by that stands in
//! `watchdog_test_support::history`.

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use watchdog_proto::scaling::v1::{Direction, ShootScaling};
use watchdog_test_support::coordinator::Coordinator;
use watchdog_test_support::fake_probe::Outcome;
use watchdog_test_support::fault_proxy::{Behaviour, FaultProxy};
use watchdog_test_support::fixtures;
use watchdog_test_support::history::invariants::Expectation;
use watchdog_test_support::history::{HistoryReport, Invariant, LEADER_LEASE};
use watchdog_test_support::process::Command;
use watchdog_test_support::real::create_namespace;
use watchdog_test_support::tools;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::NAMESPACE;

use super::{COUNTS, ScriptedSeed};

const SHOOTS: usize = 9;

/// A coordinator whose user on the seed is its identity, with connections of its own.
pub(super) struct Replica {
    pub(super) identity: String,
    pub(super) coordinator: Coordinator,
    /// Between it and the seed.
    to_seed: FaultProxy,
    /// Between it and lease-probe.
    to_probe: FaultProxy,
}

// === impl ScriptedSeed ===

impl ScriptedSeed {
    /// A seed for replicas of these identities.
    pub(super) async fn start_for(
        name: &str,
        config: &str,
        shoots: usize,
        identities: &[&str],
    ) -> anyhow::Result<Self> {
        let shoots = (0..shoots).map(|i| format!("shoot--real--s{i}")).collect();
        Self::start(name, config, shoots, identities).await
    }

    /// Starts a coordinator, with what `more` adds to its command. It need not be ready yet.
    async fn replica(
        &self,
        identity: &str,
        more: impl FnOnce(Command) -> Command,
    ) -> anyhow::Result<Replica> {
        let address = self.server.url().trim_start_matches("https://");
        let to_seed = FaultProxy::start_tcp(address.parse()?).await?;
        let to_probe = FaultProxy::start_tcp(self.probe.address()).await?;
        let kubeconfig = to_seed.kubeconfig(&self.server.kubeconfig_for(identity)?);
        anyhow::ensure!(
            kubeconfig.contains(&to_seed.address().to_string()),
            "a kubeconfig of another server"
        );
        let scratch = self.plane.scratch();
        let address = to_probe.address();
        let command = Coordinator::command(scratch, identity, &kubeconfig, &self.config, address)?;
        Ok(Replica {
            identity: identity.to_owned(),
            coordinator: Coordinator::start(more(command), scratch).await?,
            to_seed,
            to_probe,
        })
    }

    /// Starts several, of which the first one leads and the others stand by, and waits until each tells of all shoots.
    pub(super) async fn replicas(&self, identities: &[&str]) -> anyhow::Result<Vec<Replica>> {
        let mut replicas = Vec::new();
        for identity in identities {
            replicas.push(self.replica(identity, |command| command).await?);
            self.until_following(&replicas).await?;
        }
        Ok(replicas)
    }

    /// Waits until one leads and each of these knows it.
    pub(super) async fn until_following(
        &self,
        replicas: impl IntoIterator<Item = &Replica> + Clone,
    ) -> anyhow::Result<()> {
        wait::until("each replica tells of all shoots", BOUND, || async {
            for replica in replicas.clone() {
                let known = replica.coordinator.list().await?;
                let is_held = |state: &&ShootScaling| state.direction() == Direction::Hold;
                let held = known.iter().filter(is_held).count();
                anyhow::ensure!(
                    known.len() == self.shoots.len() && held == 0,
                    "{} tells of {}, of which {held} are held",
                    replica.identity,
                    known.len()
                );
            }
            Ok(Some(()))
        })
        .await
    }

    /// The replica that the Lease names, and the holder in full, which differs for every process.
    pub(super) async fn leader(&self) -> anyhow::Result<(String, String)> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        let spec = leases.get(LEADER_LEASE).await?.spec.unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        let (name, _) = holder.rsplit_once('_').context("nobody leads")?;
        Ok((name.to_owned(), holder.clone()))
    }

    /// Waits until another process leads than this holder, and gives the name of its replica.
    async fn until_led_after(&self, holder: &str) -> anyhow::Result<String> {
        wait::until("another process leads", BOUND, || async {
            let (name, now) = self.leader().await?;
            Ok((now != holder).then_some(name))
        })
        .await
    }

    /// Judges who wrote what, and what became of the dependants.
    fn report(&self) -> anyhow::Result<HistoryReport> {
        self.judge(&Expectation {
            counts: COUNTS.to_vec(),
            nodes: None,
            restored: false,
            verdicts: false,
        })
    }

    /// Everything becomes healthy and is restored, and what happened until then is judged.
    pub(super) async fn end(&self) -> anyhow::Result<HistoryReport> {
        self.say(Outcome::Healthy);
        self.until_restored().await?;
        let report = self.report()?;
        eprintln!("{report}");
        report.check()?;
        Ok(report)
    }

    /// How often a replica has acted.
    pub(super) fn actions_of(&self, replica: &str) -> anyhow::Result<usize> {
        let actions = self.history()?.check().actions;
        Ok(actions.get(replica).copied().unwrap_or_default())
    }

    /// Waits until others than this replica have acted on all shoots.
    async fn until_taken_over(&self, from: &str) -> anyhow::Result<()> {
        wait::until("others act on the shoots", BOUND, || async {
            let history = self.history()?;
            for shoot in &self.shoots {
                let author = history.last_author(shoot).unwrap_or_default();
                anyhow::ensure!(author != from, "{shoot} is still {author:?}'s");
            }
            Ok(Some(()))
        })
        .await
    }

    /// Waits until a replica has acted since then.
    async fn until_acting(&self, replica: &str) -> anyhow::Result<()> {
        let before = self.actions_of(replica)?;
        let what = format!("{replica} acts");
        wait::until_true(&what, BOUND, || async { Ok(self.actions_of(replica)? > before) }).await
    }

    /// Lets every shoot lose its nodes and have them back again and again, each at its own pace, flows that are under
    /// way or not, until the handle is dropped. Waits until somebody has acted on each.
    async fn flip(&self) -> anyhow::Result<AbortOnDropHandle<()>> {
        let (probe, shoots) = (self.probe.clone(), self.shoots.clone());
        let flips = AbortOnDropHandle::new(tokio::spawn(async move {
            let flips = shoots.iter().map(|shoot| async {
                for outcome in [Outcome::LeasesExpired, Outcome::Healthy].iter().cycle() {
                    sleep(Duration::from_millis(rand::random_range(200..3_000))).await;
                    probe.say([shoot.as_str()], *outcome);
                }
            });
            futures::future::join_all(flips).await;
        }));
        self.until_taken_over("").await?;
        Ok(flips)
    }
}

fn config() -> String {
    fixtures::prober("probeInterval: 5s", "100ms")
}

pub(super) fn by_name<'a>(replicas: &'a mut [Replica], name: &str) -> anyhow::Result<&'a mut Replica> {
    let mut replicas = replicas.iter_mut();
    replicas
        .find(|replica| replica.identity == name)
        .with_context(|| format!("there is no {name}"))
}

/// The leader is killed, and back at once under its old name: it must not believe the Lease of the dead one to be its
/// own.
async fn killed(seed: &ScriptedSeed, replicas: &mut [Replica]) -> anyhow::Result<()> {
    let (first, holder) = seed.leader().await?;
    let coordinator = &mut by_name(replicas, &first)?.coordinator;
    coordinator.service.process.kill_9().await?;
    *coordinator = coordinator.again().await?;
    let second = seed.until_led_after(&holder).await?;
    seed.until_acting(&second).await
}

async fn frozen(seed: &ScriptedSeed, replicas: &mut [Replica]) -> anyhow::Result<()> {
    let (first, holder) = seed.leader().await?;
    let process = &by_name(replicas, &first)?.coordinator.service.process;
    process.sigstop()?;
    let second = seed.until_led_after(&holder).await?;
    seed.until_taken_over(&first).await?;
    process.sigcont()?;
    seed.until_acting(&second).await
}

async fn cut_off_from_the_seed(seed: &ScriptedSeed, replicas: &mut [Replica]) -> anyhow::Result<()> {
    let (first, holder) = seed.leader().await?;
    let to_seed = &by_name(replicas, &first)?.to_seed;
    to_seed.set(Behaviour::Silent);
    seed.until_led_after(&holder).await?;
    seed.until_taken_over(&first).await?;
    to_seed.set(Behaviour::Pass);
    Ok(())
}

async fn cut_off_from_lease_probe(seed: &ScriptedSeed, replicas: &mut [Replica]) -> anyhow::Result<()> {
    let (leader, _) = seed.leader().await?;
    let without_source = &*by_name(replicas, &leader)?;
    without_source.to_probe.set(Behaviour::Silent);
    wait::until_true("it holds without a source", BOUND, || async {
        let states = without_source.coordinator.list().await?;
        let is_held = |state: &ShootScaling| state.direction() == Direction::Hold;
        Ok(states.len() == seed.shoots.len() && states.iter().all(is_held))
    })
    .await?;
    let acted = seed.actions_of(&leader)?;
    let nothing = "nothing is written without a source";
    wait::holds(nothing, Duration::from_secs(5), || async {
        Ok(seed.actions_of(&leader)? == acted)
    })
    .await?;
    without_source.to_probe.set(Behaviour::Pass);
    seed.until_acting(&leader).await
}

async fn stopped(seed: &ScriptedSeed, replicas: &mut [Replica]) -> anyhow::Result<()> {
    let (leader, _) = seed.leader().await?;
    let process = &by_name(replicas, &leader)?.coordinator.service.process;
    process.sigterm()?;
    seed.until_taken_over(&leader).await?;
    let status = process.wait_exit(BOUND).await?;
    anyhow::ensure!(status.code() == Some(0), "{status}");
    Ok(())
}

/// So that the rest means something: without a common Lease the same checker finds what it looks for.
async fn one_without_the_common_lease_is_found_out(seed: &ScriptedSeed) -> anyhow::Result<()> {
    const ELSEWHERE: &str = "garden-by-mistake";
    create_namespace(&seed.client, ELSEWHERE).await?;
    let elsewhere = |command: Command| command.option("--namespace", ELSEWHERE);
    let _astray = seed.replica("astray", elsewhere).await?;
    let _flips = seed.flip().await?;
    wait::until_true("both act on one shoot", BOUND, || async {
        let report = seed.report()?;
        Ok(report.breaks(Invariant::Overlap) && report.breaks(Invariant::NotHandedOver))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_one_acts_while_replicas_are_killed_frozen_cut_off_and_stopped() {
    let identities = ["a", "b", "c", "astray"];
    let seed = ScriptedSeed::start_for("replicas", &config(), SHOOTS, &identities).await;
    let seed = seed.unwrap();
    let mut replicas = seed.replicas(&identities[..3]).await.unwrap();
    let flips = seed.flip().await.unwrap();
    killed(&seed, &mut replicas).await.unwrap();
    frozen(&seed, &mut replicas).await.unwrap();
    cut_off_from_the_seed(&seed, &mut replicas).await.unwrap();
    cut_off_from_lease_probe(&seed, &mut replicas).await.unwrap();
    stopped(&seed, &mut replicas).await.unwrap();
    drop(flips);
    let report = seed.end().await.unwrap();
    let handovers = report.handovers;
    assert!(handovers.expired > 0 && handovers.released > 0, "{report}");
    let runs = |replica: &&Replica| {
        replica
            .coordinator
            .service
            .process
            .exit_status()
            .unwrap()
            .is_none()
    };
    let running: Vec<_> = replicas.iter().filter(runs).collect();
    assert_eq!(running.len(), 2);
    seed.until_following(running).await.unwrap();
    one_without_the_common_lease_is_found_out(&seed).await.unwrap();
}

/// All that a process knows of time, its monotonic clock included, runs 10 % fast in one and 10 % slow in the other.
#[tokio::test(flavor = "multi_thread")]
async fn clocks_run_fast_and_slow() {
    let seed = ScriptedSeed::start_for("replicas-clocks", &config(), SHOOTS, &["slow", "fast"]).await;
    let seed = seed.unwrap();
    let clock = |rate: &'static str| {
        let library = tools::path(tools::LIBFAKETIME).unwrap();
        move |command: Command| command.env("LD_PRELOAD", library).env("FAKETIME", rate)
    };
    let slow = seed.replica("slow", clock("+0 x0.9")).await.unwrap();
    seed.until_following([&slow]).await.unwrap();
    let mut fast = seed.replica("fast", clock("+0 x1.1")).await.unwrap();
    seed.until_following([&slow, &fast]).await.unwrap();
    let flips = seed.flip().await.unwrap();

    // Each waits in turn for the Lease of the other to run out, by its own clock.
    let slow_process = &slow.coordinator.service.process;
    slow_process.sigstop().unwrap();
    seed.until_taken_over("slow").await.unwrap();
    slow_process.sigcont().unwrap();
    seed.until_following([&fast]).await.unwrap();
    fast.coordinator.service.process.kill_9().await.unwrap();
    seed.until_taken_over("fast").await.unwrap();
    fast.coordinator = fast.coordinator.again().await.unwrap();
    seed.until_acting("slow").await.unwrap();

    drop(flips);
    let report = seed.end().await.unwrap();
    assert!(report.handovers.expired > 0, "{report}");
    seed.until_following([&slow, &fast]).await.unwrap();
}
