//! The connections of the admin endpoint, with limits: the kubelet's probes are answered whatever a scraper does, even
//! one that comes from the same node.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::{IntoResponse, Response};
use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use crate::allowed_clients::AllowedClients;
use crate::backoff::Backoff;
use crate::connection_tasks::ConnectionTasks;
use crate::failure::is_local_limit;
use crate::open_files::with_reserve;
use crate::tls::Tls;

/// Connections at the same time: a few scrapers and the kubelet. The reserve of file descriptors has more than that.
const MAX_CONNECTIONS: usize = 64;

/// A TLS handshake takes at most this time.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// The head of a request arrives within this time, also that of the next one on a connection that stays open.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection lives at most this long: a client that reads its answer more slowly gets no more of it.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection with a file descriptor of the reserve ends after its first answer, and after this time at the latest.
const RESERVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Paths that need no certificate.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// TLS of the admin endpoint.
#[derive(Debug, Clone)]
pub struct AdminTls {
    /// The certificate of this service.
    pub tls: Tls,
    /// The callers that may ask for more than probes do.
    pub allowed: AllowedClients,
}

struct Accepted {
    tcp: TcpStream,
    address: SocketAddr,
    from_reserve: bool,
}

/// Accepts a connection. When no other file descriptor is left, it gets one of the reserve, so that the kubelet and
/// operators still get an answer.
async fn accept(listener: &TcpListener) -> io::Result<Accepted> {
    let mut from_reserve = false;
    let (tcp, address) = poll_fn(|context| {
        let accepted = listener.poll_accept(context);
        from_reserve = matches!(&accepted, Poll::Ready(Err(error)) if is_local_limit(error));
        if from_reserve {
            // The kernel needs a file descriptor even to look for a connection. Often there is none, and the reserve
            // stays whole.
            with_reserve(|| listener.poll_accept(context))
        } else {
            accepted
        }
    })
    .await?;
    Ok(Accepted {
        tcp,
        address: SocketAddr::new(address.ip().to_canonical(), address.port()),
        from_reserve,
    })
}

/// Serves until the process ends.
pub(crate) async fn serve(listener: TcpListener, tls: Option<AdminTls>, router: Router) {
    let mut open = ConnectionTasks::new(MAX_CONNECTIONS, MAX_CONNECTIONS);
    let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1));
    loop {
        let Accepted {
            tcp,
            address,
            from_reserve,
        } = match accept(&listener).await {
            Ok(accepted) => {
                backoff.reset();
                accepted
            }
            // Out of file descriptors, or the peer was gone already: the listener itself is fine.
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the admin endpoint");
                tokio::time::sleep(backoff.next_delay()).await;
                continue;
            }
        };
        let limit = if from_reserve {
            RESERVE_TIMEOUT
        } else {
            CONNECTION_TIMEOUT
        };
        let connection = connection(tcp, address, tls.clone(), !from_reserve, router.clone());
        let limited = async move {
            if tokio::time::timeout(limit, connection).await.is_err() {
                let limit_seconds = limit.as_secs();
                tracing::debug!(
                    peer = %address,
                    limit_seconds,
                    "a connection to the admin endpoint was open too long; closing it"
                );
            }
        };
        open.spawn(address.ip(), limited);
    }
}

async fn connection(
    tcp: TcpStream,
    address: SocketAddr,
    tls: Option<AdminTls>,
    keep_alive: bool,
    router: Router,
) {
    let Some(AdminTls { tls, allowed }) = tls else {
        serve_http1(tcp, address, None, keep_alive, router).await;
        return;
    };
    let accept = TlsAcceptor::from(tls.admin()).accept(tcp);
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, accept).await {
        Ok(Ok(stream)) => {
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let refused = allowed.check(certificate).err().map(|why| format!("{why}\n"));
            serve_http1(stream, address, refused, keep_alive, router).await;
        }
        Ok(Err(error)) => {
            tracing::debug!(peer = %address, %error, "TLS handshake of the admin endpoint failed")
        }
        Err(_) => {
            tracing::debug!(peer = %address, "TLS handshake of the admin endpoint took longer than 3 s")
        }
    }
}

/// HTTP/1.1, the only one that scrapers and the kubelet need.
async fn serve_http1<S>(
    stream: S,
    address: SocketAddr,
    refused: Option<String>,
    keep_alive: bool,
    router: Router,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        let (refused, router) = (refused.clone(), router.clone());
        async move { answer(request, address, refused, router).await }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(keep_alive)
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(peer = %address, %error, "a connection to the admin endpoint ended");
    }
}

async fn answer(
    request: Request<Incoming>,
    address: SocketAddr,
    refused: Option<String>,
    router: Router,
) -> Result<Response, Infallible> {
    if let Some(why) = refused
        && !PROBES.contains(&request.uri().path())
    {
        return Ok((StatusCode::FORBIDDEN, why).into_response());
    }
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(ConnectInfo(address));
    router.oneshot(request).await
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    #[tokio::test]
    async fn a_connection_gets_a_file_descriptor_of_the_reserve_when_no_other_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || std::net::TcpStream::connect(address);
        let _clients = [connect().unwrap(), connect().unwrap()];
        assert!(!accept(&listener).await.unwrap().from_reserve);

        let all = getrlimit(Resource::Nofile);
        // Standard input has the only number below this.
        let none_left = Rlimit {
            current: Some(1),
            ..all
        };
        setrlimit(Resource::Nofile, none_left).unwrap();
        let accepted = accept(&listener).await.unwrap();
        let refused = connect().unwrap_err();
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, all).unwrap();

        assert!(accepted.from_reserve);
        assert!(is_local_limit(&refused), "{refused}");
        assert_eq!(limit, none_left);
    }
}
