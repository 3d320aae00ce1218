//! Connections to the seed: TCP, a proxy, TLS.

use anyhow::Context as _;
use futures::TryFutureExt as _;
use http::{HeaderValue, Request, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::ConfigExt as _;
use kube::config::Config;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::TcpStream;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, ServiceExt as _};
use watchdog_api::kubeconfig::{ClientCertificate, Proxy, basic};
use watchdog_certificates::{ServerTrust, client_config};

use super::answer_body::AnswerBody;
use super::send_while::TimedBody;
use super::trust::certified;

/// The parts that all clients of one seed have in common.
pub(super) struct SeedEndpoint {
    pub(super) config: Config,
    pub(super) trust: ServerTrust,
    pub(super) proxy: Option<Proxy>,
}

impl SeedEndpoint {
    /// A client with this certificate.
    pub(super) fn client(&self, certificate: Option<&ClientCertificate>) -> anyhow::Result<kube::Client> {
        let certified = certificate.map(certified).transpose()?;
        let tls = client_config(self.trust.clone(), certified)?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        let connector = match &self.proxy {
            None => SeedConnector::new(tcp.map_response(MaybeHttpsStream::Http).map_err(Into::into)),
            Some(proxy) => through(proxy, tcp, &tls)?,
        };
        over(connector, &self.config, tls)
    }
}

/// One type for all ways to the seed: a program has the code of an HTTP client once for each.
type SeedConnector = BoxCloneSyncService<Uri, MaybeHttpsStream<TokioIo<TcpStream>>, BoxError>;

fn through(proxy: &Proxy, tcp: HttpConnector, tls: &ClientConfig) -> anyhow::Result<SeedConnector> {
    let named_by = proxy.source;
    let remedy = match named_by {
        "proxy-url" => "correct it in the kubeconfig",
        _ => "correct it, or add the seed's host to NO_PROXY",
    };
    let failed = move |error: BoxError| {
        BoxError::from(ProxyFailed {
            named_by,
            remedy,
            error,
        })
    };
    if proxy.address.scheme_str() == Some("socks5") {
        let mut socks = SocksV5::new(proxy.address.clone(), tcp);
        if let Some((name, password)) = &proxy.user {
            socks = socks.with_auth(name.clone(), password.expose_secret().to_owned());
        }
        let socks = socks.map_response(MaybeHttpsStream::Http);
        return Ok(SeedConnector::new(
            socks.map_err(move |error| failed(error.into())),
        ));
    }
    let mut tunnel = Tunnel::new(proxy.address.clone(), https(tcp, tls.clone(), None)?);
    if let Some((name, password)) = &proxy.user {
        tunnel = tunnel.with_auth(header_of(&basic(name, password))?);
    }
    Ok(SeedConnector::new(
        tunnel.map_err(move |error| failed(error.into())),
    ))
}

fn https<C>(connector: C, tls: ClientConfig, server_name: Option<&str>) -> anyhow::Result<HttpsConnector<C>> {
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = server_name {
        let name = ServerName::try_from(name.to_owned())
            .context("tls-server-name is not a DNS name or IP address")?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(builder.enable_http1().wrap_connector(connector))
}

/// The layers that kube itself puts above a connection, without retries and without a trace of each request. Its layer
/// for credentials brings JSONPath and regular expressions into every program, for plugins that are run elsewhere here.
fn over(connector: SeedConnector, config: &Config, tls: ClientConfig) -> anyhow::Result<kube::Client> {
    let mut connector = TimeoutConnector::new(https(connector, tls, config.tls_server_name.as_deref())?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let http: HttpClient<_, TimedBody> = HttpClient::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .map_request(TimedBody::wrap)
        .service_fn(move |request: Request<TimedBody>| {
            let wrap = AnswerBody::wrapper(&request);
            http.request(request).map_ok(wrap)
        });
    Ok(kube::Client::new(service, config.default_namespace.clone()))
}

/// There is no way through a proxy.
#[derive(Debug, thiserror::Error)]
#[error("no connection through the proxy of {named_by}; {remedy}")]
struct ProxyFailed {
    named_by: &'static str,
    remedy: &'static str,
    #[source]
    error: BoxError,
}

/// A header that nobody logs.
pub(super) fn header_of(credentials: &SecretString) -> anyhow::Result<HeaderValue> {
    let header = HeaderValue::try_from(credentials.expose_secret());
    let mut header = header.context("the credentials have characters that no HTTP header can carry")?;
    header.set_sensitive(true);
    Ok(header)
}
