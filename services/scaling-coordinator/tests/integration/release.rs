//! `--release-all` against an API server in memory.

use clap::Parser;
use scaling_coordinator::config::Args;
use tokio_util::task::AbortOnDropHandle;
use watchdog_runtime::cli::CommandLine;
use watchdog_sandbox::Rule;
use watchdog_sandbox::resource::keys;
use watchdog_test_support::in_process::CapturedOutput;

use crate::coordinator::one_shoot;
use crate::seed::{IGNORE, PROTECTED, RECORDED, Seed};
use crate::{BOUND, CA, KCM, MCM, SHOOT, eventually};

const OTHER: &str = "shoot--project--two";

/// A release that runs.
struct Run {
    output: CapturedOutput,
    task: AbortOnDropHandle<anyhow::Result<()>>,
}

impl Run {
    /// Starts it with these options, known to the API server by that name.
    fn start(seed: &Seed, user: &str, options: &[&str]) -> Self {
        Self::start_with(seed, user, options, false)
    }

    /// Starts one that only plans.
    fn start_plan(seed: &Seed, user: &str) -> Self {
        Self::start_with(seed, user, &[], true)
    }

    fn start_with(seed: &Seed, user: &str, options: &[&str], plan: bool) -> Self {
        let mut line = seed
            .files
            .command_line(&seed.api, user, "release", options)
            .unwrap();
        line.push("--release-all".to_owned());
        let config = Args::parse_from(line).check().unwrap();
        let (mut options, output) = (config.release.clone().unwrap(), CapturedOutput::default());
        options.plan = plan;
        let run = scaling_coordinator::app::release::run(config, options, output.clone());
        Self {
            output,
            task: AbortOnDropHandle::new(tokio::spawn(run)),
        }
    }

    /// How it ends, and its standard output.
    async fn end(self) -> (anyhow::Result<()>, String) {
        let result = tokio::time::timeout(BOUND, self.task).await.unwrap().unwrap();
        (result, self.output.text())
    }
}

