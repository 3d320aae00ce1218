//! The command line of the binary.

use std::{
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use clap::Parser;
use jiff::SignedDuration;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    control::Control,
    sandbox::{Sandbox, SandboxConfig},
    server::ApiOptions,
    sim::{SimTiming, SimulatedShootSpec},
};

/// The user of the kubeconfig that the binary writes: may do everything.
const ADMIN: &str = "sandbox-admin";

/// An in-memory Kubernetes API that plays a Gardener seed, with simulated shoots behind it.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Args {
    /// Number of shoots to begin with, called shoot-0, shoot-1, ...
    #[arg(long, default_value_t = 3)]
    pub shoots: usize,
    /// Nodes per shoot
    #[arg(long, default_value_t = 5)]
    pub nodes: usize,
    /// Zones that the nodes of a shoot are spread over
    #[arg(long, default_value_t = 3)]
    pub zones: usize,
    /// Folder for seed.kubeconfig and addresses.json; made if it is missing
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Port of the seed's API server on loopback; 0 picks a free one
    #[arg(long, default_value_t = 0)]
    pub seed_port: u16,
    /// Loopback address of the control endpoint; port 0 picks a free one
    #[arg(long, default_value = "127.0.0.1:0", value_parser = loopback)]
    pub control_addr: SocketAddr,
    /// Serve Endpoints only, no discovery.k8s.io
    #[arg(long)]
    pub no_endpoint_slices: bool,
    /// How many times faster than real Kubernetes everything goes
    #[arg(long, default_value_t = 1.0)]
    pub time_scale: f64,
    /// Between two renewals of a node's Lease
    #[arg(long, value_parser = duration)]
    pub renew_interval: Option<Duration>,
    /// Without a renewal for this long a node is Unknown
    #[arg(long, value_parser = duration)]
    pub grace_period: Option<Duration>,
    /// Between two looks of the controllers at nodes and machines
    #[arg(long, value_parser = duration)]
    pub monitor_period: Option<Duration>,
    /// A machine whose node is Unknown for this long is replaced
    #[arg(long, value_parser = duration)]
    pub machine_health_timeout: Option<Duration>,
    /// How long a pod takes to become ready
    #[arg(long, value_parser = duration)]
    pub ready_delay: Option<Duration>,
    /// First crash back-off of a pod, doubled with every crash
    #[arg(long, value_parser = duration)]
    pub crash_backoff: Option<Duration>,
    /// Longest crash back-off
    #[arg(long, value_parser = duration)]
    pub crash_backoff_max: Option<Duration>,
}

/// A positive duration such as `500ms`, `10s` or `1m30s`.
fn duration(text: &str) -> Result<Duration, String> {
    let duration: SignedDuration = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    let duration = Duration::try_from(duration).map_err(|_| "negative duration".to_owned())?;
    if duration.is_zero() {
        Err("must be more than 0".into())
    } else {
        Ok(duration)
    }
}

/// An address that nobody else can reach: the control endpoint knows no credentials.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|error: std::net::AddrParseError| error.to_string())?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("not a loopback address".into())
    }
}

impl Args {
    fn timing(&self) -> SimTiming {
        let scaled = SimTiming::scaled(self.time_scale);
        SimTiming {
            renew_interval: self.renew_interval.unwrap_or(scaled.renew_interval),
            node_monitor_grace_period: self.grace_period.unwrap_or(scaled.node_monitor_grace_period),
            node_monitor_period: self.monitor_period.unwrap_or(scaled.node_monitor_period),
            machine_health_timeout: self
                .machine_health_timeout
                .unwrap_or(scaled.machine_health_timeout),
            ready_delay: self.ready_delay.unwrap_or(scaled.ready_delay),
            crash_backoff: self.crash_backoff.unwrap_or(scaled.crash_backoff),
            crash_backoff_max: self.crash_backoff_max.unwrap_or(scaled.crash_backoff_max),
            ..scaled
        }
    }

    fn config(&self) -> SandboxConfig {
        let default = SandboxConfig::default();
        let shoots = (0..self.shoots)
            .map(|index| SimulatedShootSpec::new(&format!("shoot-{index}"), self.nodes).zones(self.zones));
        SandboxConfig {
            seed: ApiOptions {
                port: self.seed_port,
                endpoint_slices: !self.no_endpoint_slices,
                ..default.seed
            },
            timing: self.timing(),
            shoots: shoots.collect(),
        }
    }
}

/// Runs a sandbox until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start or write its files.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let sandbox = Arc::new(
        Sandbox::start(args.config())
            .await
            .context("starting the sandbox")?,
    );
    let control = Control::start(sandbox.clone(), args.control_addr)
        .await
        .context("starting the control endpoint")?;

    std::fs::create_dir_all(&args.dir).with_context(|| format!("making {}", args.dir.display()))?;
    let kubeconfig = args.dir.join("seed.kubeconfig");
    write_private(&kubeconfig, &sandbox.seed().kubeconfig(ADMIN))?;
    let control_url = format!("http://{}", control.address());
    let shoots: serde_json::Map<_, _> = sandbox
        .shoots()
        .iter()
        .map(|shoot| (shoot.namespace().to_owned(), shoot.api().url().into()))
        .collect();
    let addresses = json!({ "seed": sandbox.seed().url(), "control": control_url, "shoots": shoots });
    // The file appears last and whole: a reader that waits for it finds everything in place.
    let partial = args.dir.join("addresses.json.partial");
    std::fs::write(&partial, format!("{addresses:#}\n"))?;
    std::fs::rename(&partial, args.dir.join("addresses.json"))?;

    let mut out = std::io::stdout().lock();
    writeln!(out, "seed        {}", sandbox.seed().url())?;
    writeln!(out, "kubeconfig  {}", kubeconfig.display())?;
    writeln!(out, "control     {control_url}")?;
    writeln!(out, "shoots      {}", shoots.len())?;
    drop(out);

    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    Ok(())
}

/// Writes a file that only its owner may read.
fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("writing {}", path.display()))?;
    file.write_all(text.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timing_from_flags() {
        let args = Args::parse_from([
            "watchdog-sandbox",
            "--time-scale",
            "10",
            "--grace-period",
            "1500ms",
        ]);
        assert_eq!(
            args.timing().node_monitor_grace_period,
            Duration::from_millis(1500)
        );
        assert_eq!(args.timing().renew_interval, Duration::from_secs(1));
        assert!(Args::try_parse_from(["watchdog-sandbox", "--grace-period", "-1s"]).is_err());
        assert!(Args::try_parse_from(["watchdog-sandbox", "--grace-period", "0s"]).is_err());
    }
}
