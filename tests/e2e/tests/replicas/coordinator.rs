//! Two and three coordinators share shoots while they are killed, frozen, cut off and stopped: at most one acts on a
//! shoot at any time, as the API server recorded it, and no flow is lost. What is meant by that stands in
//! `watchdog_test_support::history`. Every run of the simulation of the membership has clocks that run fast and slow as
//! well (`services/common/kube/src/membership/simulation`).

use crate::support::{BOUND, ReplicaProcess, ScriptedShoots};
use watchdog_proto::scaling::v1::Direction;
use watchdog_test_support::coordinator::Outcome;
use watchdog_test_support::fault_proxy::Behaviour;
use watchdog_test_support::history::Invariant;
use watchdog_test_support::process::Command;
use watchdog_test_support::real::create_namespace;
use watchdog_test_support::{tools, wait};

const SHOOTS: usize = 12;

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_is_killed_and_another_frozen() {
    let fleet = ScriptedShoots::start("replicas-killed", SHOOTS).await.unwrap();
    let [mut a, b, c]: [ReplicaProcess; 3] = start(&fleet, ["a", "b", "c"]).await;
    let flips = fleet.flip();
    fleet.until_all_acted_on().await.unwrap();

    let mut theirs = fleet.acted_on_by("a");
    theirs.extend(fleet.acted_on_by("b"));
    a.process.kill_9().await.unwrap();
    b.process.sigstop().unwrap();
    // Back at once under its old name, as after a crash: it must not believe the lease of the dead one to be its own.
    a = a.again().await.unwrap();
    fleet.until_taken_over(&theirs, &["b"]).await.unwrap();
    b.process.sigcont().unwrap();
    fleet.until_acting(&["a", "b", "c"]).await.unwrap();

    drop(flips);
    fleet.say_all(Outcome::Healthy);
    fleet.until_restored().await.unwrap();
    let report = fleet.report();
    eprintln!("{report}");
    report.check().unwrap();
    assert!(
        report.handovers.expired > 0 && report.handovers.acknowledged > 0,
        "{report}"
    );
    drop((a, b, c));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_is_cut_off_from_the_seed_and_another_from_lease_probe() {
    let fleet = ScriptedShoots::start("replicas-cut", SHOOTS).await.unwrap();
    let [a, b, c]: [ReplicaProcess; 3] = start(&fleet, ["a", "b", "c"]).await;
    let flips = fleet.flip();
    fleet.until_all_acted_on().await.unwrap();

    let (of_a, of_b) = (fleet.acted_on_by("a"), fleet.acted_on_by("b"));
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
    let acted = fleet.report().actions.get("b").copied();
    // Shoots of a that b takes over wait until b has a source again.
    wait::until_true("c acts on shoots of a", BOUND, || async {
        Ok(!fleet.acted_on_by("c").is_disjoint(&of_a))
    })
    .await
    .unwrap();
    assert_eq!(
        fleet.report().actions.get("b").copied(),
        acted,
        "nothing is written without a source"
    );
    a.to_seed.set(Behaviour::Pass);
    b.to_probe.set(Behaviour::Pass);
    fleet.until_acting(&["a", "b", "c"]).await.unwrap();

    let of_c = fleet.acted_on_by("c");
    c.process.sigterm().unwrap();
    fleet.until_taken_over(&of_c, &["c"]).await.unwrap();
    assert_eq!(c.process.wait_exit(BOUND).await.unwrap().code(), Some(0));

    drop(flips);
    fleet.say_all(Outcome::Healthy);
    fleet.until_restored().await.unwrap();
    let report = fleet.report();
    eprintln!("{report}");
    report.check().unwrap();
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
    let kubeconfig = |name: &str| fleet.fixture.sandbox.seed().kubeconfig(name);
    let around = fleet.around("garden");
    let mut fast = ReplicaProcess::start_with(&around, "fast", &kubeconfig("fast"), clock("+0 x1.1"))
        .await
        .unwrap();
    let slow = ReplicaProcess::start_with(&around, "slow", &kubeconfig("slow"), clock("+0 x0.9"))
        .await
        .unwrap();
    let exact = fleet.replica("exact").await.unwrap();
    until_shared(&fleet, &[&fast, &slow, &exact]).await;
    let flips = fleet.flip();
    fleet.until_all_acted_on().await.unwrap();

    // Each waits in turn for the lease of another to run out, by its own clock.
    let of_slow = fleet.acted_on_by("slow");
    slow.process.sigstop().unwrap();
    fleet.until_taken_over(&of_slow, &["slow"]).await.unwrap();
    slow.process.sigcont().unwrap();
    fleet.until_acting(&["slow"]).await.unwrap();
    let of_fast = fleet.acted_on_by("fast");
    fast.process.kill_9().await.unwrap();
    fleet.until_taken_over(&of_fast, &["fast"]).await.unwrap();
    fast = fast.again().await.unwrap();
    fleet.until_acting(&["fast", "slow", "exact"]).await.unwrap();

    drop(flips);
    fleet.say_all(Outcome::Healthy);
    fleet.until_restored().await.unwrap();
    let report = fleet.report();
    eprintln!("{report}");
    report.check().unwrap();
    assert!(report.handovers.expired > 0, "{report}");
    drop((fast, slow, exact));
}

/// So that the tests above mean something: without a common membership the same checker finds what it looks for.
#[tokio::test(flavor = "multi_thread")]
async fn two_without_a_common_membership_are_found_out() {
    let fleet = ScriptedShoots::start("replicas-apart", 2).await.unwrap();
    create_namespace(&fleet.fixture.seed, "garden-by-mistake")
        .await
        .unwrap();
    let kubeconfig = |name: &str| fleet.fixture.sandbox.seed().kubeconfig(name);
    let a = ReplicaProcess::start(&fleet.around("garden"), "a", &kubeconfig("a"))
        .await
        .unwrap();
    let b = ReplicaProcess::start(&fleet.around("garden-by-mistake"), "b", &kubeconfig("b"))
        .await
        .unwrap();
    let _flips = fleet.flip();
    wait::until_true("both act on one shoot", BOUND, || async {
        let report = fleet.report();
        Ok(report.breaks(Invariant::Overlap) && report.breaks(Invariant::NotHandedOver))
    })
    .await
    .unwrap();
    drop((a, b));
}

/// Starts replicas and waits until they share the shoots, all of which are healthy.
async fn start<const N: usize>(fleet: &ScriptedShoots, identities: [&str; N]) -> [ReplicaProcess; N] {
    let replicas = fleet.replicas(&identities).await.unwrap();
    until_shared(fleet, &replicas.iter().collect::<Vec<_>>()).await;
    replicas.try_into().ok().unwrap()
}

pub(crate) async fn until_shared(fleet: &ScriptedShoots, replicas: &[&ReplicaProcess]) {
    wait::until_true("they share the shoots", BOUND, || async {
        let mut owned = 0;
        for replica in replicas {
            let share = replica.owns(&fleet.shoots).await?.len();
            anyhow::ensure!(share > 0, "{} has no share", replica.identity);
            owned += share;
        }
        Ok(owned == fleet.shoots.len())
    })
    .await
    .unwrap();
}
