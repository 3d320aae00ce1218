//! The connections of the admin endpoint, with limits: the kubelet's probes are answered whatever a scraper does, even
//! one that comes from the same node.

use std::pin::pin;
use std::time::Duration;

use anyhow::Context as _;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Router};
use http::StatusCode;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use crate::connection_tasks::ConnectionTasks;
use crate::listeners::{AcceptedConnection, Acceptor};
use crate::tls::{DISTRUSTED, HANDSHAKE_TIMEOUT, Tls};

/// Connections at the same time: a few scrapers and the kubelet. The reserve of file descriptors has more than that.
const MAX_CONNECTIONS: usize = 64;

/// The head of a request arrives within this time, also that of the next one on a connection that stays open.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection lives at most this long: a client that reads its answer more slowly gets no more of it.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// After this time it gets no other request, or the end would find scrapers in the middle of an answer.
const KEEP_ALIVE_TIME: Duration = Duration::from_secs(30);

/// A connection with a file descriptor of the reserve ends after its first answer, and after this time at the latest.
const RESERVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Paths that need no certificate.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// Serves until the process ends.
pub(crate) async fn serve(listener: TcpListener, tls: Option<Tls>, router: Router) {
    let incoming = Acceptor {
        listener,
        refusal: "cannot accept a connection to the admin endpoint",
        uses_reserve: true,
    };
    let mut open = ConnectionTasks::new(MAX_CONNECTIONS, MAX_CONNECTIONS);
    loop {
        let AcceptedConnection {
            tcp,
            address,
            from_reserve,
        } = incoming.next().await;
        let limit = if from_reserve {
            RESERVE_TIMEOUT
        } else {
            CONNECTION_TIMEOUT
        };
        let router = router.clone().layer(Extension(ConnectInfo(address)));
        let connection = timeout(limit, connection(tcp, tls.clone(), !from_reserve, router));
        open.spawn(address.ip(), |place| async move {
            let ended = connection.await.context("it was open too long");
            if let Err(error) = ended.flatten() {
                let error = format!("{error:#}");
                tracing::debug!(peer = %address, error, "a connection to the admin endpoint ended");
            }
            drop(place);
        });
    }
}

async fn connection(
    tcp: TcpStream,
    tls: Option<Tls>,
    keep_alive: bool,
    router: Router,
) -> anyhow::Result<()> {
    let Some(tls) = tls else {
        return serve_http1(tcp, keep_alive, router).await;
    };
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    let (stream, caller, certificates) = tls.accept(tls.admin(), tcp, deadline).await?;
    let router = match caller {
        Ok(_) => router,
        Err(why) => router.layer(middleware::from_fn_with_state(format!("{why}\n"), only_probes)),
    };
    tokio::select! {
        served = serve_http1(stream, keep_alive, router) => served,
        () = certificates.distrusted() => anyhow::bail!(DISTRUSTED),
    }
}

/// HTTP/1.1, the only one that scrapers and the kubelet need.
async fn serve_http1(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    keep_alive: bool,
    router: Router,
) -> anyhow::Result<()> {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(keep_alive)
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut served = pin!(served);
    if let Ok(ended) = timeout(KEEP_ALIVE_TIME, served.as_mut()).await {
        return Ok(ended?);
    }
    served.as_mut().graceful_shutdown();
    Ok(served.await?)
}

/// Answers what probes ask for, and everything else with why the caller may not ask for it.
async fn only_probes(State(why): State<String>, request: Request, next: Next) -> Response {
    if PROBES.contains(&request.uri().path()) {
        next.run(request).await
    } else {
        (StatusCode::FORBIDDEN, why).into_response()
    }
}
