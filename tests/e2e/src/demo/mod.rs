//! The demo: a seed with shoots in one process, the three services beside it, and incidents that are printed as they
//! happen.

mod config;
mod incidents;
mod output;
mod printer;

use std::time::Duration;

use anyhow::Context;
use watchdog_sandbox::{Sandbox, SandboxConfig, SimTiming, SimulatedShootSpec};

use incidents::Incidents;
use output::TimedOutput;
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::watchdog::{Service, Setup};

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
        machine_step: Duration::from_secs(2),
        ready_delay: Duration::from_secs(1),
        stop_delay: Duration::from_millis(500),
        crash_after: Duration::from_millis(500),
        // kubelet's own, so that the time saved is the real one.
        crash_backoff: Duration::from_secs(10),
        crash_backoff_max: Duration::from_secs(300),
        ..SimTiming::scaled(5.0)
    }
}

async fn sandbox(shoots: &[&str]) -> anyhow::Result<Sandbox> {
    let config = SandboxConfig {
        timing: timing(),
        shoots: shoots
            .iter()
            .map(|name| SimulatedShootSpec::new(name, NODES))
            .collect(),
        ..SandboxConfig::default()
    };
    Sandbox::start(config).await.context("start the sandbox")
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
    let scratch = Scratch::new("demo")?;
    let protected = sandbox(&SHOOTS).await?;
    // The same incident on a seed without the watchdog.
    let unprotected = sandbox(&SHOOTS[..1]).await?;
    let setup = Setup::new(&scratch, config::PROBER, config::WEEDER)?;
    output.line(format!(
        "a seed with {} shoots of {NODES} nodes runs in this process",
        SHOOTS.len()
    ));
    let kubeconfig = protected.seed().kubeconfig("watchdog");
    let (lease_probe, coordinator, weeder) = tokio::try_join!(
        setup.lease_probe("lease-probe-0", &kubeconfig),
        setup.coordinator("scaling-coordinator-0", &kubeconfig, &[]),
        setup.weeder("weeder-0", &kubeconfig),
    )?;
    let watchdog = Watchdog {
        lease_probe,
        coordinator,
        weeder,
    };
    for service in [&watchdog.lease_probe, &watchdog.coordinator, &watchdog.weeder] {
        service.wait_ready().await?;
        output.line(format!(
            "{} is ready, gRPC over mutual TLS on {}",
            service.process.name(),
            service.grpc
        ));
    }
    let incidents = Incidents::new(&output, &protected, &unprotected, &setup, &watchdog)?;
    let good = match tokio::time::timeout(LIMIT, incidents.play()).await {
        Ok(good) => good?,
        Err(_) => anyhow::bail!("it took longer than {} s", LIMIT.as_secs()),
    };
    if keep {
        let files = setup.client_files();
        output.plain(&config::look_around(
            &watchdog.lease_probe,
            &watchdog.coordinator,
            &watchdog.weeder,
            files,
        )?);
        tokio::signal::ctrl_c().await?;
    }
    Ok(good)
}
