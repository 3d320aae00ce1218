//! Steering the fleet from outside: plain HTTP with JSON, on loopback.
//!
//! | request | what it does |
//! | --- | --- |
//! | `GET /report` | what the fleet saw: connections, requests by kind, bytes, its own CPU time and memory |
//! | `GET /shoots` | per shoot: first and last list of its Leases, longest gap, last renewals of its nodes |
//! | `GET /scales` | every change of a dependant's replicas, with the time |
//! | `POST /lose` | `{"shoots": 100, "fraction": 1.0, "lastWithinMillis": 0}`: cuts nodes off, all at this instant |
//! | `POST /recover` | reconnects all nodes |
//! | `POST /mark` | forgets maxima |
//! | `POST /outage/begin` | `{"mode": "hang"}` or `"refuse"`: all API servers fail, and no kubelet can renew |
//! | `POST /outage/end` | `{"lost": 0, "resumeWithinMillis": 7000}`: they answer again; the nodes of the first `lost` shoots stay cut off |

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use watchdog_test_support::workload_controller::{ReplicasChange, WorkloadController};

use super::{Fleet, FleetShoot, OutageMode, Report, ShootReport};

/// The nodes to cut off.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Loss {
    /// The first shoots, this many.
    pub shoots: usize,
    /// This share of the nodes of each, 0 to 1.
    pub fraction: f64,
    /// With 0, renewals just stop. Else every node renews once more, within this many milliseconds: all leases of all
    /// shoots expire that close together, which is the hardest case for a prober.
    pub last_within_millis: u32,
}

impl Default for Loss {
    fn default() -> Self {
        Self {
            shoots: usize::MAX,
            fraction: 1.0,
            last_within_millis: 0,
        }
    }
}

/// How all API servers fail.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutageBegin {
    /// The mode of failure.
    pub mode: OutageMode,
}

/// How the kubelets come back when the API servers do.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OutageEnd {
    /// Number of shoots, from the first on, whose nodes stay cut off.
    pub lost: usize,
    /// The kubelets of the others renew within this number of milliseconds; with 0, each at its next turn.
    pub resume_within_millis: u32,
}

/// The instant at which a request took effect.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct EffectiveAt {
    /// In microseconds since 1970.
    pub at: i64,
}

/// Replicas of a dependant changed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScaleChange {
    /// When, in microseconds since 1970.
    pub at: i64,
    /// The shoot's namespace.
    pub shoot: String,
    /// The Deployment.
    pub name: String,
    /// Replicas that are wanted (`ready` false) or ready (`ready` true) from now on.
    pub replicas: i64,
    /// True if they are ready, false if they are only wanted.
    pub ready: bool,
}

impl From<ReplicasChange> for ScaleChange {
    fn from(change: ReplicasChange) -> Self {
        Self {
            at: change.at.as_microsecond(),
            shoot: change.namespace,
            name: change.name,
            replicas: change.replicas,
            ready: change.is_ready,
        }
    }
}

#[derive(Clone)]
struct FleetControl {
    fleet: Arc<Fleet>,
    workloads: Option<Arc<WorkloadController>>,
}

/// Serves until the process ends; port 0 picks a free one. Returns the address.
///
/// # Errors
/// When the address cannot be bound.
pub async fn serve(
    address: SocketAddr,
    fleet: Arc<Fleet>,
    workloads: Option<Arc<WorkloadController>>,
) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let routes = Router::new()
        .route("/report", get(report))
        .route("/shoots", get(shoots))
        .route("/scales", get(scales))
        .route("/lose", post(lose))
        .route("/recover", post(recover))
        .route("/mark", post(mark))
        .route("/outage/begin", post(begin_outage))
        .route("/outage/end", post(end_outage))
        .with_state(FleetControl { fleet, workloads });
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            eprintln!("the admin endpoint ended: {error}");
        }
    });
    Ok(address)
}

async fn report(State(steered): State<FleetControl>) -> Json<Report> {
    Json(steered.fleet.report())
}

async fn shoots(State(steered): State<FleetControl>) -> Json<Vec<ShootReport>> {
    Json(steered.fleet.shoots().iter().map(FleetShoot::report).collect())
}

async fn scales(State(steered): State<FleetControl>) -> Json<Vec<ScaleChange>> {
    let changes = steered.workloads.map(|workloads| workloads.changes());
    Json(changes.into_iter().flatten().map(ScaleChange::from).collect())
}

async fn lose(State(steered): State<FleetControl>, Json(loss): Json<Loss>) {
    let last_within = i64::from(loss.last_within_millis) * 1_000;
    steered.fleet.lose(loss.shoots, loss.fraction, last_within);
}

async fn recover(State(steered): State<FleetControl>) {
    steered.fleet.recover();
}

async fn mark(State(steered): State<FleetControl>) {
    steered.fleet.mark();
}

async fn begin_outage(
    State(steered): State<FleetControl>,
    Json(begin): Json<OutageBegin>,
) -> Json<EffectiveAt> {
    let at = steered.fleet.begin_outage(begin.mode);
    Json(EffectiveAt { at })
}

async fn end_outage(State(steered): State<FleetControl>, Json(end): Json<OutageEnd>) -> Json<EffectiveAt> {
    let resume_within = i64::from(end.resume_within_millis) * 1_000;
    let at = steered.fleet.end_outage(end.lost, resume_within);
    Json(EffectiveAt { at })
}