/// A Deployment is at 0, as the watchdog leaves it.
fn hold_down(seed: &Seed, shoot: &str, name: &str, recorded: &str) {
    seed.annotate(shoot, name, RECORDED, recorded);
    seed.annotate(shoot, name, PROTECTED, "");
    seed.scale(shoot, name, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_down_is_restored_in_order_and_nothing_else_is_touched() {
    let seed = Seed::new().await;
    seed.shoot(SHOOT, 2, true).await;
    seed.shoot(OTHER, 1, true).await;
    for (name, recorded) in [(KCM, "2"), (MCM, "1")] {
        hold_down(&seed, SHOOT, name, recorded);
    }
    // At 0 by somebody else's will.
    seed.scale(SHOOT, CA, 0);
    seed.scale(OTHER, MCM, 0);
    // Left alone by somebody's will, with a leftover.
    hold_down(&seed, OTHER, KCM, "1");
    seed.annotate(OTHER, KCM, IGNORE, "true");
    eventually("all is down", || {
        seed.ready(SHOOT, KCM) == 0 && seed.ready(SHOOT, MCM) == 0
    })
    .await;
    seed.freeze(SHOOT, KCM);
    let run = Run::start(&seed, "coordinator", &[]);
    eventually("the first level is restored", || seed.replicas(SHOOT, KCM) == 2).await;
    eventually("the other shoot is cleaned up", || {
        seed.annotation(OTHER, KCM, PROTECTED).is_none()
    })
    .await;
    assert_eq!(
        seed.all(SHOOT),
        [2, 0, 0],
        "the next level waits until the first one is ready"
    );
    seed.thaw(SHOOT, KCM);
    let (result, stdout) = run.end().await;
    result.unwrap();
    assert_eq!((seed.all(SHOOT), seed.all(OTHER)), ([2, 1, 0], [0, 0, 1]));
    let writes = [
        format!("scale {KCM} 2"),
        format!("clean {KCM}"),
        format!("scale {MCM} 1"),
        format!("clean {MCM}"),
    ];
    assert_eq!(seed.writes(SHOOT), writes);
    assert_eq!(seed.writes(OTHER), [format!("clean {KCM}")]);
    let lines: Vec<_> = stdout.lines().collect();
    let restored = |line: &&str| line.ends_with(": restored");
    assert_eq!(
        lines.iter().copied().filter(|line| restored(line)).count(),
        3,
        "{stdout}"
    );
    assert_eq!(lines.last(), Some(&"nothing is held down"));
    let lease = seed
        .api
        .store()
        .find(&keys::LEASES, "garden", scaling_coordinator::app::LEADER_LEASE);
    assert_eq!(
        lease.unwrap().text("/spec/holderIdentity"),
        "",
        "its leadership is released"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_replica_count_is_written_where_the_shoot_hibernates() {
    let seed = Seed::new().await;
    seed.shoot(SHOOT, 2, false).await;
    seed.shoot(OTHER, 1, false).await;
    hold_down(&seed, SHOOT, KCM, "2");
    hold_down(&seed, OTHER, KCM, "1");
    seed.hibernate(OTHER);
    let kcm = format!("apps/v1 Deployment {KCM}");
    let (result, plan) = Run::start_plan(&seed, "plan").end().await;
    result.unwrap();
    let planned =
        format!("{OTHER}: {kcm}: remove meltdown-protection-active and do not change its replicas: ");
    assert!(plan.contains(&planned), "{planned} is not in {plan}");

    // The run retries a refused write until its time is over, and then reports the refusal.
    seed.api.deny(Rule {
        verbs: vec!["patch".to_owned()],
        namespaces: vec![OTHER.to_owned()],
        ..Rule::default()
    });
    let (result, stdout) = Run::start(&seed, "coordinator", &["--release-timeout=20s"])
        .end()
        .await;
    let error = format!("{:#}", result.unwrap_err());
    assert!(
        error.contains(OTHER) && error.contains("patch deployments.apps in namespace"),
        "{error}"
    );
    assert_eq!(stdout, format!("{SHOOT}: {kcm}: restored\n"));
    assert_eq!((seed.replicas(SHOOT, KCM), seed.replicas(OTHER, KCM)), (2, 0));

    seed.api.allow_all();
    let (result, stdout) = Run::start(&seed, "coordinator", &[]).end().await;
    result.unwrap();
    let released = format!("{OTHER}: {kcm}: meltdown-protection-active removed, replicas not changed\n");
    assert_eq!(stdout, released + "nothing is held down\n");
    assert_eq!(seed.replicas(OTHER, KCM), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_waits_until_the_coordinator_has_stopped() {
    let (seed, probe, coordinator) = one_shoot(2, true).await;
    coordinator.lose(&probe, SHOOT).await;
    // Without anybody to stop the coordinator it gives up, and has written nothing.
    let (result, _) = Run::start(&seed, "release", &["--release-timeout=3s"])
        .end()
        .await;
    let error = format!("{:#}", result.unwrap_err());
    assert!(error.contains("scale their Deployment to 0"), "{error}");
    let by_release = || {
        let audit = seed.api.audit().into_iter();
        audit
            .filter(|entry| entry.user == "release" && entry.is_write())
            .count()
    };
    assert_eq!(by_release(), 0);
    assert_eq!(seed.all(SHOOT), [0, 0, 0]);
    let run = Run::start(&seed, "release", &[]);
    coordinator.stop().await;
    let (result, _) = run.end().await;
    result.unwrap();
    assert_eq!(seed.all(SHOOT), [2, 1, 1]);
    assert!(by_release() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_coordinator_is_stopped_where_its_deployment_is_named() {
    const DEPLOYMENT: &str = "dependency-watchdog-scaling-coordinator";
    let seed = Seed::new().await;
    seed.deployment("garden", DEPLOYMENT, 2);
    let (result, stdout) = Run::start(
        &seed,
        "coordinator",
        &[&format!("--stop-deployment=garden/{DEPLOYMENT}")],
    )
    .end()
    .await;
    result.unwrap();
    assert_eq!(stdout, "nothing is held down\n");
    assert_eq!(seed.replicas("garden", DEPLOYMENT), 0);
    let (result, _) = Run::start(&seed, "coordinator", &["--stop-deployment=garden/other"])
        .end()
        .await;
    result.unwrap();
}

#[test]
fn its_options_belong_together() {
    let parse = |options: &[&str]| {
        let args = ["scaling-coordinator", "--insecure-plaintext", "--config-file=x"];
        Args::try_parse_from(args.iter().chain(options)).is_ok()
    };
    assert!(parse(&["--release-all"]) && parse(&["--release-all", "--stop-deployment=garden/x"]));
    for wrong in [
        &["--stop-deployment=garden/x"][..],
        &["--release-all", "--stop-deployment=x"],
        &["--release-all", "--stop-deployment=garden/"],
        &["--release-timeout=1m"],
        &["--release-all", "--release-timeout=soon"],
    ] {
        assert!(!parse(wrong), "{wrong:?}");
    }
}
