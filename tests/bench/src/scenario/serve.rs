//! The fleet and a seed alone, for any prober. Plain HTTP on loopback, which answers with JSON, steers the fleet:
//!
//! | request | what it does |
//! | --- | --- |
//! | `GET /report` | what the fleet saw: connections, requests by kind, bytes |
//! | `GET /shoots` | per shoot: last renewals of its nodes |
//! | `GET /scales` | every change of a dependant's replicas, with the time |
//! | `POST /lose?shoots=100` | cuts the nodes of the first shoots off, or all; answers with the instant |
//! | `POST /recover` | ends it; answers with the instant |

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use watchdog_test_support::workload_controller::ReplicasChange;

use super::INTERVAL;
use crate::fleet::{FleetReport, ShootReport};
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
pub async fn run(options: ServeOptions) -> anyhow::Result<()> {
    let rig = Arc::new(
        Rig::start(RigOptions {
            dependants: true,
            real: options.real,
            ..RigOptions::new(options.shoots, options.nodes, INTERVAL)
        })
        .await?,
    );
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    explain(&rig, listener.local_addr()?)?;
    let routes = Router::new()
        .route("/report", get(report))
        .route("/shoots", get(shoots))
        .route("/scales", get(scales))
        .route("/lose", post(lose))
        .route("/recover", post(recover))
        .with_state(rig);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        served = axum::serve(listener, routes).into_future() => served?,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

async fn report(State(rig): State<Arc<Rig>>) -> Json<FleetReport> {
    Json(rig.fleet.report())
}

async fn shoots(State(rig): State<Arc<Rig>>) -> Json<Vec<ShootReport>> {
    Json(rig.fleet.shoot_reports())
}

async fn scales(State(rig): State<Arc<Rig>>) -> Json<Vec<ReplicasChange>> {
    Json(rig.scales())
}

#[derive(Debug, Deserialize)]
struct LossQuery {
    shoots: Option<usize>,
}

async fn lose(State(rig): State<Arc<Rig>>, Query(loss): Query<LossQuery>) -> Json<i64> {
    Json(rig.fleet.lose(loss.shoots.unwrap_or(usize::MAX), Duration::ZERO))
}

async fn recover(State(rig): State<Arc<Rig>>) -> Json<i64> {
    Json(rig.fleet.recover(0, Duration::ZERO))
}

fn explain(rig: &Rig, admin: SocketAddr) -> anyhow::Result<()> {
    let kubeconfig = rig.scratch.write("fleet-seed.kubeconfig", &rig.kubeconfig)?;
    let config = rig.setup.prober_file();
    let (kubeconfig, config) = (kubeconfig.display(), config.display());
    writeln!(
        std::io::stdout().lock(),
        "{} shoots of {} nodes with machines and dependants are on the seed.

  seed kubeconfig   {kubeconfig}
  configuration     {config}
  fleet             http://{admin}

Point any prober at them: it finds the Clusters and kubeconfigs on the seed. GET /report, /shoots and /scales at the
fleet say what it did; POST /lose?shoots=10 cuts nodes off, and POST /recover connects them again. Ctrl-C ends all.",
        rig.options.shoots,
        rig.options.nodes
    )?;
    Ok(())
}
