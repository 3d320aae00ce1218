//! The auth-provider `oidc` of a kubeconfig: its id-token is the bearer token, and its refresh-token gets the next one.
//! New tokens are kept in memory: unlike kubectl, nothing is written into the kubeconfig.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use form_urlencoded::{Serializer, byte_serialize};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt as _, Limited};
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use kube::config::Config;
use parking_lot::Mutex;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use tokio::runtime::Handle;
use watchdog_api::kubeconfig::{PluginCredentials, basic, bearer, proxy_of, token_of_file};
use watchdog_certificates::ServerTrust;
use watchdog_runtime::failure::chain;

use super::fields::{of_field, read_file};
use super::transport::{SeedEndpoint, header_of};
use super::trust::{self, host_authorities};

/// The issuer answers within this time.
const ISSUER_DEADLINE: Duration = Duration::from_secs(10);

/// The most bytes of an answer of the issuer.
const MAX_ANSWER: usize = 1 << 20;

/// A token that ends within this time counts as ended, as for client-go.
const SKEW: SignedDuration = SignedDuration::from_secs(10);

/// The provider of one user.
pub(super) struct OidcProvider {
    issuer: Uri,
    client_id: String,
    client_secret: SecretString,
    trust: ServerTrust,
    tokens: Mutex<OidcTokens>,
}

#[derive(Clone)]
struct OidcTokens {
    id_token: Option<SecretString>,
    refresh_token: Option<SecretString>,
}

#[derive(Deserialize)]
struct IssuerMetadata {
    token_endpoint: String,
}

#[derive(Deserialize)]
struct TokenAnswer {
    id_token: Option<String>,
    refresh_token: Option<String>,
}

#[derive(Deserialize)]
struct IdTokenClaims {
    exp: f64,
}

impl OidcProvider {
    /// Of the fields of `auth-provider.config`.
    pub(super) fn new(fields: &HashMap<String, String>) -> anyhow::Result<Self> {
        let field = |name: &str| fields.get(name).filter(|value| !value.is_empty());
        let required = |name: &str| field(name).with_context(|| format!("auth-provider oidc lacks {name}"));
        let issuer = required("idp-issuer-url")?.parse::<Uri>().ok();
        let issuer = issuer.filter(|issuer| issuer.scheme().is_some() && issuer.authority().is_some());
        let issuer =
            issuer.context("idp-issuer-url of auth-provider oidc is not an address such as https://host")?;
        let authorities = match (
            field("idp-certificate-authority-data"),
            field("idp-certificate-authority"),
        ) {
            (Some(data), _) => Some(
                STANDARD
                    .decode(data)
                    .ok()
                    .context("idp-certificate-authority-data is not base64")?,
            ),
            (None, Some(file)) => {
                Some(read_file(Path::new(file)).context("idp-certificate-authority cannot be read")?)
            }
            (None, None) => None,
        };
        let trust = match authorities {
            None => host_authorities().into(),
            Some(pem) => {
                let trusted = trust::of_pem(&pem);
                let trusted = trusted.context("the authority of auth-provider oidc cannot be read")?;
                Arc::new(trusted).into()
            }
        };
        Ok(Self {
            issuer,
            client_id: required("client-id")?.clone(),
            client_secret: field("client-secret").cloned().unwrap_or_default().into(),
            trust,
            tokens: Mutex::new(OidcTokens {
                id_token: field("id-token").cloned().map(SecretString::from),
                refresh_token: field("refresh-token").cloned().map(SecretString::from),
            }),
        })
    }

    /// The id-token, a new one if the last one has ended. Blocks while the issuer is asked.
    ///
    /// # Errors
    /// When there is none; never shows a token.
    pub(super) fn fetch(&self) -> anyhow::Result<PluginCredentials> {
        let held = self.tokens.lock().id_token.clone();
        if let Some(token) = held {
            let ends =
                end_of(&token).context("the id-token of auth-provider oidc is not a JWT; log in again")?;
            if ends > Timestamp::now() + SKEW {
                return credentials(token, ends);
            }
        }
        let refreshed = Handle::current().block_on(async {
            let refresh = tokio::time::timeout(ISSUER_DEADLINE, self.refresh());
            refresh
                .await
                .unwrap_or_else(|_| Err(anyhow!("the issuer did not answer within 10 s")))
        });
        let refreshed = refreshed.map_err(|error| {
            anyhow!(
                "the id-token of auth-provider oidc has expired and was not refreshed ({error:#}); log in again"
            )
        })?;
        let ends = end_of(&refreshed)
            .context("the issuer of auth-provider oidc sent an id-token that is not a JWT")?;
        credentials(refreshed, ends)
    }

