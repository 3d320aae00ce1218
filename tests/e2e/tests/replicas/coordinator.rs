//! One of two or three coordinators leads while they are killed, frozen, cut off and stopped: at most one acts at any
//! time, as the API server recorded it, and no flow is lost. What is meant by that stands in
//! `watchdog_test_support::history`.

use std::time::Duration;

use crate::support::{ReplicaProcess, ScriptedShoots};
use anyhow::Context;
use watchdog_proto::scaling::v1::Direction;
use watchdog_test_support::fault_proxy::Behaviour;
use watchdog_test_support::history::Invariant;
use watchdog_test_support::process::Command;
use watchdog_test_support::real::create_namespace;
use watchdog_test_support::tools;
use watchdog_test_support::wait::{self, BOUND};

const SHOOTS: usize = 12;

pub(crate) const REPLICAS: [&str; 3] = ["a", "b", "c"];

/// Played on a real API server, in [`super::kubernetes`].
pub(crate) async fn one_is_killed_and_another_frozen(fleet: ScriptedShoots) -> anyhow::Result<()> {
    let mut replicas = fleet.replicas(REPLICAS).await?;
    let flips = fleet.flip();
    fleet.until_all_acted_on().await?;

    let (first, holder) = fleet.leader().await?.context("nobody leads")?;
    let killed = by_name(&mut replicas, &first)?;
    killed.process.kill_9().await?;
    // Back at once under its old name, as after a crash: it must not believe the Lease of the dead one to be its own.
    *killed = killed.again().await?;
    let second = fleet.until_led_after(&holder).await?;
    fleet.until_acting(&second).await?;

    let (second, holder) = fleet.leader().await?.context("nobody leads")?;
    let frozen = by_name(&mut replicas, &second)?;
    frozen.process.sigstop()?;
    let third = fleet.until_led_after(&holder).await?;
    fleet.until_taken_over(&second).await?;
    by_name(&mut replicas, &second)?.process.sigcont()?;
    fleet.until_acting(&third).await?;

    drop(flips);
    let report = fleet.end().await?;
    anyhow::ensure!(report.handovers.expired > 0, "{report}");
    fleet.until_following(&replicas.iter().collect::<Vec<_>>()).await
}

fn by_name<'a>(replicas: &'a mut [ReplicaProcess], name: &str) -> anyhow::Result<&'a mut ReplicaProcess> {
    let mut replicas = replicas.iter_mut();
    replicas
        .find(|replica| replica.identity == name)
        .with_context(|| format!("there is no {name}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_cut_off_from_the_seed_and_the_next_one_from_lease_probe() {
    let fleet = ScriptedShoots::start("replicas-cut", SHOOTS).await.unwrap();
    let mut replicas = fleet.replicas(REPLICAS).await.unwrap();
    let flips = fleet.flip();
    fleet.until_all_acted_on().await.unwrap();

    let (first, holder) = fleet.leader().await.unwrap().unwrap();
    by_name(&mut replicas, &first)
        .unwrap()
        .to_seed
        .set(Behaviour::Silent);
    let second = fleet.until_led_after(&holder).await.unwrap();
    fleet.until_taken_over(&first).await.unwrap();
    by_name(&mut replicas, &first)
        .unwrap()
        .to_seed
        .set(Behaviour::Pass);

    let without_source = &*by_name(&mut replicas, &second).unwrap();
    without_source.to_probe.set(Behaviour::Silent);
    wait::until_true("it holds without a source", BOUND, || async {
        let mut holds = true;
        for shoot in &fleet.shoots {
            holds &= without_source.get(shoot).await?.direction() == Direction::Hold;
        }
        Ok(holds)
    })
    .await
    .unwrap();
    let acted = fleet.actions_of(&second).unwrap();
    wait::holds(
        "nothing is written without a source",
        Duration::from_secs(5),
        || async { Ok(fleet.actions_of(&second)? == acted) },
    )
    .await
    .unwrap();
    without_source.to_probe.set(Behaviour::Pass);
    fleet.until_acting(&second).await.unwrap();

    without_source.process.sigterm().unwrap();
    fleet.until_taken_over(&second).await.unwrap();
    let status = without_source.process.wait_exit(BOUND).await.unwrap();
    assert_eq!(status.code(), Some(0));

    drop(flips);
    let report = fleet.end().await.unwrap();
    let handovers = report.handovers;
    assert!(handovers.expired > 0 && handovers.released > 0, "{report}");
}

/// All that a process knows of time, its monotonic clock included, runs 10 % fast in one and 10 % slow in the other.
#[tokio::test(flavor = "multi_thread")]
async fn clocks_run_fast_and_slow() {
    let fleet = ScriptedShoots::start("replicas-clocks", SHOOTS).await.unwrap();
    let clock = |rate: &'static str| {
        let library = tools::path(tools::LIBFAKETIME).unwrap();
        move |command: Command| command.env("LD_PRELOAD", library).env("FAKETIME", rate)
    };
    let slow = fleet.replica_with("slow", clock("+0 x0.9")).await.unwrap();
    fleet.until_following(&[&slow]).await.unwrap();
    let mut fast = fleet.replica_with("fast", clock("+0 x1.1")).await.unwrap();
    fleet.until_following(&[&slow, &fast]).await.unwrap();
    let flips = fleet.flip();
    fleet.until_all_acted_on().await.unwrap();

    // Each waits in turn for the Lease of the other to run out, by its own clock.
    slow.process.sigstop().unwrap();
    fleet.until_taken_over("slow").await.unwrap();
    slow.process.sigcont().unwrap();
    fleet.until_following(&[&fast]).await.unwrap();
    fast.process.kill_9().await.unwrap();
    fleet.until_taken_over("fast").await.unwrap();
    fast = fast.again().await.unwrap();
    fleet.until_acting("slow").await.unwrap();

    drop(flips);
    let report = fleet.end().await.unwrap();
    assert!(report.handovers.expired > 0, "{report}");
    fleet.until_following(&[&slow, &fast]).await.unwrap();
}

/// So that the tests above mean something: without a common Lease the same checker finds what it looks for.
#[tokio::test(flavor = "multi_thread")]
async fn two_without_a_common_lease_are_found_out() {
    let fleet = ScriptedShoots::start("replicas-apart", 2).await.unwrap();
    create_namespace(&fleet.client, "garden-by-mistake")
        .await
        .unwrap();
    let a = fleet.replica("a").await.unwrap();
    let elsewhere = |command: Command| command.option("--namespace", "garden-by-mistake");
    let b = fleet.replica_with("b", elsewhere).await.unwrap();
    let _flips = fleet.flip();
    wait::until_true("both act on one shoot", BOUND, || async {
        let report = fleet.report()?;
        Ok(report.breaks(Invariant::Overlap) && report.breaks(Invariant::NotHandedOver))
    })
    .await
    .unwrap();
    drop((a, b));
}
