//! The life of the process: start, run until a signal or a failure, drain, exit code.

use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::CommonArgs;
use crate::failure::chain;
use crate::readiness::Readiness;
use crate::tasks::Tasks;
use crate::telemetry::{self, LogGuard, LogLevel};
use crate::{config_file, open_files, refusal_log, rpc_metrics, self_check, tls};

/// A drain takes at most this time. Below the 30 s that a Pod has by default.
const DRAIN_GRACE: Duration = Duration::from_secs(20);

/// Exit code for a wrong command line or configuration file.
pub const EXIT_USAGE: u8 = 2;

/// The handles that the process gives to the service that runs in it.
#[derive(Debug, Clone, Default)]
pub struct Process {
    /// Renders /metrics, where this process has an exporter.
    pub metrics: Option<PrometheusHandle>,
    /// Set by /log-level.
    pub log_level: LogLevel,
}

/// A service whose sockets are bound and whose tasks run.
#[derive(Debug)]
pub struct Bound {
    /// Where the gRPC API listens.
    pub grpc_addr: SocketAddr,
    /// Where the admin endpoint listens.
    pub admin_addr: SocketAddr,
    /// Its tasks; draining them is stopping the service.
    pub tasks: Tasks,
    /// Its readiness.
    pub readiness: Readiness,
}

impl Bound {
    /// Runs until SIGTERM, SIGINT or the end of a critical task, then drains. A second signal ends at once.
    async fn run(self) -> anyhow::Result<()> {
        let mut term = signal(SignalKind::terminate())?;
        let mut int = signal(SignalKind::interrupt())?;
        let failure = tokio::select! {
            () = received(&mut term, &mut int) => None,
            error = self.tasks.first_end() => Some(error),
        };
        let _draining = self.readiness.block("draining", "the process is stopping");
        if let Some(error) = &failure {
            tracing::error!(
                error = chain(error.as_ref()),
                "a task failed; the process is draining"
            );
        } else {
            tracing::info!("the process is draining");
        }
        let (failed, in_time) = tokio::select! {
            drained = self.tasks.drain(DRAIN_GRACE) => drained,
            () = received(&mut term, &mut int) => anyhow::bail!("received a second signal while draining"),
        };
        for error in failed {
            tracing::error!(error, "a task failed while draining");
        }
        if !in_time {
            tracing::warn!("tasks were still running 20 s after the drain started; they were aborted");
        }
        match failure {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }
}

async fn received(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

/// Runs a service from its parsed configuration to its exit code: 0 after a clean stop, 1 after a failure.
pub fn run<F>(args: &CommonArgs, build: impl FnOnce(Process) -> F) -> ExitCode
where
    F: Future<Output = anyhow::Result<Bound>>,
{
    run_to_end(args, |process| async { build(process).await?.run().await })
}

/// Runs something that ends by itself to its exit code: 0 after a success, 1 after a failure.
pub fn run_to_end<F>(args: &CommonArgs, job: impl FnOnce(Process) -> F) -> ExitCode
where
    F: Future<Output = anyhow::Result<()>>,
{
    let (process, runtime, _log) = match install(args) {
        Ok(installed) => installed,
        Err(error) => return usage_error(&error),
    };
    let result = runtime.block_on(job(process));
    // Whatever is still running was aborted; do not wait for blocking work.
    runtime.shutdown_background();
    match result {
        Ok(()) => {
            tracing::info!("the process has stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!(
                error = chain(error.as_ref()),
                "the process is exiting because of a failure"
            );
            ExitCode::FAILURE
        }
    }
}

/// Installs what a process has once.
fn install(args: &CommonArgs) -> anyhow::Result<(Process, Runtime, LogGuard)> {
    let (log_level, log) = telemetry::init(args.log_format, &args.log_level).context("--log-level")?;
    let metrics = Some(telemetry::install_exporter()?);
    register_metrics();
    open_files::raise_limit();
    // rustls is built with one provider only, but crates that ask for the default one need it installed.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let process = Process { metrics, log_level };
    Ok((process, runtime.context("cannot start the runtime")?, log))
}

/// Registers the metrics of this crate. Each service registers its own.
fn register_metrics() {
    config_file::CONFIG_VALID.register();
    tls::TLS_VALID.register();
    tls::CERTIFICATE_EXPIRY.register();
    refusal_log::CONNECTIONS_REFUSED.register();
    rpc_metrics::register();
    self_check::STALL_SECONDS.register();
    self_check::LOG_LINES_LOST.register();
    self_check::TASKS.register();
}

/// Prints what is wrong with the command line or the configuration, and gives exit code 2; for a command line that asks
/// for help or the version, prints that and gives 0.
#[must_use]
pub fn usage_error(error: &anyhow::Error) -> ExitCode {
    use std::io::Write as _;
    // Nothing can be done when the output is closed.
    if let Some(usage) = error.downcast_ref::<clap::Error>() {
        let _ = usage.print();
        return ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(EXIT_USAGE));
    }
    let _ = writeln!(std::io::stderr(), "{}", format!("{error:#}").trim_end());
    ExitCode::from(EXIT_USAGE)
}
