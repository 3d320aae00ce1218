//! Steering a running sandbox from outside: plain HTTP with JSON, on loopback only.
//!
//! `GET /state` and `GET /shoots/{name}` show; everything that changes is a POST (or a DELETE), for instance
//! `POST /shoots/alpha/cut` with the body `"all"`, `{"zone":"zone-1"}` or `{"nodes":["n"]}`.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    error::SandboxError,
    faults::{Fault, FaultId},
    sandbox::Sandbox,
    server::{ApiServer, Counters},
    sim::{Cut, ShootState, SimulatedShootSpec},
};

/// The control endpoint of one sandbox; it ends when dropped.
#[derive(Debug)]
pub struct Control {
    address: SocketAddr,
    stop: CancellationToken,
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

type SandboxState = State<Arc<Sandbox>>;
type ControlResult<T> = Result<T, SandboxError>;

impl Control {
    /// Serves the control endpoint of `sandbox` on a loopback address; port 0 picks a free one.
    ///
    /// # Errors
    /// When the address is not on loopback or cannot be bound.
    pub async fn start(sandbox: Arc<Sandbox>, address: SocketAddr) -> Result<Self, SandboxError> {
        if !address.ip().is_loopback() {
            return Err(SandboxError::Invalid(format!(
                "{address} is not a loopback address"
            )));
        }
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let ended = stop.clone();
        let served = axum::serve(listener, routes().with_state(sandbox));
        tokio::spawn(async move {
            if let Some(Err(error)) = ended.run_until_cancelled(served.into_future()).await {
                tracing::error!(%error, "control endpoint ended");
            }
        });
        Ok(Self { address, stop })
    }

    /// Where it is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn routes() -> Router<Arc<Sandbox>> {
    Router::new()
        .route("/state", get(state))
        .route("/audit", get(audit))
        .route("/faults", post(seed_fault).delete(clear_seed_faults))
        .route("/api-server/{action}", post(seed_server))
        .route("/shoots", post(add_shoot))
        .route("/shoots/{shoot}", get(shoot).delete(delete_shoot))
        .route("/shoots/{shoot}/cut", post(cut))
        .route("/shoots/{shoot}/heal", post(heal))
        .route("/shoots/{shoot}/hibernation", post(hibernation))
        .route("/shoots/{shoot}/last-operation", post(last_operation))
        .route("/shoots/{shoot}/deletion", post(deletion))
        .route("/shoots/{shoot}/kubeconfig", post(rotate_kubeconfig))
        .route("/shoots/{shoot}/services/{service}/{action}", post(service))
        .route("/shoots/{shoot}/deployments/{deployment}/scale", post(scale))
        .route(
            "/shoots/{shoot}/faults",
            post(shoot_fault).delete(clear_shoot_faults),
        )
        .route("/shoots/{shoot}/api-server/{action}", post(shoot_server))
        .route("/shoots/{shoot}/faults/{fault}", delete(clear_shoot_fault))
}

impl IntoResponse for SandboxError {
    fn into_response(self) -> Response {
        let code = match &self {
            Self::NoSuchShoot(_) => StatusCode::NOT_FOUND,
            Self::ShootExists(_) => StatusCode::CONFLICT,
            Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::Object(error) => StatusCode::from_u16(error.code).unwrap_or(StatusCode::BAD_REQUEST),
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (code, Json(json!({ "error": self.to_string() }))).into_response()
    }
}

/// Everything at one moment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Everything {
    seed: String,
    seed_running: bool,
    counters: Counters,
    shoots: Vec<ShootState>,
}

async fn state(State(sandbox): SandboxState) -> Json<Everything> {
    Json(Everything {
        seed: sandbox.seed().url(),
        seed_running: sandbox.seed().is_running(),
        counters: sandbox.seed().counters(),
        shoots: sandbox.shoots().iter().map(|shoot| shoot.state()).collect(),
    })
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
            "userAgent": entry.user_agent,
            "code": entry.code,
        })
    });
    Json(entries.collect())
}

/// A shoot to add.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewShoot {
    name: String,
    nodes: usize,
    #[serde(default = "NewShoot::zones")]
    zones: usize,
}

impl NewShoot {
    fn zones() -> usize {
        3
    }
}

async fn add_shoot(
    State(sandbox): SandboxState,
    Json(new): Json<NewShoot>,
) -> ControlResult<Json<ShootState>> {
    let shoot = sandbox
        .add_shoot(SimulatedShootSpec::new(&new.name, new.nodes).zones(new.zones))
        .await?;
    Ok(Json(shoot.state()))
}

async fn shoot(State(sandbox): SandboxState, Path(name): Path<String>) -> ControlResult<Json<ShootState>> {
    Ok(Json(sandbox.shoot(&name)?.state()))
}

