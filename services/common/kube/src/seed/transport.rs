//! Connections to the seed: TCP, a proxy, TLS.

use std::error::Error;
use std::fmt;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::{Body, ConfigExt as _};
use kube::config::{AuthInfo, Config};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::TcpStream;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, ServiceExt as _};
use watchdog_api::kubeconfig::{ClientCertificate, Proxy};
use watchdog_certificates::{ServerTrust, client_config};

/// The parts that all clients of one seed have in common.
pub(super) struct SeedEndpoint {
    /// With the credentials that are no certificate.
    pub(super) config: Config,
    pub(super) trust: ServerTrust,
    pub(super) proxy: Option<Proxy>,
}

impl SeedEndpoint {
    /// A client with this token, if any, and this certificate.
    pub(super) fn client(
        &self,
        token: Option<&SecretString>,
        certificate: Option<&ClientCertificate>,
    ) -> anyhow::Result<kube::Client> {
        let mut config = self.config.clone();
        if let Some(authorization) = authorization(&config.auth_info, token)? {
            config.headers.push((AUTHORIZATION, authorization));
        }
        let certificate = certificate.map(|pair| (pair.chain.clone(), pair.key.clone_key()));
        let tls = client_config(self.trust.clone(), certificate)?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        let connector = match &self.proxy {
            None => SeedConnector::new(tcp.map_response(MaybeHttpsStream::Http).map_err(Into::into)),
            Some(proxy) => through(proxy, tcp, &tls)?,
        };
        over(connector, &config, tls)
    }
}

/// One type for all ways to the seed: a program has the code of an HTTP client once for each.
type SeedConnector = BoxCloneSyncService<Uri, MaybeHttpsStream<TokioIo<TcpStream>>, BoxError>;

fn through(proxy: &Proxy, tcp: HttpConnector, tls: &ClientConfig) -> anyhow::Result<SeedConnector> {
    let source = proxy.source;
    let failed = move |error: BoxError| BoxError::from(ProxyFailed { source, error });
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
    let to_proxy = https(tcp, tls.clone(), None)?;
    let tunnel = tunnel(proxy, to_proxy)?;
    Ok(SeedConnector::new(
        tunnel.map_err(move |error| failed(error.into())),
    ))
}

fn tunnel<C>(proxy: &Proxy, connector: C) -> anyhow::Result<Tunnel<C>> {
    let tunnel = Tunnel::new(proxy.address.clone(), connector);
    let Some((name, password)) = &proxy.user else {
        return Ok(tunnel);
    };
    let credentials = HeaderValue::try_from(basic(name, password))
        .with_context(|| format!("the credentials of {} cannot be sent", proxy.source))?;
    Ok(tunnel.with_auth(credentials))
}

fn basic(name: &str, password: &SecretString) -> String {
    let credentials = STANDARD.encode(format!("{name}:{}", password.expose_secret()));
    format!("Basic {credentials}")
}

/// The header with the credentials that are no certificate. kube's own layer for it brings JSONPath and regular
/// expressions into every program, for plugins that are run elsewhere here.
fn authorization(user: &AuthInfo, token: Option<&SecretString>) -> anyhow::Result<Option<HeaderValue>> {
    let text = match (&user.username, &user.password, token.or(user.token.as_ref())) {
        (Some(name), Some(password), _) => basic(name, password),
        (_, _, Some(token)) => format!("Bearer {}", token.expose_secret()),
        // As client-go has it.
        (Some(name), None, None) => basic(name, &SecretString::default()),
        (None, _, None) => return Ok(None),
    };
    let value = HeaderValue::try_from(text);
    let mut value = value.context("the token has characters that no HTTP header can carry")?;
    value.set_sensitive(true);
    Ok(Some(value))
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

/// The layers that kube itself puts above a connection, without retries and without a trace of each request.
fn over(connector: SeedConnector, config: &Config, tls: ClientConfig) -> anyhow::Result<kube::Client> {
    let mut connector = TimeoutConnector::new(https(connector, tls, config.tls_server_name.as_deref())?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(kube::Client::new(service, config.default_namespace.clone()))
}

/// There is no way through a proxy.
#[derive(Debug)]
struct ProxyFailed {
    source: &'static str,
    error: BoxError,
}

impl fmt::Display for ProxyFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, .. } = self;
        match *source {
            "proxy-url" => {
                f.write_str("no connection through the proxy of proxy-url; correct it in the kubeconfig")
            }
            _ => write!(
                f,
                "no connection through the proxy of {source}; correct it, or add the seed's host to NO_PROXY"
            ),
        }
    }
}

impl Error for ProxyFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_before_a_renewed_token_and_that_before_the_one_that_is_written_down() {
        let secret = |text: &str| Some(SecretString::from(text));
        let user = |name: Option<&str>, password, token| AuthInfo {
            username: name.map(str::to_owned),
            password,
            token,
            ..AuthInfo::default()
        };
        let renewed = secret("new");
        for (user, renewed, expected) in [
            (user(None, None, None), None, None),
            (user(None, None, secret("old")), None, Some("Bearer old")),
            (
                user(None, None, secret("old")),
                renewed.as_ref(),
                Some("Bearer new"),
            ),
            (user(None, None, None), renewed.as_ref(), Some("Bearer new")),
            (
                user(Some("a"), secret("b"), secret("old")),
                renewed.as_ref(),
                Some("Basic YTpi"),
            ),
            (user(Some("a"), None, secret("old")), None, Some("Bearer old")),
            (user(Some("a"), None, None), None, Some("Basic YTo=")),
            (user(None, secret("b"), None), None, None),
        ] {
            let header = authorization(&user, renewed).unwrap();
            assert_eq!(header.as_ref().map(|header| header.to_str().unwrap()), expected);
            assert!(header.is_none_or(|header| header.is_sensitive()));
        }
        let error = authorization(&user(None, None, secret("hunter2\n")), None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the token has characters that no HTTP header can carry"
        );
    }
}