    async fn refresh(&self) -> anyhow::Result<SecretString> {
        let tokens = self.tokens.lock().clone();
        let refresh_token = tokens.refresh_token.context("there is no refresh-token")?;
        let discovery = format!(
            "{}/.well-known/openid-configuration",
            self.issuer.path().trim_end_matches('/')
        );
        let request = Request::get(discovery).body(Body::empty())?;
        let (status, body) = self.send(&self.issuer, request).await?;
        ensure!(
            status.is_success(),
            "the issuer answered {status} when asked for its metadata"
        );
        let metadata: IssuerMetadata =
            serde_json::from_slice(&body).map_err(|_| anyhow!("the issuer's metadata cannot be read"))?;
        let endpoint: Uri = metadata
            .token_endpoint
            .parse()
            .map_err(|_| anyhow!("the issuer's token_endpoint is not an address"))?;
        let request = self.token_request(&endpoint, &refresh_token, true)?;
        let (mut status, mut body) = self.send(&endpoint, request).await?;
        // Issuers take the name of the client in one of two ways, and some refuse both at once.
        if !status.is_success() {
            let request = self.token_request(&endpoint, &refresh_token, false)?;
            (status, body) = self.send(&endpoint, request).await?;
        }
        ensure!(
            status.is_success(),
            "the issuer refused the refresh-token with {status}"
        );
        let answer: TokenAnswer =
            serde_json::from_slice(&body).map_err(|_| anyhow!("the answer of the issuer cannot be read"))?;
        let id_token = SecretString::from(answer.id_token.context("the issuer sent no id_token")?);
        *self.tokens.lock() = OidcTokens {
            id_token: Some(id_token.clone()),
            refresh_token: Some(answer.refresh_token.map_or(refresh_token, SecretString::from)),
        };
        Ok(id_token)
    }

    fn token_request(
        &self,
        endpoint: &Uri,
        refresh_token: &SecretString,
        in_header: bool,
    ) -> anyhow::Result<Request<Body>> {
        let path = endpoint
            .path_and_query()
            .map_or("/", http::uri::PathAndQuery::as_str);
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        let mut form = Serializer::new(String::new());
        form.append_pair("grant_type", "refresh_token");
        form.append_pair("refresh_token", refresh_token.expose_secret());
        let secret = self.client_secret.expose_secret();
        if in_header {
            let escaped = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
            let credentials = basic(&escaped(&self.client_id), &escaped(secret).into());
            request = request.header(AUTHORIZATION, header_of(&credentials)?);
        } else {
            form.append_pair("client_id", &self.client_id);
            if !secret.is_empty() {
                form.append_pair("client_secret", secret);
            }
        }
        Ok(request.body(Body::from(form.finish().into_bytes()))?)
    }

    /// Sends a request whose path is whole to the host of an address.
    async fn send(
        &self,
        address: &Uri,
        request: Request<Body>,
    ) -> anyhow::Result<(http::StatusCode, bytes::Bytes)> {
        let mut host = address.clone().into_parts();
        host.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        let server = Uri::from_parts(host)?;
        let proxy = proxy_of(&server, None, &|name| std::env::var(name).ok()).map_err(of_field)?;
        let mut config = Config::new(server);
        config.default_retry = false;
        let trust = self.trust.clone();
        let client = SeedEndpoint { config, trust, proxy }.client(None)?;
        let answer = client
            .send(request)
            .await
            .map_err(|error| anyhow!(chain(&error)))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await;
        let body = body.map_err(|error| anyhow!("its answer was cut off: {}", chain(&*error)))?;
        Ok((head.status, body.to_bytes()))
    }
}

fn credentials(token: SecretString, ends: Timestamp) -> anyhow::Result<PluginCredentials> {
    let token = token_of_file(token.expose_secret().as_bytes(), "id-token");
    let token = token.map_err(of_field).context("auth-provider oidc")?;
    Ok(PluginCredentials {
        authorization: Some(bearer(&token)),
        client_certificate: None,
        ends: Some(ends),
    })
}

/// When a JWT ends.
fn end_of(token: &SecretString) -> Option<Timestamp> {
    let payload = token.expose_secret().split('.').nth(1)?;
    let payload = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
    let IdTokenClaims { exp } = serde_json::from_slice(&payload).ok()?;
    let since = SignedDuration::try_from_secs_f64(exp).ok()?;
    Timestamp::from_duration(since).ok()
}