async fn delete_shoot(State(sandbox): SandboxState, Path(name): Path<String>) -> ControlResult<StatusCode> {
    sandbox.delete_shoot(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn cut(
    State(sandbox): SandboxState,
    Path(name): Path<String>,
    what: Option<Json<Cut>>,
) -> ControlResult<StatusCode> {
    sandbox.shoot(&name)?.cut(what.map_or(Cut::All, |Json(cut)| cut));
    Ok(StatusCode::NO_CONTENT)
}

async fn heal(State(sandbox): SandboxState, Path(name): Path<String>) -> ControlResult<StatusCode> {
    sandbox.shoot(&name)?.heal();
    Ok(StatusCode::NO_CONTENT)
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
) -> ControlResult<StatusCode> {
    sandbox.shoot(&name)?.set_hibernated(enabled)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LastOperationRequest {
    r#type: String,
    state: String,
}

async fn last_operation(
    State(sandbox): SandboxState,
    Path(name): Path<String>,
    Json(operation): Json<LastOperationRequest>,
) -> ControlResult<StatusCode> {
    sandbox
        .shoot(&name)?
        .set_last_operation(&operation.r#type, &operation.state)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn deletion(State(sandbox): SandboxState, Path(name): Path<String>) -> ControlResult<StatusCode> {
    sandbox.shoot(&name)?.mark_deleting()?;
    Ok(StatusCode::NO_CONTENT)
}

async fn rotate_kubeconfig(
    State(sandbox): SandboxState,
    Path(name): Path<String>,
) -> ControlResult<StatusCode> {
    sandbox.shoot(&name)?.rotate_kubeconfig()?;
    Ok(StatusCode::NO_CONTENT)
}

async fn service(
    State(sandbox): SandboxState,
    Path((name, service, action)): Path<(String, String, String)>,
) -> ControlResult<StatusCode> {
    let shoot = sandbox.shoot(&name)?;
    match action.as_str() {
        "down" => shoot.service_down(&service),
        "up" => shoot.service_up(&service),
        _ => return Err(SandboxError::Invalid(format!("{action} is neither up nor down"))),
    }
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicasBody {
    replicas: u32,
}

async fn scale(
    State(sandbox): SandboxState,
    Path((name, deployment)): Path<(String, String)>,
    Json(ReplicasBody { replicas }): Json<ReplicasBody>,
) -> ControlResult<StatusCode> {
    sandbox.shoot(&name)?.scale(&deployment, replicas)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn seed_fault(State(sandbox): SandboxState, Json(fault): Json<Fault>) -> Json<FaultId> {
    Json(sandbox.seed().inject(fault))
}

async fn clear_seed_faults(State(sandbox): SandboxState) -> StatusCode {
    sandbox.seed().clear_faults();
    StatusCode::NO_CONTENT
}

async fn shoot_fault(
    State(sandbox): SandboxState,
    Path(name): Path<String>,
    Json(fault): Json<Fault>,
) -> ControlResult<Json<FaultId>> {
    Ok(Json(sandbox.shoot(&name)?.api().inject(fault)))
}

async fn clear_shoot_faults(
    State(sandbox): SandboxState,
    Path(name): Path<String>,
) -> ControlResult<StatusCode> {
    sandbox.shoot(&name)?.api().clear_faults();
    Ok(StatusCode::NO_CONTENT)
}

async fn clear_shoot_fault(
    State(sandbox): SandboxState,
    Path((name, fault)): Path<(String, u64)>,
) -> ControlResult<StatusCode> {
    if sandbox.shoot(&name)?.api().clear_fault(FaultId(fault)) {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Ok(StatusCode::NOT_FOUND)
    }
}

async fn seed_server(State(sandbox): SandboxState, Path(action): Path<String>) -> ControlResult<StatusCode> {
    steer(sandbox.seed(), &action).await
}

async fn shoot_server(
    State(sandbox): SandboxState,
    Path((name, action)): Path<(String, String)>,
) -> ControlResult<StatusCode> {
    steer(sandbox.shoot(&name)?.api(), &action).await
}

async fn steer(api: &ApiServer, action: &str) -> ControlResult<StatusCode> {
    match action {
        "stop" => api.stop().await?,
        "start" => api.resume().await?,
        "freeze" => api.freeze(),
        "thaw" => api.thaw(),
        "cut-connections" => api.cut_connections(),
        "drop-watches" => api.drop_watches(),
        "compact" => api.compact(),
        _ => {
            let message = format!(
                "{action} is none of stop, start, freeze, thaw, cut-connections, drop-watches, compact"
            );
            return Err(SandboxError::Invalid(message));
        }
    }
    Ok(StatusCode::NO_CONTENT)
}
