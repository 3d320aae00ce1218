//! A simulated fleet of shoots as a process of its own, for any prober: see `--help` and `watchdog_bench::fleet`.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use watchdog_bench::fleet::listener::FleetListener;
use watchdog_bench::fleet::seeding::{self, Seeding, ShootEndpoint};
use watchdog_bench::fleet::{Fleet, admin};
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::workload_controller::{WorkloadController, WorkloadOptions};

/// From the wish for other replicas to ready ones: pods that are pulled already.
const WORKLOAD_DELAY: Duration = Duration::from_millis(200);

/// Simulates API servers of shoots with their nodes, and puts the shoots on a seed.
///
/// Every shoot has an address of its own in 127.0.0.0/8 and a TLS server name, both in its kubeconfig. The admin
/// endpoint cuts nodes off and reports what was seen: GET /report, /shoots, /scales; POST /lose, /recover, /mark,
/// /outage/begin, /outage/end.
#[derive(Debug, Parser)]
struct Args {
    /// Shoots
    #[arg(long, default_value_t = 100)]
    shoots: usize,
    /// Nodes of each shoot
    #[arg(long, default_value_t = 20)]
    nodes: usize,
    /// Port of all shoots; 0 picks a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Name or address under which the seed's programs reach this machine. Without it every shoot has a loopback
    /// address, and callers from elsewhere are not served
    #[arg(long)]
    host: Option<String>,
    /// Address of the admin endpoint; it knows no credentials
    #[arg(long, default_value = "127.0.0.1:0")]
    admin_addr: SocketAddr,
    /// Kubeconfig of the seed on which the shoots are put; without it, only the shoots are simulated
    #[arg(long)]
    seed_kubeconfig: Option<PathBuf>,
    /// Put a Machine for every node on the seed: without them no node counts, so no loss is found
    #[arg(long, requires = "seed_kubeconfig")]
    machines: bool,
    /// Put kube-controller-manager, machine-controller-manager and cluster-autoscaler on the seed, play their
    /// controller, and note when they are scaled
    #[arg(long, requires = "seed_kubeconfig")]
    dependants: bool,
    /// Writes the kubeconfig of shoot 0 here
    #[arg(long)]
    write_kubeconfig: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let scratch = Scratch::new("fleet")?;
    let fleet = Arc::new(Fleet::new(args.shoots, args.nodes));
    let listener = FleetListener::bind(&scratch, args.port)?;
    let reached = ShootEndpoint {
        host: args.host.clone(),
        port: listener.port,
        ca_pem: listener.ca_pem.clone(),
    };
    tokio::spawn(listener.serve(fleet.clone(), args.host.is_none()));
    let work = tokio::spawn(start(args, fleet, reached));
    tokio::select! {
        done = work => {
            done??;
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

async fn start(args: Args, fleet: Arc<Fleet>, reached: ShootEndpoint) -> anyhow::Result<()> {
    if let Some(file) = &args.write_kubeconfig {
        std::fs::write(file, reached.kubeconfig(0, &fleet.token)?)?;
    }
    let mut workloads = None;
    if let Some(file) = &args.seed_kubeconfig {
        let client = seeding::client(file).await?;
        let what = Seeding {
            machines: args.machines,
            dependants: args.dependants,
        };
        if what.dependants {
            let options = WorkloadOptions::new(WORKLOAD_DELAY);
            workloads = Some(Arc::new(WorkloadController::start(&client, options)));
        }
        seeding::seed(&fleet, &client, &reached, what)
            .await
            .context("put the shoots on the seed")?;
    }
    let admin = admin::serve(args.admin_addr, fleet.clone(), workloads).await?;
    let mut out = std::io::stdout().lock();
    // One line of JSON, the last thing to appear: a reader that waits for it finds everything in place.
    let ready = serde_json::json!({
        "message": "fleet ready", "admin": admin.to_string(), "port": reached.port, "shoots": args.shoots,
        "nodes": args.nodes,
    });
    writeln!(out, "{ready}")?;
    Ok(())
}
