//! Steering a running sandbox from outside: plain HTTP with JSON, on loopback only.
//!
//! `GET /` is a page for people, with buttons. `GET /audit` shows what the seed was asked. Everything that changes is a
//! POST (or a DELETE), for instance `POST /shoots/alpha/cut` with the body `"all"`, `{"zone":"zone-1"}` or
//! `{"nodes":["n"]}`.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::{error::SandboxError, faults::Fault, sandbox::Sandbox, sim::Cut};

/// The control endpoint of one sandbox; it ends when dropped.
#[derive(Debug)]
pub struct Control {
    address: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

type SandboxState = State<Arc<Sandbox>>;
type ControlResult = Result<(), SandboxError>;

impl Control {
    /// Serves the control endpoint of `sandbox` on a free port of loopback: it knows no credentials.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(sandbox: Arc<Sandbox>) -> Result<Self, SandboxError> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let served = axum::serve(listener, routes().with_state(sandbox));
        let serving = tokio::spawn(async move {
            if let Err(error) = served.await {
                tracing::error!(%error, "control endpoint ended");
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
        .route("/", get(|| async { Html(include_str!("control.html")) }))
        .route("/shoots", get(shoots))
        .route("/faults", post(seed_fault).delete(clear_seed_faults))
        .route("/api-server/{action}", post(seed_server))
        .route("/shoots/{shoot}/cut", post(cut))
        .route("/shoots/{shoot}/heal", post(heal))
        .route("/shoots/{shoot}/hibernation", post(hibernation))
        .route("/shoots/{shoot}/services/{service}/{action}", post(service))
        .route("/audit", get(audit))
        .route("/shoots/{shoot}/faults", post(shoot_fault))
}

#[derive(Debug, Deserialize)]
struct Since {
    #[serde(default)]
    since: u64,
}

/// Requests to the seed after number `since`, bodies left out: they may carry Secrets.
async fn audit(State(sandbox): SandboxState, Query(Since { since }): Query<Since>) -> Json<Vec<Value>> {
    let entries = sandbox.seed().audit_since(since);
    let entries = entries.into_iter().map(|entry| {
        json!({
            "id": entry.id,
            "time": entry.time.to_string(),
            "verb": entry.verb,
            "path": entry.path,
            "query": entry.query,
            "user": entry.user,
            "code": entry.code,
        })
    });
    Json(entries.collect())
}

impl IntoResponse for SandboxError {
    fn into_response(self) -> Response {
        let code = match &self {
            Self::NoSuchShoot(_) => StatusCode::NOT_FOUND,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (code, Json(json!({ "error": self.to_string() }))).into_response()
    }
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

async fn cut(State(sandbox): SandboxState, Path(name): Path<String>, Json(cut): Json<Cut>) -> ControlResult {
    sandbox.shoot(&name)?.cut(cut);
    Ok(())
}

async fn heal(State(sandbox): SandboxState, Path(name): Path<String>) -> ControlResult {
    sandbox.shoot(&name)?.heal();
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
) -> ControlResult {
    sandbox.shoot(&name)?.set_hibernated(enabled)
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
) -> ControlResult {
    let shoot = sandbox.shoot(&name)?;
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
) -> ControlResult {
    sandbox.shoot(&name)?.api().inject(fault);
    Ok(())
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ServerAction {
    Start,
    Stop,
}

async fn seed_server(State(sandbox): SandboxState, Path(action): Path<ServerAction>) -> ControlResult {
    match action {
        ServerAction::Start => sandbox.seed().resume().await,
        ServerAction::Stop => sandbox.seed().stop().await,
    }
}
