//! Clients for the seed: from which file, through which proxy, with which credentials, and whom they trust. All of it
//! is as client-go and controller-runtime have it; the TLS is that of `watchdog_certificates`, by Go's rules.

mod answer_body;
mod exec_plugin;
mod fields;
mod oidc;
mod renewal;
mod send_while;
mod transport;
mod trust;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{Cluster, Config};
use watchdog_api::kubeconfig::{self, KubeconfigError, Proxy, SeedAccess, SeedUser, Variable};
use watchdog_api::text::printable_name;
use watchdog_certificates::ServerTrust;
use watchdog_runtime::failure::chain;

use exec_plugin::ExecPlugin;
use fields::{of_field, read_file};
use oidc::OidcProvider;
use renewal::CredentialSource;
pub(crate) use send_while::SendWhile;
use transport::SeedEndpoint;
pub use trust::{certified, host_authorities, readable_authorities};

/// A connection on which a request waits and nothing arrives for this time counts as dead.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// The option and the variable that name a kubeconfig.
const OPTION: &str = "--kubeconfig";
const VARIABLE: &str = "KUBECONFIG";

/// A client for the seed: from `kubeconfig`, else the files named by KUBECONFIG, else the Pod's service account, else
/// the file in the home directory, as every program with controller-runtime has it. Requests are not retried behind the
/// caller's back: every part has its own schedule.
///
/// # Errors
/// When none of them is there or the one that is cannot be used.
pub async fn connect(kubeconfig: Option<&Path>, user_agent: &str) -> anyhow::Result<kube::Client> {
    connect_in(kubeconfig, user_agent, &|name| std::env::var(name).ok()).await
}

async fn connect_in(
    kubeconfig: Option<&Path>,
    user_agent: &str,
    variable: Variable<'_>,
) -> anyhow::Result<kube::Client> {
    let is_set = |name| variable(name).is_some_and(|value| !value.is_empty());
    let is_named = kubeconfig.is_some() || is_set(VARIABLE);
    if is_named || !is_set("KUBERNETES_SERVICE_HOST") {
        return connect_by_file(kubeconfig, None, user_agent, variable).await;
    }
    match in_cluster(user_agent, variable).await {
        Err(_) if files(None, variable).1.iter().any(|file| file.exists()) => {
            connect_by_file(None, None, user_agent, variable).await
        }
        result => result,
    }
}

/// A client for the seed of a context, or of the current one: from `kubeconfig`, else the files named by KUBECONFIG,
/// else the file in the home directory, as kubectl has it outside of Pods. Everything else is as in [`connect`].
///
/// # Errors
/// When the file cannot be used; names where it comes from, and never shows what is in it.
pub async fn connect_by_file(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    user_agent: &str,
    variable: Variable<'_>,
) -> anyhow::Result<kube::Client> {
    let (origin, files) = files(kubeconfig, variable);
    let access = kubeconfig::of_seed(&files, context, &read_file);
    let access = access.map_err(|error| unusable(origin, &error))?;
    let proxy = proxy(&access.server, access.cluster.proxy_url.as_deref(), variable)?;
    let trust = trust_of(&access)?;
    let SeedAccess {
        server,
        client_certificate,
        cluster,
        user,
        ..
    } = access;
    let source = source_of(user, &cluster)?;
    let mut config = Config::new(server);
    config.tls_server_name = cluster.tls_server_name;
    finish(&mut config, user_agent)?;
    let endpoint = SeedEndpoint { config, trust, proxy };
    renewal::client(endpoint, client_certificate, source).await
}

/// The contexts of the files that [`connect_by_file`] reads.
///
/// # Errors
/// As [`connect_by_file`].
pub fn contexts(kubeconfig: Option<&Path>, variable: Variable<'_>) -> anyhow::Result<Vec<String>> {
    let (origin, files) = files(kubeconfig, variable);
    let contexts = kubeconfig::contexts(&files, &read_file);
    contexts.map_err(|error| unusable(origin, &error))
}

