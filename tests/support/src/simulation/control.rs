//! Steering a running sandbox from outside: plain HTTP with JSON, on loopback only.
//!
//! `GET /` is a page for people, with buttons. Everything that changes is a POST (or a DELETE), for instance
//! `POST /shoots/alpha/cut` with the body `"all"`, `{"zone":"zone-1"}` or `{"nodes":["n"]}`.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::Html,
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use watchdog_sandbox::Fault;

use super::{Cut, Sandbox, SimulatedShoot};

/// The control endpoint of one sandbox; it ends when dropped.
#[derive(Debug)]
pub struct Control {
    address: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

type SandboxState = State<Arc<Sandbox>>;

type ControlError = (StatusCode, String);

impl Control {
    /// Serves the control endpoint of `sandbox` on a free port of loopback: it knows no credentials.
    pub async fn start(sandbox: Arc<Sandbox>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let served = axum::serve(listener, routes().with_state(sandbox));
        let serving = tokio::spawn(async move {
            if let Err(error) = served.await {
                eprintln!("the page of the sandbox ended: {error}");
            }
        });
        Ok(Self {
            address,
            _serving: AbortOnDropHandle::new(serving),
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn routes() -> Router<Arc<Sandbox>> {
    Router::new()
        .route("/", get(|| async { Html(include_str!("page.html")) }))
        .route("/shoots", get(shoots))
        .route("/faults", post(seed_fault).delete(clear_seed_faults))
        .route("/api-server/{action}", post(seed_server))
        .route("/shoots/{shoot}/cut", post(cut))
        .route("/shoots/{shoot}/heal", post(heal))
        .route("/shoots/{shoot}/hibernation", post(hibernation))
        .route("/shoots/{shoot}/services/{service}/{action}", post(service))
        .route("/shoots/{shoot}/faults", post(shoot_fault))
}

fn find(sandbox: &Sandbox, name: &str) -> Result<SimulatedShoot, ControlError> {
    let shoot = sandbox.shoot(name);
    shoot.map_err(|error| (StatusCode::NOT_FOUND, error.to_string()))
}

fn done(result: anyhow::Result<()>) -> Result<(), ControlError> {
    result.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")))
}

/// The state of each shoot, for the page.
async fn shoots(State(sandbox): SandboxState) -> Json<Vec<Value>> {
    let shoots = sandbox.shoots().into_iter().map(|shoot| {
        let workloads = shoot.workloads().into_iter();
        let workloads = workloads.map(
            |one| json!({ "name": one.name, "replicas": one.spec_replicas, "ready": one.ready_replicas }),
        );
        let nodes = shoot.nodes();
        json!({
            "name": shoot.name(),
            "nodes": nodes.len(),
            "unknown": nodes.iter().filter(|node| node.ready == "Unknown").count(),
            "replaced": shoot.machines_replaced(),
            "workloads": workloads.collect::<Vec<_>>(),
        })
    });
    Json(shoots.collect())
}

async fn cut(
    State(sandbox): SandboxState,
    Path(name): Path<String>,
    Json(cut): Json<Cut>,
) -> Result<(), ControlError> {
    find(&sandbox, &name)?.cut(cut);
    Ok(())
}

async fn heal(State(sandbox): SandboxState, Path(name): Path<String>) -> Result<(), ControlError> {
    find(&sandbox, &name)?.heal();
    Ok(())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HibernationRequest {
    enabled: bool,
}

async fn hibernation(
    State(sandbox): SandboxState,
    Path(name): Path<String>,
    Json(HibernationRequest { enabled }): Json<HibernationRequest>,
) -> Result<(), ControlError> {
    done(find(&sandbox, &name)?.set_hibernated(enabled))
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ServiceAction {
    Up,
    Down,
}

async fn service(
    State(sandbox): SandboxState,
    Path((name, service, action)): Path<(String, String, ServiceAction)>,
) -> Result<(), ControlError> {
    let shoot = find(&sandbox, &name)?;
    match action {
        ServiceAction::Up => shoot.service_up(&service),
        ServiceAction::Down => shoot.service_down(&service),
    }
    Ok(())
}

async fn seed_fault(State(sandbox): SandboxState, Json(fault): Json<Fault>) {
    sandbox.seed().inject(fault);
}

async fn clear_seed_faults(State(sandbox): SandboxState) {
    sandbox.seed().clear_faults();
}

async fn shoot_fault(
    State(sandbox): SandboxState,
    Path(name): Path<String>,
    Json(fault): Json<Fault>,
) -> Result<(), ControlError> {
    find(&sandbox, &name)?.api().inject(fault);
    Ok(())
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ServerAction {
    Start,
    Stop,
}

async fn seed_server(
    State(sandbox): SandboxState,
    Path(action): Path<ServerAction>,
) -> Result<(), ControlError> {
    let seed = sandbox.seed();
    let result = match action {
        ServerAction::Start => seed.resume().await,
        ServerAction::Stop => seed.stop().await,
    };
    done(result.map_err(anyhow::Error::from))
}
