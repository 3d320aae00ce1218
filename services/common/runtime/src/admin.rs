//! The admin endpoint: /metrics, /healthz, /readyz, /log-level over plain HTTP.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::routing::{get, put};
use http::StatusCode;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::metrics::{BLOCKED, BlockerName, Collector, Exposition, LAST_TRY_FAILED, LoopName, READY, TASKS};
use crate::readiness::Readiness;
use crate::telemetry::LogLevel;

/// How often the exporter folds its raw samples: without it they would pile up between two scrapes.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// The state that the admin endpoint shows.
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

/// Serves until the process ends: also while the process drains, so that /readyz says so and the last metrics can be
/// read.
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
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let serve = axum::serve(listener, service);
    tokio::select! {
        () = upkeep => Ok(()),
        result = serve => Ok(result?),
    }
}

async fn readyz(State(admin): State<Admin>) -> (StatusCode, String) {
    let lines: String = admin
        .readiness
        .lines()
        .iter()
        .map(|line| format!("{line}\n"))
        .collect();
    if admin.readiness.blockers().is_empty() {
        (StatusCode::OK, format!("ready\n{lines}"))
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, lines)
    }
}

async fn render(State(admin): State<Admin>) -> ([(http::HeaderName, &'static str); 1], String) {
    let mut text = admin.metrics.map(|m| m.render()).unwrap_or_default();
    let mut out = Exposition::default();
    let blockers = admin.readiness.blockers();
    out.family(&READY, [((), f64::from(u8::from(blockers.is_empty())))]);
    let blockers = blockers.keys().map(|name| (BlockerName(name), 1.0));
    out.family(&BLOCKED, blockers);
    let failures = admin.readiness.failures();
    // Several replicas may fail for one reason.
    let failures: BTreeSet<_> = failures.iter().map(|(name, _, f)| (*name, f.reason)).collect();
    let failures = failures
        .into_iter()
        .map(|(name, reason)| ((LoopName(name), reason), 1.0));
    out.family(&LAST_TRY_FAILED, failures);
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let tasks = u32::try_from(tasks).unwrap_or(u32::MAX);
    out.family(&TASKS, [((), f64::from(tasks))]);
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

/// Only from the host or the Pod itself, which is where `kubectl port-forward` comes from: a caller that may read the
/// metrics must not be able to silence the log.
async fn set_log_level(
    State(admin): State<Admin>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    filter: String,
) -> (StatusCode, String) {
    if !caller.ip().to_canonical().is_loopback() {
        tracing::warn!(%caller, "a change of the log level was refused");
        let why = "the log level is changed from localhost only: kubectl port-forward to the Pod, then PUT \
                   localhost:9643/log-level\n";
        return (StatusCode::FORBIDDEN, why.to_owned());
    }
    match admin.log_level.set(filter.trim()) {
        Ok(()) => {
            tracing::info!(filter = filter.trim(), "log level changed");
            (StatusCode::OK, "changed\n".to_owned())
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::LogFormat;
    use crate::telemetry;

    #[tokio::test]
    async fn the_log_level_is_changed_from_the_same_host_only() {
        let (_subscriber, log_level) = telemetry::subscriber(LogFormat::Text, "info", std::io::sink).unwrap();
        let admin = Admin {
            readiness: Readiness::default(),
            metrics: None,
            collectors: Vec::new(),
            log_level,
        };
        let put = async |caller: &str, filter: &str| {
            let caller = ConnectInfo(caller.parse().unwrap());
            set_log_level(State(admin.clone()), caller, filter.to_owned()).await
        };
        for caller in ["10.0.0.7:4711", "[2001:db8::1]:4711", "[::ffff:10.0.0.7]:4711"] {
            let (status, why) = put(caller, "off").await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{caller}");
            assert!(why.contains("kubectl port-forward"), "{why}");
        }
        for caller in ["127.0.0.1:4711", "[::1]:4711", "[::ffff:127.0.0.1]:4711"] {
            let answer = put(caller, "debug").await;
            assert_eq!(answer, (StatusCode::OK, "changed\n".to_owned()), "{caller}");
        }
    }
}
