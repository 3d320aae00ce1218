//! Channels to the gRPC servers of other services and replicas.

use std::io;
use std::time::Duration;

use anyhow::Context as _;
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::AsyncBufReadExt as _;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use crate::tls::Tls;

/// TCP connect and TLS handshake together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server may wait for the client to speak first.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(1);

/// A silent connection is asked for a sign of life this often; see [`PING_TIMEOUT`].
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// A connection without a sign of life for this time is given up: a server that vanished without a goodbye is noticed
/// within 10 s.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// How the servers of other services are called.
#[derive(Debug, Clone)]
pub struct Dialer {
    /// Mutual TLS, or none for plaintext.
    pub tls: Option<Tls>,
    /// DNS name that the server's certificate must carry, whatever address it was reached under: replicas are called
    /// by their IP addresses, which no certificate names.
    pub server_name: String,
}

impl Dialer {
    /// A channel to `address` (host:port). It connects at the first call, again whenever the connection is lost, and
    /// each connection uses the newest certificates.
    ///
    /// # Errors
    /// When the address is not `host:port` or the server name is not a DNS name.
    pub fn channel(&self, address: &str) -> anyhow::Result<Channel> {
        // The scheme stays http: tonic would otherwise want its own TLS instead of the one below.
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .with_context(|| format!("{address:?} is not an address of the form host:port"))?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        let name = ServerName::try_from(self.server_name.clone())
            .with_context(|| format!("{:?} is not a DNS name", self.server_name))?;
        let tls = self.tls.clone();
        let connector = tower::service_fn(move |uri: Uri| {
            let (tls, name) = (tls.clone(), name.clone());
            async move {
                // tonic's connect timeout covers only its own connector.
                tokio::time::timeout(CONNECT_TIMEOUT, connect(uri, tls, name)).await?
            }
        });
        Ok(endpoint.connect_with_connector_lazy(connector))
    }
}

trait Io: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Io for T {}

async fn connect(uri: Uri, tls: Option<Tls>, name: ServerName<'static>) -> io::Result<TokioIo<Box<dyn Io>>> {
    let authority = uri
        .authority()
        .map(http::uri::Authority::as_str)
        .unwrap_or_default();
    let tcp = TcpStream::connect(authority).await?;
    tcp.set_nodelay(true)?;
    let Some(tls) = tls else {
        return Ok(TokioIo::new(Box::new(tcp)));
    };
    let connector = tokio_rustls::TlsConnector::from(tls.current().client.clone());
    let mut stream = connector.connect(name, tcp).await?;
    // With TLS 1.3 the client is done before the server has judged its certificate. An HTTP/2 server speaks first, or
    // says here why it does not like the certificate; later on the reason would be lost in a connection that closes.
    if let Ok(refused) = tokio::time::timeout(FIRST_BYTE_TIMEOUT, stream.fill_buf()).await {
        refused?;
    }
    Ok(TokioIo::new(Box::new(stream)))
}
