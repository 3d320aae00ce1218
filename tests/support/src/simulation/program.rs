//! The simulation as a program of its own, the sandbox.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::{Control, Sandbox, SandboxConfig, SimTiming, SimulatedShootSpec};

/// The user of the kubeconfig that the program writes: may do everything.
const ADMIN: &str = "sandbox-admin";

/// An in-memory Kubernetes API that plays a Gardener seed, with simulated shoots behind it.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Args {
    /// Number of shoots, called shoot-0, shoot-1, ...
    #[arg(long, default_value_t = 3)]
    shoots: usize,
    /// Nodes per shoot
    #[arg(long, default_value_t = 5)]
    nodes: usize,
    /// Folder for seed.kubeconfig and addresses.json; made if it is missing
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// How many times faster than real Kubernetes everything goes
    #[arg(long, default_value_t = 1.0)]
    time_scale: f64,
}

impl Args {
    fn config(&self) -> SandboxConfig {
        let shoot = |n| SimulatedShootSpec::new(&format!("shoot-{n}"), self.nodes);
        SandboxConfig {
            timing: SimTiming::scaled(self.time_scale),
            shoots: (0..self.shoots).map(shoot).collect(),
        }
    }
}

/// Runs a sandbox until SIGTERM or SIGINT.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    anyhow::ensure!(args.time_scale > 0.0, "--time-scale must be above 0");
    let sandbox = Sandbox::start(args.config()).await.context("start the sandbox")?;
    let sandbox = Arc::new(sandbox);
    let control = Control::start(sandbox.clone()).await.context("start its page")?;

    std::fs::create_dir_all(&args.dir).with_context(|| format!("make {}", args.dir.display()))?;
    write_private(
        &args.dir.join("seed.kubeconfig"),
        &sandbox.seed().kubeconfig(ADMIN),
    )?;
    let shoots: serde_json::Map<_, _> = sandbox
        .shoots()
        .iter()
        .map(|shoot| (shoot.namespace().to_owned(), shoot.api().url().into()))
        .collect();
    let addresses = json!({ "seed": sandbox.seed().url(), "control": control.url(), "shoots": shoots });
    // The file appears last and whole: a reader that waits for it finds everything in place.
    let partial = args.dir.join("addresses.json.partial");
    std::fs::write(&partial, format!("{addresses:#}\n"))?;
    std::fs::rename(&partial, args.dir.join("addresses.json"))?;

    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Writes a file that only its owner may read.
fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(path);
    let mut file = file.with_context(|| format!("write {}", path.display()))?;
    Ok(file.write_all(text.as_bytes())?)
}
