//! The demo: a seed with shoots in one process, the three services beside it, and incidents that are printed as they
//! happen.

mod incidents;
mod look_around;
mod output;
mod printer;

use std::time::Duration;

use anyhow::Context;
use watchdog_test_support::simulation::Control;
use watchdog_test_support::simulation::{Sandbox, SandboxConfig, SimTiming, SimulatedShootSpec};

use incidents::Incidents;
use output::TimedOutput;
use watchdog_test_support::fixtures;
use watchdog_test_support::page_process::PageProcess;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::watchdog::Service;

/// The whole demo; a newcomer's patience.
const LIMIT: Duration = Duration::from_secs(90);

/// Shoots on the protected seed; the first is the one that is cut off.
const SHOOTS: [&str; 4] = ["alpha", "bravo", "charlie", "delta"];

/// Nodes per shoot.
const NODES: usize = 6;

/// Time runs five times faster than in a real shoot: the grace period is 8 s instead of 40 s, machines are replaced
/// after 8 s instead of 10 min.
fn timing() -> SimTiming {
    SimTiming {
        machine_health_timeout: Duration::from_secs(8),
        ready_delay: Duration::from_secs(1),
        stop_delay: Duration::from_millis(500),
        crash_after: Duration::from_millis(500),
        // kubelet's own, so that the time saved is the real one.
        crash_backoff: Duration::from_secs(10),
        crash_backoff_max: Duration::from_secs(300),
        ..SimTiming::scaled(5.0)
    }
}

fn specs(shoots: &[&str]) -> Vec<SimulatedShootSpec> {
    let spec = |name: &&str| SimulatedShootSpec::new(name, NODES);
    shoots.iter().map(spec).collect()
}

/// The three services.
struct Watchdog {
    lease_probe: Service,
    coordinator: Service,
    weeder: Service,
}

/// Runs the demo. With `keep` it leaves everything running afterwards, until it is interrupted. Says whether all was
/// as it should be.
///
/// # Errors
/// When something could not be started or did not happen in time.
pub async fn run(keep: bool) -> anyhow::Result<bool> {
    let output = TimedOutput::start();
    // The configuration that Gardener deploys, except the times.
    let prober = fixtures::prober("probeInterval: 6s\ninitialDelay: 1s", "2s");
    let weeder = fixtures::weeder("30s");
    let fixture = SandboxFixture::start("demo", timing(), specs(&SHOOTS), &prober, &weeder).await?;
    // The same incident on a seed without the watchdog.
    let unprotected = Sandbox::start(SandboxConfig {
        timing: timing(),
        shoots: specs(&SHOOTS[..1]),
    });
    let unprotected = unprotected.await.context("start the sandbox")?;
    output.line(format!(
        "a seed with {} shoots of {NODES} nodes runs in this process",
        SHOOTS.len()
    ));
    let [lease_probe, coordinator, weeder] = fixture.start_all().await?;
    let watchdog = Watchdog {
        lease_probe,
        coordinator,
        weeder,
    };
    for service in [&watchdog.lease_probe, &watchdog.coordinator, &watchdog.weeder] {
        output.line(format!(
            "{} is ready, gRPC over mutual TLS on {}",
            service.process.name(),
            service.grpc
        ));
    }
    let page = PageProcess::start(
        &fixture.setup,
        &fixture.scratch,
        &watchdog.lease_probe,
        &watchdog.coordinator,
    );
    let page = page.await?;
    output.line(format!("watch it on the page of watchdogctl ui: {}", page.url));
    let incidents = Incidents::new(&output, &fixture, &unprotected, &watchdog)?;
    let good = match tokio::time::timeout(LIMIT, incidents.play()).await {
        Ok(good) => good?,
        Err(_) => anyhow::bail!("it took longer than {} s", LIMIT.as_secs()),
    };
    if keep {
        let control = Control::start(fixture.sandbox.clone()).await?;
        let files = fixture.setup.client_files();
        output.plain(&look_around::look_around(
            &watchdog.lease_probe,
            &watchdog.coordinator,
            &watchdog.weeder,
            files,
            &page.url,
            &control.url(),
        )?);
        tokio::signal::ctrl_c().await?;
    }
    Ok(good)
}