fn unusable(origin: Option<&str>, error: &KubeconfigError) -> anyhow::Error {
    match origin {
        None => anyhow!("there is no kubeconfig: set {OPTION} or {VARIABLE}"),
        Some(origin) => anyhow!(
            "the kubeconfig of {origin} cannot be used: {}: {}",
            error.field,
            error.reason
        ),
    }
}

/// The files to read and what names them; nothing does if there are none.
fn files(kubeconfig: Option<&Path>, variable: Variable<'_>) -> (Option<&'static str>, Vec<PathBuf>) {
    if let Some(path) = kubeconfig {
        return (Some(OPTION), vec![path.to_owned()]);
    }
    let named = variable(VARIABLE).unwrap_or_default();
    let named = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty());
    let named: Vec<_> = named.collect();
    if !named.is_empty() {
        return (Some(VARIABLE), named);
    }
    match variable("HOME").filter(|home| !home.is_empty()) {
        Some(home) => (
            Some("the home directory"),
            vec![Path::new(&home).join(".kube/config")],
        ),
        None => (None, Vec::new()),
    }
}

fn proxy(server: &http::Uri, url: Option<&str>, variable: Variable<'_>) -> anyhow::Result<Option<Proxy>> {
    kubeconfig::proxy_of(server, url, variable).map_err(of_field)
}

async fn in_cluster(user_agent: &str, variable: Variable<'_>) -> anyhow::Result<kube::Client> {
    let mut config = Config::incluster()
        .map_err(|error| anyhow!("cannot use the service account of the Pod: {}", chain(&error)))?;
    let proxy = proxy(&config.cluster_url, None, variable)?;
    let trust = match config.root_cert_file.take() {
        Some(path) => trust::of_file(path)?,
        None => host_authorities().into(),
    };
    let token = config.auth_info.token_file.take();
    let source = match token {
        Some(path) => renewal::token_file(path.into(), None),
        None => renewal::fixed(None),
    };
    finish(&mut config, user_agent)?;
    let endpoint = SeedEndpoint { config, trust, proxy };
    renewal::client(endpoint, None, source).await
}

fn trust_of(access: &SeedAccess) -> anyhow::Result<ServerTrust> {
    match &access.authorities {
        _ if access.cluster.insecure_skip_tls_verify == Some(true) => Ok(ServerTrust::Everybody),
        None => Ok(host_authorities().into()),
        Some(certificates) => {
            let trusted = readable_authorities(certificates.iter().cloned());
            let trusted =
                trusted.context("the authority of the kubeconfig holds no certificate that can be read")?;
            Ok(Arc::new(trusted).into())
        }
    }
}

fn source_of(user: SeedUser, cluster: &Cluster) -> anyhow::Result<CredentialSource> {
    Ok(match user {
        SeedUser::Fixed(authorization) => renewal::fixed(authorization),
        SeedUser::NameOnly(authorization) => {
            tracing::warn!(
                "the user of the kubeconfig has a username and no password; requests carry an empty one, as those of \
                 kubectl: add the password, or remove the username"
            );
            renewal::fixed(Some(authorization))
        }
        SeedUser::TokenFile(path, instead) => renewal::token_file(path, instead),
        SeedUser::Exec(exec) => {
            let plugin = ExecPlugin::new(*exec, cluster)?;
            CredentialSource::until_they_end(move || plugin.run())
        }
        SeedUser::Provider(provider) if provider.name == "oidc" => {
            let provider = OidcProvider::new(&provider.config)?;
            CredentialSource::until_they_end(move || provider.fetch())
        }
        SeedUser::Provider(provider) => {
            let name = printable_name(&provider.name);
            bail!("auth-provider {name} is not supported; use an exec plugin for it")
        }
    })
}

fn finish(config: &mut Config, user_agent: &str) -> anyhow::Result<()> {
    config.default_retry = false;
    // Counted from the last write, so that an idle connection of the pool does not spend it.
    config.read_timeout = Some(SILENCE_LIMIT);
    config.reset_reader_on_write = true;
    config
        .headers
        .push((USER_AGENT, HeaderValue::from_str(user_agent)?));
    Ok(())
}

#[cfg(test)]
mod tests;
