//! The admin endpoint: /metrics, /healthz, /readyz, /log-level over plain HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::{get, put};
use http::StatusCode;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::metrics::{BLOCKED, Collector, Exposition, READY, TASKS};
use crate::readiness::Readiness;
use crate::telemetry::LogLevel;

/// How often the exporter folds its raw samples: without it they would pile up between two scrapes.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// What the admin endpoint shows.
#[derive(Clone)]
pub struct Admin {
    /// Served by /readyz.
    pub readiness: Readiness,
    /// Served by /metrics, where an exporter is installed.
    pub metrics: Option<PrometheusHandle>,
    /// Served by /metrics, read at the scrape.
    pub collectors: Vec<Arc<dyn Collector>>,
    /// Set by /log-level.
    pub log_level: LogLevel,
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin")
            .field("readiness", &self.readiness)
            .finish_non_exhaustive()
    }
}

/// Serves for ever: also while the process drains, so that /readyz says so and the last metrics can be read.
///
/// # Errors
/// When the listener fails for good.
pub async fn serve(listener: TcpListener, admin: Admin) -> anyhow::Result<()> {
    let metrics = admin.metrics.clone();
    let upkeep = async move {
        let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
        loop {
            ticks.tick().await;
            if let Some(metrics) = &metrics {
                metrics.run_upkeep();
            }
        }
    };
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(render))
        .route("/log-level", put(set_log_level))
        .with_state(admin);
    let serve = axum::serve(listener, router);
    tokio::select! {
        () = upkeep => Ok(()),
        result = serve => Ok(result?),
    }
}

async fn readyz(State(admin): State<Admin>) -> (StatusCode, String) {
    let blockers = admin.readiness.blockers();
    if blockers.is_empty() {
        return (StatusCode::OK, "ready\n".to_owned());
    }
    let lines: String = blockers
        .iter()
        .map(|(name, why)| format!("{name}: {why}\n"))
        .collect();
    (StatusCode::SERVICE_UNAVAILABLE, lines)
}

async fn render(State(admin): State<Admin>) -> ([(http::HeaderName, &'static str); 1], String) {
    let mut text = admin.metrics.map(|m| m.render()).unwrap_or_default();
    let mut out = Exposition::default();
    let blockers = admin.readiness.blockers();
    let none: [(&str, &str); 0] = [];
    out.family(&READY, [(none, f64::from(u8::from(blockers.is_empty())))]);
    out.family(
        &BLOCKED,
        blockers.keys().map(|blocker| ([("blocker", *blocker)], 1.0)),
    );
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let tasks = u32::try_from(tasks).unwrap_or(u32::MAX);
    out.family(&TASKS, [(none, f64::from(tasks))]);
    for collector in &admin.collectors {
        collector.collect(&mut out);
    }
    text.push_str(&out.into_text());
    (
        [(
            http::header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
}

async fn set_log_level(State(admin): State<Admin>, filter: String) -> (StatusCode, String) {
    match admin.log_level.set(filter.trim()) {
        Ok(()) => {
            tracing::info!(filter = filter.trim(), "log level changed");
            (StatusCode::OK, "changed\n".to_owned())
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")),
    }
}
