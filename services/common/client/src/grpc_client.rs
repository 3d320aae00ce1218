//! Channels to gRPC servers.

use std::future::Future;
use std::io;
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use crate::setup_error::SetupError;
use crate::tls::ClientTls;

/// TCP connect and TLS handshake together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server may wait for the client to speak first.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(1);

/// A silent connection is asked for a sign of life this often; see [`PING_TIMEOUT`].
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// A connection without a sign of life for this time is given up: a server that vanished without a goodbye is noticed
/// within 10 s.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// How servers are called.
#[derive(Debug, Clone)]
pub struct Dialer {
    /// Mutual TLS, or none for plaintext.
    pub tls: Option<ClientTls>,
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
    pub fn channel(&self, address: &str) -> Result<Channel, SetupError> {
        self.channel_over(address, async |address: String| {
            let tcp = TcpStream::connect(address).await?;
            tcp.set_nodelay(true)?;
            Ok(tcp)
        })
    }

    /// The same over connections that `connect` opens to `address`, for example through a port-forward.
    ///
    /// # Errors
    /// As [`Dialer::channel`].
    pub fn channel_over<C, F, S>(&self, address: &str, connect: C) -> Result<Channel, SetupError>
    where
        C: Fn(String) -> F + Clone + Send + 'static,
        F: Future<Output = io::Result<S>> + Send,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        // The scheme stays http: tonic would otherwise want its own TLS instead of the one below.
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| SetupError::Address(address.to_owned(), error))?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true);
        let name = ServerName::try_from(self.server_name.clone())
            .map_err(|error| SetupError::ServerName(self.server_name.clone(), error))?;
        let tls = self.tls.clone();
        let connector = tower::service_fn(move |uri: Uri| {
            let (tls, name, connect) = (tls.clone(), name.clone(), connect.clone());
            let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
            async move {
                let opened = async move { secured(connect(authority).await?, tls, name).await };
                // tonic's connect timeout covers only its own connector.
                tokio::time::timeout(CONNECT_TIMEOUT, opened)
                    .await?
                    .map(TokioIo::new)
            }
        });
        Ok(endpoint.connect_with_connector_lazy(connector))
    }
}

/// A connection of bytes.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

async fn secured<S: ByteStream + 'static>(
    connection: S,
    tls: Option<ClientTls>,
    name: ServerName<'static>,
) -> io::Result<Box<dyn ByteStream>> {
    let Some(tls) = tls else {
        return Ok(Box::new(connection));
    };
    let connector = tokio_rustls::TlsConnector::from(tls.current().await);
    let mut stream = connector.connect(name, connection).await?;
    // With TLS 1.3 the client is done before the server has judged its certificate. An HTTP/2 server speaks first, or
    // says here why it does not like the certificate; later on the reason would be lost in a connection that closes.
    if let Ok(refused) = tokio::time::timeout(FIRST_BYTE_TIMEOUT, stream.fill_buf()).await {
        refused?;
    }
    Ok(Box::new(stream))
}
