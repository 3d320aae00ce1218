//! The admin endpoint: /metrics, /healthz, /readyz, /log-level.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, State};
use axum::routing::{get, put};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::admin_server;
use crate::caller_quota::{Caller, CallerQuota, QuotaLimits};
use crate::metrics::{Collector, Exposition};
use crate::process::Process;
use crate::readiness::Readiness;
use crate::rpc_limits::in_parts;
use crate::tls::Tls;

/// How often the exporter folds its raw samples: without it they would pile up between two scrapes.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Answers of /metrics that are on their way.
const SCRAPES: QuotaLimits = QuotaLimits {
    what: "answers of /metrics",
    total: 8,
    reserved: 0,
    per_client: 4,
    per_address: 4,
};

/// Largest body of a request: a log filter. No other endpoint reads one.
const MAX_BODY_BYTES: usize = 1024;

/// The body of a request arrives within this time.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// The state that the admin endpoint shows.
#[derive(Clone)]
pub struct Admin {
    /// Served by /readyz.
    pub readiness: Readiness,
    /// Its exporter is served by /metrics, and its log level set by /log-level.
    pub process: Process,
    /// Served by /metrics, read at the scrape.
    pub collectors: Vec<Arc<dyn Collector>>,
}

/// Serves until the process ends: also while the process drains, so that /readyz says so and the last metrics can be
/// read.
///
/// # Errors
/// Never; the type is that of a critical task.
pub async fn serve(listener: TcpListener, tls: Option<Tls>, admin: Admin) -> anyhow::Result<()> {
    let metrics = admin.process.metrics.clone();
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
        .route("/metrics", get(scrape))
        .route("/log-level", put(set_log_level))
        .with_state(AdminState {
            admin,
            scrapes: CallerQuota::new(SCRAPES),
            rests_until: Arc::new(Mutex::new(Instant::now())),
        });
    tokio::select! {
        () = upkeep => Ok(()),
        () = admin_server::serve(listener, tls, router) => Ok(()),
    }
}

#[derive(Clone)]
struct AdminState {
    admin: Admin,
    scrapes: CallerQuota,
    // Until then no metrics are rendered.
    rests_until: Arc<Mutex<Instant>>,
}

async fn readyz(State(AdminState { admin, .. }): State<AdminState>) -> (StatusCode, String) {
    let (status, first) = if admin.readiness.is_ready() {
        (StatusCode::OK, Some("ready".to_owned()))
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, None)
    };
    let lines = first.into_iter().chain(admin.readiness.lines());
    (status, lines.map(|line| format!("{line}\n")).collect())
}

/// The metrics, unless too many answers are on their way: one of 10,000 shoots is of 10 MB.
async fn scrape(
    State(state): State<AdminState>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
) -> Result<([(HeaderName, HeaderValue); 2], Body), (StatusCode, String)> {
    let caller = Caller::at(caller.ip().to_canonical());
    let permit = state.scrapes.acquire(&caller, 1).map_err(|_| {
        let why = format!(
            "too many answers to {} or in all are unread: read them first\n",
            caller.name
        );
        (StatusCode::SERVICE_UNAVAILABLE, why)
    })?;
    let text = state.render().await;
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let headers = [(CONTENT_TYPE, content_type), (CONTENT_LENGTH, text.len().into())];
    Ok((headers, in_parts(Body::from(text), permit)))
}

impl AdminState {
    /// Renders one text at a time, and rests for as long as that took: whatever scrapers do, they get half of a core at
    /// most.
    async fn render(&self) -> String {
        let mut rests_until = self.rests_until.lock().await;
        sleep_until(*rests_until).await;
        let began = Instant::now();
        let exporter = self.admin.process.metrics.as_ref();
        let mut out = Exposition {
            text: exporter.map(PrometheusHandle::render).unwrap_or_default(),
        };
        self.admin.readiness.collect(&mut out);
        for collector in &self.admin.collectors {
            collector.collect(&mut out);
        }
        *rests_until = Instant::now() + began.elapsed();
        out.text
    }
}

/// Only from the host or the Pod itself, which is where `kubectl port-forward` comes from: a caller that may read the
/// metrics must not be able to silence the log.
async fn set_log_level(
    State(AdminState { admin, .. }): State<AdminState>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    body: Body,
) -> (StatusCode, String) {
    // Before the body: nothing of a stranger is kept.
    if !caller.ip().to_canonical().is_loopback() {
        tracing::debug!(%caller, "a change of the log level from another host was refused");
        let why = "the log level is changed from localhost only: kubectl port-forward to the Pod, then PUT \
                   localhost:9643/log-level\n";
        return (StatusCode::FORBIDDEN, why.to_owned());
    }
    let body = tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_BODY_BYTES));
    let Ok(body) = body.await else {
        let why = "the filter did not arrive within 5 s\n";
        return (StatusCode::REQUEST_TIMEOUT, why.to_owned());
    };
    let Ok(body) = body else {
        let why = format!("the filter has more than {MAX_BODY_BYTES} bytes, or could not be read\n");
        return (StatusCode::PAYLOAD_TOO_LARGE, why);
    };
    let filter = String::from_utf8_lossy(&body);
    match admin.process.log_level.set(filter.trim()) {
        Ok(()) => {
            tracing::info!(filter = filter.trim(), "log level changed");
            (StatusCode::OK, "changed\n".to_owned())
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}\n")),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::args::LogFormat;
    use crate::telemetry;

    #[tokio::test(start_paused = true)]
    async fn the_log_level_is_changed_from_the_same_host_only_and_by_a_short_filter() {
        let (_subscriber, log_level) = telemetry::subscriber(LogFormat::Text, "info", io::sink).unwrap();
        let admin = Admin {
            readiness: Readiness::default(),
            process: Process {
                metrics: None,
                log_level,
            },
            collectors: Vec::new(),
        };
        let put = async |caller: &str, body: Body| {
            let state = AdminState {
                admin: admin.clone(),
                scrapes: CallerQuota::new(SCRAPES),
                rests_until: Arc::new(Mutex::new(Instant::now())),
            };
            set_log_level(State(state), ConnectInfo(caller.parse().unwrap()), body).await
        };
        let never = || Body::from_stream(tokio_stream::pending::<io::Result<&str>>());
        for caller in ["10.0.0.7:4711", "[2001:db8::1]:4711", "[::ffff:10.0.0.7]:4711"] {
            let began = tokio::time::Instant::now();
            let (status, why) = put(caller, never()).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{caller}");
            assert!(why.contains("kubectl port-forward"), "{why}");
            assert_eq!(began.elapsed(), Duration::ZERO, "its body is not waited for");
        }
        for (body, status) in [
            (never(), StatusCode::REQUEST_TIMEOUT),
            (
                Body::from("x".repeat(MAX_BODY_BYTES + 1)),
                StatusCode::PAYLOAD_TOO_LARGE,
            ),
        ] {
            assert_eq!(put("127.0.0.1:4711", body).await.0, status);
        }
        for caller in ["127.0.0.1:4711", "[::1]:4711", "[::ffff:127.0.0.1]:4711"] {
            let answer = put(caller, Body::from("debug")).await;
            assert_eq!(answer, (StatusCode::OK, "changed\n".to_owned()), "{caller}");
        }
    }
}
