//! Clocks that are off: those of nodes, in either direction, and that of the host of lease-probe, set while it runs. No
//! false loss, no hidden loss, and a metric names the shoots.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use jiff::SignedDuration;
use watchdog_proto::probe::v1::Outcome;
use watchdog_sandbox::{Cut, SimulatedShoot, SimulatedShootSpec};
use watchdog_test_support::fixtures;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::tools;
use watchdog_test_support::wait::{BOUND, holds, until, until_true};
use watchdog_test_support::watchdog::Service;

/// Lists as often as the kubelets of the sandbox renew.
async fn start(name: &str, shoots: &[&str]) -> SandboxFixture {
    let specs = shoots
        .iter()
        .map(|name| SimulatedShootSpec::new(name, 5))
        .collect();
    let prober = fixtures::prober("probeInterval: 2s\ninitialDelay: 1s\nprobeTimeout: 3s", "500ms");
    SandboxFixture::start_with(name, specs, &prober, &fixtures::weeder("1m"))
        .await
        .unwrap()
}

async fn healthy(fixture: &SandboxFixture, lease_probe: &Service) {
    for shoot in fixture.sandbox.shoots() {
        fixture
            .wait_outcome(lease_probe, shoot.namespace(), Outcome::Healthy, BOUND)
            .await
            .unwrap();
    }
}

fn skew_series(shoot: &SimulatedShoot) -> String {
    format!(
        "watchdog_shoot_clock_skew_seconds{{shoot=\"{}\"}}",
        shoot.namespace()
    )
}

/// Waits until a metric is in that range.
async fn metric_within(lease_probe: &Service, series: &str, least: f64, most: f64) {
    until(&format!("{series} is from {least} to {most}"), BOUND, || async {
        let found = lease_probe.metric(series).await?;
        anyhow::ensure!(
            found.is_some_and(|v| (least..=most).contains(&v)),
            "it is {found:?}"
        );
        Ok(Some(()))
    })
    .await
    .unwrap();
}

/// Clocks of nodes in seconds; the largest is reported within 5 s, because a renew interval of the sandbox is 2 s.
const FLEETS: [(&str, [i64; 5], f64); 4] = [
    ("ahead", [120; 5], 120.0),
    ("behind", [-120; 5], -120.0),
    ("mixed", [-110, -40, 0, 40, 60], -110.0),
    ("few", [0, 0, 0, 0, 90], 90.0),
];

#[tokio::test(flavor = "multi_thread")]
async fn clocks_of_nodes_make_no_loss_and_hide_none() {
    let fixture = start("skew", &FLEETS.map(|(name, _, _)| name)).await;
    for (name, skews, _) in FLEETS {
        let shoot = fixture.shoot(name).unwrap();
        let before: Vec<String> = shoot.nodes().into_iter().map(|node| node.renew_time).collect();
        for (node, skew) in shoot.nodes().iter().zip(skews) {
            shoot
                .set_clock_skew(&node.name, SignedDuration::from_secs(skew))
                .unwrap();
        }
        // As they were before anybody looked.
        until_true("every node has renewed by its own clock", BOUND, || async {
            let nodes = shoot.nodes();
            Ok(nodes
                .iter()
                .zip(&before)
                .all(|(node, before)| node.renew_time != *before))
        })
        .await
        .unwrap();
    }
    let lease_probe = fixture.lease_probe().await.unwrap();
    let coordinator = fixture.coordinator().await.unwrap();
    coordinator.wait_ready().await.unwrap();
    healthy(&fixture, &lease_probe).await;
    for (name, _, largest) in FLEETS {
        let shoot = fixture.shoot(name).unwrap();
        metric_within(&lease_probe, &skew_series(&shoot), largest - 5.0, largest + 5.0).await;
        let verdict = fixture.verdict(&lease_probe, shoot.namespace()).await.unwrap();
        let reported = verdict.evidence.unwrap().largest_skew.unwrap();
        assert!(
            (reported.seconds - largest as i64).abs() <= 5,
            "{name}: {reported:?}"
        );
        let direction = if largest < 0.0 { "behind" } else { "ahead" };
        assert!(
            verdict.message.contains("The clock of a node runs at least")
                && verdict.message.contains(direction),
            "{name}: {}",
            verdict.message
        );
    }
    // Longer than the expiry age.
    let shoots = fixture.sandbox.shoots();
    holds("nothing is written", Duration::from_secs(8), || async {
        Ok(shoots.iter().all(|shoot| fixture.writes(shoot).is_empty()))
    })
    .await
    .unwrap();

    for shoot in &shoots {
        shoot.cut(Cut::All);
    }
    for shoot in &shoots {
        fixture
            .wait_outcome(&lease_probe, shoot.namespace(), Outcome::LeasesExpired, BOUND)
            .await
            .unwrap();
        fixture.wait_replicas(shoot, 0, BOUND).await.unwrap();
    }
    for shoot in &shoots {
        shoot.heal();
    }
    for shoot in &shoots {
        fixture.wait_replicas(shoot, 1, BOUND).await.unwrap();
    }
}

/// The environment that makes a process see the time of day in a file, relative to the true one; its monotonic clock
/// stays.
fn clock_file(path: &Path) -> [(&'static str, OsString); 4] {
    [
        ("LD_PRELOAD", tools::path(tools::LIBFAKETIME).unwrap().into()),
        ("FAKETIME_TIMESTAMP_FILE", path.into()),
        ("FAKETIME_NO_CACHE", "1".into()),
        ("DONT_FAKE_MONOTONIC", "1".into()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_sets_the_clock_of_the_host_and_nothing_happens() {
    let fixture = start("clock-set", &["one", "two", "three"]).await;
    let clock = fixture.scratch.write("clock", "+0").unwrap();
    let lease_probe = fixture
        .setup
        .lease_probe_with("lease-probe-0", &fixture.kubeconfig(), &clock_file(&clock))
        .await
        .unwrap();
    lease_probe.wait_ready().await.unwrap();
    let coordinator = fixture.coordinator().await.unwrap();
    coordinator.wait_ready().await.unwrap();
    healthy(&fixture, &lease_probe).await;
    let shoots = fixture.sandbox.shoots();
    for offset in ["+60", "-60", "+0"] {
        std::fs::write(&clock, offset).unwrap();
        // Longer than the expiry age, and than two probes.
        holds("all shoots stay healthy", Duration::from_secs(7), || async {
            for shoot in &shoots {
                let verdict = fixture.verdict(&lease_probe, shoot.namespace()).await?;
                let skew = lease_probe.metric(&skew_series(shoot)).await?;
                if verdict.outcome() != Outcome::Healthy
                    || skew.is_some()
                    || !fixture.writes(shoot).is_empty()
                {
                    anyhow::bail!("{offset}: {skew:?}, {}", verdict.message);
                }
            }
            Ok(true)
        })
        .await
        .unwrap();
    }
    // And a loss is still seen.
    shoots[0].cut(Cut::All);
    fixture.wait_replicas(&shoots[0], 0, BOUND).await.unwrap();
}
