//! The front of an API server: accepts connections, speaks TLS and HTTP, hands requests on.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::{JoinHandle, JoinSet},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    api::{self, ApiState},
    error::SandboxError,
    io::Wire,
};

/// How long [`Listener::stop`] waits for its tasks, which end at their next poll.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Concurrent requests per HTTP/2 connection, as Go's server allows.
const MAX_STREAMS: u32 = 250;

/// Pause after a failed accept (out of file descriptors, most likely), for others to close some.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A running listener with its connections; all end when it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    stop: CancellationToken,
    /// Cuts the connections that are open now.
    cut: Arc<Notify>,
    accepting: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Listener {
    /// Accepts connections on `socket`.
    pub(crate) fn start(state: Arc<ApiState>, tls: Arc<ServerConfig>, socket: TcpListener) -> Self {
        let (stop, cut) = (CancellationToken::new(), Arc::new(Notify::new()));
        let accept = accept(state, TlsAcceptor::from(tls), socket, stop.clone(), cut.clone());
        Self {
            stop,
            cut,
            accepting: tokio::spawn(accept),
        }
    }

    /// Cuts the connections that are open now.
    pub(crate) fn cut(&self) {
        self.cut.notify_one();
    }

    /// Ends the listener and its connections, and waits until the sockets are closed.
    ///
    /// # Errors
    /// When they do not end in time.
    pub(crate) async fn stop(mut self) -> Result<(), SandboxError> {
        self.stop.cancel();
        let ended = tokio::time::timeout(STOP_TIMEOUT, &mut self.accepting).await;
        ended
            .map(drop)
            .map_err(|_| SandboxError::Timeout("connections did not end"))
    }
}

async fn accept(
    state: Arc<ApiState>,
    acceptor: TlsAcceptor,
    socket: TcpListener,
    stop: CancellationToken,
    cut: Arc<Notify>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return connections.shutdown().await,
            () = cut.notified() => {
                connections.shutdown().await;
                continue;
            }
            Some(_) = connections.join_next() => continue,
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                state.counters.accepted.fetch_add(1, Ordering::Relaxed);
                connections.spawn(connection(state.clone(), acceptor.clone(), stream));
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(state: Arc<ApiState>, acceptor: TlsAcceptor, stream: TcpStream) {
    // Without this, small watch events wait for the client's acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "set_nodelay failed");
    }
    let wire = Wire::new(stream, state.gate.clone(), state.counters.clone());
    let stream = match acceptor.accept(wire).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
    };
    let user = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(<[_]>::first)
        .and_then(|certificate| state.credentials.by_certificate(certificate))
        .map(Arc::<str>::from);
    let service = service_fn(move |request| api::serve(state.clone(), user.clone(), request));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Idle connections stay open as on the real server.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "connection ended");
    }
}
