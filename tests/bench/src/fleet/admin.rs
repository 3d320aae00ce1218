//! Steering the fleet from outside: plain HTTP on loopback, which answers with JSON.
//!
//! | request | what it does |
//! | --- | --- |
//! | `GET /report` | what the fleet saw: connections, requests by kind, bytes, its own CPU time and memory |
//! | `GET /shoots` | per shoot: first and last list of its Leases, longest gap, last renewals of its nodes |
//! | `GET /scales` | every change of a dependant's replicas, with the time |
//! | `POST /lose?shoots=100&last_within=0` | cuts the nodes of the first shoots off, all at this instant |
//! | `POST /outage?mode=hang` or `refuse` | all API servers fail, and no kubelet can renew |
//! | `POST /recover?lost=0&resume_within=7000` | ends both; the nodes of the first `lost` shoots stay cut off |
//! | `POST /mark` | forgets maxima |
//!
//! Times in requests are in milliseconds; [`super::kubelets`] says what they mean. Options that are left out are 0,
//! except that all shoots are lost. Each POST answers with the instant at which it took effect, in microseconds since
//! 1970.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::ensure;
use axum::extract::{Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use watchdog_test_support::http_exchange;
use watchdog_test_support::workload_controller::{ReplicasChange, WorkloadController};

use super::{Availability, Fleet, FleetShoot, Report, ShootReport, now};

/// The nodes to cut off.
#[derive(Debug, Deserialize)]
struct LossQuery {
    shoots: Option<usize>,
    #[serde(default)]
    last_within: i64,
}

/// How all API servers fail.
#[derive(Debug, Deserialize)]
struct OutageQuery {
    mode: Availability,
}

/// How the kubelets come back.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RecoveryQuery {
    lost: usize,
    resume_within: i64,
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

type Controlled = State<(Arc<Fleet>, Option<Arc<WorkloadController>>)>;

/// Serves on a free port until the process ends. Returns the address.
///
/// # Errors
/// When no port can be bound.
pub async fn serve(
    fleet: Arc<Fleet>,
    workloads: Option<Arc<WorkloadController>>,
) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let routes = Router::new()
        .route("/report", get(report))
        .route("/shoots", get(shoots))
        .route("/scales", get(scales))
        .route("/lose", post(lose))
        .route("/outage", post(begin_outage))
        .route("/recover", post(recover))
        .route("/mark", post(mark))
        .with_state((fleet, workloads));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            eprintln!("the admin endpoint ended: {error}");
        }
    });
    Ok(address)
}

async fn report(State((fleet, _)): Controlled) -> Json<Report> {
    Json(fleet.report())
}

async fn shoots(State((fleet, _)): Controlled) -> Json<Vec<ShootReport>> {
    Json(fleet.shoots().iter().map(FleetShoot::report).collect())
}

async fn scales(State((_, workloads)): Controlled) -> Json<Vec<ScaleChange>> {
    let changes = workloads.map(|workloads| workloads.changes());
    Json(changes.into_iter().flatten().map(ScaleChange::from).collect())
}

async fn lose(State((fleet, _)): Controlled, Query(loss): Query<LossQuery>) -> Json<i64> {
    Json(fleet.lose(loss.shoots.unwrap_or(usize::MAX), loss.last_within * 1_000))
}

async fn begin_outage(State((fleet, _)): Controlled, Query(outage): Query<OutageQuery>) -> Json<i64> {
    Json(fleet.begin_outage(outage.mode))
}

async fn recover(State((fleet, _)): Controlled, Query(recovery): Query<RecoveryQuery>) -> Json<i64> {
    Json(fleet.recover(recovery.lost, recovery.resume_within * 1_000))
}

async fn mark(State((fleet, _)): Controlled) -> Json<i64> {
    fleet.mark();
    Json(now())
}

/// A client for it.
#[derive(Debug, Clone)]
pub struct FleetAdmin {
    /// `host:port`.
    pub address: String,
}

impl FleetAdmin {
    /// The fleet's observations so far.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn report(&self) -> anyhow::Result<Report> {
        request(&self.address, "GET", "/report").await
    }

    /// Its record of every shoot.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn shoots(&self) -> anyhow::Result<Vec<ShootReport>> {
        request(&self.address, "GET", "/shoots").await
    }

    /// When dependants were scaled.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn scales(&self) -> anyhow::Result<Vec<ScaleChange>> {
        request(&self.address, "GET", "/scales").await
    }

    /// Does what a POST with this path and query does, as the table of this module says. Returns when.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn post(&self, path: &str) -> anyhow::Result<i64> {
        request(&self.address, "POST", path).await
    }
}

/// Sends a request to `host:port` and reads the JSON of its answer.
///
/// # Errors
/// When there is no answer, or none with success, or not the JSON asked for.
pub async fn request<T: DeserializeOwned>(address: &str, method: &str, path: &str) -> anyhow::Result<T> {
    let stream = TcpStream::connect(address).await?;
    let (code, body) = http_exchange::exchange(stream, method, path, "").await?;
    ensure!(
        code == 200,
        "{method} {path} at {address} answered {code}: {body}"
    );
    Ok(serde_json::from_str(&body)?)
}
