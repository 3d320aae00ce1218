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
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    api::{self, ApiState},
    error::SandboxError,
    io::{Gate, Wire, WireCounters},
};

/// How long [`Listener::stop`] waits for its tasks, which end at their next poll.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Concurrent requests per HTTP/2 connection, as Go's server allows.
const MAX_STREAMS: u32 = 250;

/// Pause after a failed accept (out of file descriptors, most likely), for others to close some.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The state of every connection; outlives listeners.
#[derive(Debug)]
pub(crate) struct ConnectionContext {
    pub(crate) state: Arc<ApiState>,
    pub(crate) tls: Arc<ServerConfig>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) counters: Arc<WireCounters>,
}

impl ConnectionContext {
    pub(crate) fn new(state: Arc<ApiState>, tls: Arc<ServerConfig>) -> Self {
        Self {
            state,
            tls,
            gate: Arc::default(),
            counters: Arc::default(),
        }
    }
}

/// A running listener with its connections; all end when it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Ends the listener and, through its children, every connection.
    all: CancellationToken,
    /// Ends the connections that are open now.
    current: Arc<Mutex<CancellationToken>>,
    tasks: TaskTracker,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.all.cancel();
    }
}

impl Listener {
    /// Accepts connections on `socket`.
    pub(crate) fn start(front: Arc<ConnectionContext>, socket: TcpListener) -> Self {
        let all = CancellationToken::new();
        let current = Arc::new(Mutex::new(all.child_token()));
        let tasks = TaskTracker::new();
        tasks.spawn(accept(front, socket, all.clone(), current.clone(), tasks.clone()));
        Self { all, current, tasks }
    }

    /// Cuts the connections that are open now.
    pub(crate) fn cut(&self) {
        let mut current = self.current.lock();
        std::mem::replace(&mut *current, self.all.child_token()).cancel();
    }

    /// Ends the listener and its connections, and waits until the sockets are closed.
    ///
    /// # Errors
    /// When they do not end in time.
    pub(crate) async fn stop(self) -> Result<(), SandboxError> {
        self.all.cancel();
        self.tasks.close();
        tokio::time::timeout(STOP_TIMEOUT, self.tasks.wait())
            .await
            .map_err(|_| SandboxError::Timeout("connections did not end"))
    }
}

async fn accept(
    front: Arc<ConnectionContext>,
    socket: TcpListener,
    all: CancellationToken,
    current: Arc<Mutex<CancellationToken>>,
    tasks: TaskTracker,
) {
    let acceptor = TlsAcceptor::from(front.tls.clone());
    loop {
        let accepted = tokio::select! {
            () = all.cancelled() => return,
            accepted = socket.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        front.counters.accepted.fetch_add(1, Ordering::Relaxed);
        let cut = current.lock().clone();
        let connection = connection(front.clone(), acceptor.clone(), stream);
        tasks.spawn(async move {
            cut.run_until_cancelled(connection).await;
        });
    }
}

async fn connection(front: Arc<ConnectionContext>, acceptor: TlsAcceptor, stream: TcpStream) {
    // Without this, small watch events wait for the client's acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "set_nodelay failed");
    }
    let wire = Wire::new(stream, front.gate.clone(), front.counters.clone());
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
        .and_then(|certificate| front.state.credentials.by_certificate(certificate))
        .map(Arc::<str>::from);
    let state = front.state.clone();
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
