//! The real coordinator process when something around it is not as it should be: a source that has gone silent, and
//! a second coordinator that acts on the same shoots by mistake.

use std::time::Duration;

use watchdog_proto::scaling::v1::Direction;
use watchdog_sandbox::SimulatedShootSpec;
use watchdog_sandbox::resource::keys;
use watchdog_test_support::coordinator::{Coordinator, FakeProbe, Outcome};
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::real::create_namespace;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{self, BOUND};

const COUNTS: [(&str, u32); 3] = [(KCM, 2), (MCM, 3), (CA, 1)];

async fn fixture(name: &str) -> anyhow::Result<(SandboxFixture, FakeProbe, String)> {
    let prober = fixtures::prober("probeInterval: 5s", "100ms");
    let shoots = vec![SimulatedShootSpec::new("one", 1)];
    let fixture = SandboxFixture::start_with(name, shoots, &prober, &fixtures::weeder("1m")).await?;
    let shoot = fixture.shoot("one")?;
    for (name, replicas) in COUNTS {
        shoot.scale(name, replicas)?;
    }
    let namespace = shoot.namespace().to_owned();
    let probe = FakeProbe::start().await?;
    probe.say([namespace.as_str()], Outcome::Healthy);
    Ok((fixture, probe, namespace))
}

async fn start(fixture: &SandboxFixture, probe: &FakeProbe, namespace: &str) -> anyhow::Result<Coordinator> {
    let (config, kubeconfig) = (fixture.setup.prober_file(), fixture.kubeconfig());
    Coordinator::start_in(namespace, &fixture.scratch, config, &kubeconfig, probe).await
}

fn replicas(fixture: &SandboxFixture, shoot: &str) -> Vec<(i64, bool)> {
    let store = fixture.sandbox.seed().store();
    let count = |(name, _): &(&str, u32)| {
        let object = store.find(&keys::DEPLOYMENTS, shoot, name).unwrap();
        let held = object.annotation("dependency-watchdog.gardener.cloud/meltdown-protection-active");
        (object.number("/spec/replicas"), held.is_some())
    };
    COUNTS.iter().map(count).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_to_its_source_holds() {
    let (fixture, probe, shoot) = fixture("half-open").await.unwrap();
    let coordinator = start(&fixture, &probe, "garden").await.unwrap();
    coordinator
        .until_settled(&shoot, Direction::Up, BOUND)
        .await
        .unwrap();
    probe.set_silent(true);
    // The verdict itself would be valid for minutes; what counts is that nobody can contradict it any more.
    let held = wait::until("it holds", BOUND, || async {
        let state = coordinator.get(&shoot).await?;
        Ok((state.direction() == Direction::Hold).then_some(state))
    })
    .await
    .unwrap();
    assert!(
        held.reason.contains("No stream from lease-probe"),
        "{}",
        held.reason
    );
    probe.say([shoot.as_str()], Outcome::LeasesExpired);
    wait::holds("nothing is written", Duration::from_secs(1), || async {
        Ok(replicas(&fixture, &shoot) == [(2, false), (3, false), (1, false)])
    })
    .await
    .unwrap();
    probe.set_silent(false);
    coordinator
        .until_settled(&shoot, Direction::Down, BOUND)
        .await
        .unwrap();
    assert_eq!(replicas(&fixture, &shoot), [(0, true), (0, true), (0, true)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_know_nothing_of_each_other_lose_and_double_nothing() {
    let (fixture, probe, shoot) = fixture("two").await.unwrap();
    create_namespace(&fixture.seed, "garden-by-mistake")
        .await
        .unwrap();
    let one = start(&fixture, &probe, "garden").await.unwrap();
    let two = start(&fixture, &probe, "garden-by-mistake").await.unwrap();
    for _ in 0..5 {
        for (outcome, direction) in [
            (Outcome::LeasesExpired, Direction::Down),
            (Outcome::Healthy, Direction::Up),
        ] {
            probe.say([shoot.as_str()], outcome);
            for coordinator in [&one, &two] {
                coordinator.until_settled(&shoot, direction, BOUND).await.unwrap();
            }
            let expected = match direction {
                Direction::Down => [(0, true), (0, true), (0, true)],
                _ => [(2, false), (3, false), (1, false)],
            };
            assert_eq!(replicas(&fixture, &shoot), expected);
        }
    }
    let audit = fixture.sandbox.seed().audit();
    let writes = audit
        .iter()
        .filter(|entry| entry.user == "watchdog" && entry.path.contains("/deployments/"));
    let (done, refused): (Vec<_>, Vec<_>) = writes
        .filter(|entry| entry.is_write())
        .partition(|entry| entry.code < 300);
    eprintln!("{} writes, {} conflicts", done.len(), refused.len());
    assert!(refused.iter().all(|entry| entry.code == 409));
    assert!(!refused.is_empty(), "they never met");
    assert_eq!(
        done.len(),
        5 * (3 + 6),
        "one write on each of three down and two up, five times: {done:#?}"
    );
}
