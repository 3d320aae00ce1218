//! The fleet and a seed alone, for any prober.

use std::io::Write;

use tokio::signal::unix::{SignalKind, signal};

use super::INTERVAL;
use crate::rig::{Rig, RigOptions};

/// The processes to start.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct ServeOptions {
    /// Shoots
    #[arg(long, default_value_t = 100)]
    pub shoots: usize,
    /// Nodes of each shoot
    #[arg(long, default_value_t = 20)]
    pub nodes: usize,
    /// A real kube-apiserver as the seed (tests/tools/real-kubernetes brings it), not the sandbox
    #[arg(long)]
    pub real: bool,
}

/// Starts them, says how to use them, and waits for SIGINT or SIGTERM.
///
/// # Errors
/// When something does not come up.
pub async fn run(options: ServeOptions) -> anyhow::Result<()> {
    let rig = Rig::start(RigOptions {
        dependants: true,
        real: options.real,
        ..RigOptions::new(options.shoots, options.nodes, INTERVAL)
    })
    .await?;
    let kubeconfig = rig.scratch.join("fleet-seed.kubeconfig");
    let config = rig.setup.prober_file();
    let (kubeconfig, config, admin) = (kubeconfig.display(), config.display(), &rig.admin.address);
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{} shoots of {} nodes with machines and dependants are on the seed.

  seed kubeconfig   {kubeconfig}
  configuration     {config}
  fleet             http://{admin}/report

Any prober can be pointed at them; it finds the Clusters and kubeconfigs on the seed:

  lease-probe --kubeconfig {kubeconfig} --config-file {config} \\
    --insecure-plaintext --allow-local-addresses --grpc-addr 127.0.0.1:9645 --admin-addr 127.0.0.1:9643
  scaling-coordinator --kubeconfig {kubeconfig} --config-file {config} \\
    --insecure-plaintext --grpc-addr 127.0.0.1:9646 --admin-addr 127.0.0.1:9644 --lease-probe 127.0.0.1:9645

What it did stands at (times in microseconds since 1970, a shoot's renewals in `renewed`):

  curl -s http://{admin}/report     connections, requests, bytes
  curl -s http://{admin}/shoots     first and last list, last renewals of every shoot
  curl -s http://{admin}/scales     when dependants were scaled and ready

A loss and a recovery:

  curl -s -X POST 'http://{admin}/lose?shoots=10'
  curl -s -X POST http://{admin}/recover

Ctrl-C ends all of it.",
        options.shoots, options.nodes
    )?;
    drop(out);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
