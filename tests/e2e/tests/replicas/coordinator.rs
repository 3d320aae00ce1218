//! Two and three coordinators share shoots while they are killed, frozen, cut off and stopped: at most one acts on a
//! shoot at any time, as the API server recorded it, and no flow is lost. What is meant by that stands in
//! `watchdog_test_support::history`. Every run of the simulation of the membership has clocks that run fast and slow as
//! well (`services/common/kube/src/membership/simulation`).

use crate::support::ScriptedShoots;
use watchdog_proto::scaling::v1::Direction;
use watchdog_test_support::fault_proxy::Behaviour;
use watchdog_test_support::history::Invariant;
use watchdog_test_support::process::Command;
use watchdog_test_support::real::create_namespace;
use watchdog_test_support::tools;
use watchdog_test_support::wait::{self, BOUND};

const SHOOTS: usize = 12;

pub(crate) const REPLICAS: [&str; 3] = ["a", "b", "c"];

/// On either kind of seed.
pub(crate) async fn one_is_killed_and_another_frozen(fleet: ScriptedShoots) -> anyhow::Result<()> {
    let [mut a, b, c] = fleet.replicas(REPLICAS).await?;
    let flips = fleet.flip();
    fleet.until_all_acted_on().await?;
    fleet.until_acting(&REPLICAS).await?;

    let mut theirs = fleet.acted_on_by("a")?;
    theirs.extend(fleet.acted_on_by("b")?);
    a.process.kill_9().await?;
    b.process.sigstop()?;
    // Back at once under its old name, as after a crash: it must not believe the lease of the dead one to be its own.
    a = a.again().await?;
    fleet.until_taken_over(&theirs, &["b"]).await?;
    b.process.sigcont()?;
    fleet.until_acting(&REPLICAS).await?;

    drop(flips);
    let report = fleet.end().await?;
    let handovers = report.handovers;
    anyhow::ensure!(handovers.expired > 0 && handovers.acknowledged > 0, "{report}");
    drop((a, b, c));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_is_killed_and_another_frozen() {
    let fleet = ScriptedShoots::start("replicas-killed", SHOOTS).await.unwrap();
    one_is_killed_and_another_frozen(fleet).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_is_cut_off_from_the_seed_and_another_from_lease_probe() {
    let fleet = ScriptedShoots::start("replicas-cut", SHOOTS).await.unwrap();
    let [a, b, c] = fleet.replicas(REPLICAS).await.unwrap();
    let flips = fleet.flip();
    fleet.until_all_acted_on().await.unwrap();

    let (of_a, of_b) = (fleet.acted_on_by("a").unwrap(), fleet.acted_on_by("b").unwrap());
    a.to_seed.set(Behaviour::Silent);
    b.to_probe.set(Behaviour::Silent);
    wait::until_true("b holds without a source", BOUND, || async {
        let mut holds = true;
        for shoot in &of_b {
            holds &= b.get(shoot).await?.direction() == Direction::Hold;
        }
        Ok(holds)
    })
    .await
    .unwrap();
    let acted = fleet.report().unwrap().actions.get("b").copied();
    // Shoots of a that b takes over wait until b has a source again.
    wait::until_true("c acts on shoots of a", BOUND, || async {
        Ok(!fleet.acted_on_by("c")?.is_disjoint(&of_a))
    })
    .await
    .unwrap();
    assert_eq!(
        fleet.report().unwrap().actions.get("b").copied(),
        acted,
        "nothing is written without a source"
    );
    a.to_seed.set(Behaviour::Pass);
    b.to_probe.set(Behaviour::Pass);
    fleet.until_acting(&["a", "b", "c"]).await.unwrap();

    let of_c = fleet.acted_on_by("c").unwrap();
    c.process.sigterm().unwrap();
    fleet.until_taken_over(&of_c, &["c"]).await.unwrap();
    assert_eq!(c.process.wait_exit(BOUND).await.unwrap().code(), Some(0));

    drop(flips);
    let report = fleet.end().await.unwrap();
    let handovers = report.handovers;
    assert!(
        handovers.expired > 0 && handovers.acknowledged > 0 && handovers.released > 0,
        "{report}"
    );
}

/// All that a process knows of time, its monotonic clock included, runs 10 % fast in one and 10 % slow in another.
#[tokio::test(flavor = "multi_thread")]
async fn clocks_run_fast_and_slow() {
    let fleet = ScriptedShoots::start("replicas-clocks", SHOOTS).await.unwrap();
    let clock = |rate: &'static str| {
        let library = tools::path(tools::LIBFAKETIME).unwrap();
        move |command: Command| command.env("LD_PRELOAD", library).env("FAKETIME", rate)
    };
    let mut fast = fleet.replica_with("fast", clock("+0 x1.1")).await.unwrap();
    let slow = fleet.replica_with("slow", clock("+0 x0.9")).await.unwrap();
    let exact = fleet.replica("exact").await.unwrap();
    fleet.until_shared(&[&fast, &slow, &exact]).await.unwrap();
    let flips = fleet.flip();
    fleet.until_all_acted_on().await.unwrap();

    // Each waits in turn for the lease of another to run out, by its own clock.
    let of_slow = fleet.acted_on_by("slow").unwrap();
    slow.process.sigstop().unwrap();
    fleet.until_taken_over(&of_slow, &["slow"]).await.unwrap();
    slow.process.sigcont().unwrap();
    fleet.until_acting(&["slow"]).await.unwrap();
    let of_fast = fleet.acted_on_by("fast").unwrap();
    fast.process.kill_9().await.unwrap();
    fleet.until_taken_over(&of_fast, &["fast"]).await.unwrap();
    fast = fast.again().await.unwrap();
    fleet.until_acting(&["fast", "slow", "exact"]).await.unwrap();

    drop(flips);
    let report = fleet.end().await.unwrap();
    assert!(report.handovers.expired > 0, "{report}");
    drop((fast, slow, exact));
}

/// So that the tests above mean something: without a common membership the same checker finds what it looks for.
#[tokio::test(flavor = "multi_thread")]
async fn two_without_a_common_membership_are_found_out() {
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
