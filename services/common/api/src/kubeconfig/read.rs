//! From YAML or JSON, decoded into kube's own types, to a [`ShootAccess`].

use super::{ClientCertificate, Credentials, KubeconfigError, ShootAccess};
use crate::yaml;
use base64::Engine as _;
use http::Uri;
use kube::config::{AuthInfo, Cluster, Context, Kubeconfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_path_to_error::{Path, Segment, Track};
use serde_saphyr::Error as YamlError;
use std::fmt::Display;

type Result<T> = std::result::Result<T, KubeconfigError>;

/// Reads a kubeconfig and picks its current context, or the only one.
///
/// # Errors
/// The first thing that is wrong or refused, by field; never a value of the file.
pub fn parse(bytes: &[u8]) -> Result<ShootAccess> {
    let config = decode(bytes)?;
    let context = context(&config)?;
    let clusters = config.clusters.iter().map(|c| (&c.name, &c.cluster));
    let (cluster, cluster_path) = named("clusters", "cluster", clusters, &context.cluster, "the context")?;
    refuse_unsafe_cluster(cluster, &cluster_path)?;
    let credentials = match &context.user {
        None => Credentials::default(),
        Some(name) => {
            let users = config.auth_infos.iter().map(|u| (&u.name, &u.auth_info));
            let (user, path) = named("users", "user", users, name, "the context")?;
            refuse_unsafe_user(user, &path)?;
            credentials(user, &path)?
        }
    };
    Ok(ShootAccess {
        server: server(cluster, &cluster_path)?,
        authorities: certificates(
            cluster.certificate_authority_data.as_deref(),
            &join(&cluster_path, "certificate-authority-data"),
        )?,
        tls_server_name: server_name(cluster, &cluster_path)?,
        credentials,
    })
}

fn decode(bytes: &[u8]) -> Result<Kubeconfig> {
    let text = yaml::text(bytes)
        .or_else(|error| refuse("kubeconfig", located(&error.message, error.line, error.column)))?;
    let mut track = Track::new();
    let decoded = serde_saphyr::with_deserializer_from_str_with_options(text, yaml::options(), |yaml| {
        Option::<Kubeconfig>::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track))
    });
    match decoded {
        Ok(Some(config)) => Ok(config),
        Ok(None) => refuse("kubeconfig", "is empty"),
        Err(error) => refuse(known_path(&track.path()), undecodable(&error)),
    }
}

/// The way to where decoding stopped, as far as every kubeconfig has it: other keys may be anything.
fn known_path(path: &Path) -> String {
    const KEYS: [&str; 7] = [
        "current-context",
        "contexts",
        "context",
        "clusters",
        "cluster",
        "users",
        "user",
    ];
    let is_known = |segment: &&Segment| match segment {
        Segment::Map { key } => KEYS.contains(&key.as_str()),
        Segment::Seq { .. } => true,
        _ => false,
    };
    let known: Vec<_> = path
        .iter()
        .take_while(is_known)
        .map(ToString::to_string)
        .collect();
    match known.join(".").replace(".[", "[") {
        path if path.is_empty() => "kubeconfig".to_owned(),
        path => path,
    }
}

/// Why and where a file cannot be decoded. What the decoder says is not shown, because it quotes the file.
fn undecodable(error: &YamlError) -> String {
    let what = match yaml::cause(error) {
        // Which of the two counts differs between libraries.
        YamlError::DuplicateMappingKey { .. } => "has the same field twice".to_owned(),
        YamlError::SerdeMissingField { field, .. } => format!("lacks the field {field}"),
        YamlError::Unexpected { .. }
        | YamlError::SerdeInvalidType { .. }
        | YamlError::NullIntoString { .. } => "has a value of the wrong type".to_owned(),
        YamlError::Budget { .. } | YamlError::AliasReplayLimitExceeded { .. } => {
            "is too large or too deep".to_owned()
        }
        _ => "is not valid YAML".to_owned(),
    };
    let at = error.location().unwrap_or(serde_saphyr::Location::UNKNOWN);
    located(&what, at.line(), at.column())
}

fn located(what: &str, line: impl Display, column: impl Display) -> String {
    format!("{what} at line {line}, column {column}")
}

/// The context in use.
fn context(config: &Kubeconfig) -> Result<&Context> {
    let current = given(config.current_context.as_deref());
    let name = match (current, config.contexts.as_slice()) {
        (Some(current), _) => current,
        (None, [only]) => &only.name,
        (None, []) => return refuse("contexts", "must hold a context"),
        (None, _) => return refuse("current-context", "is required when there are several contexts"),
    };
    let contexts = config.contexts.iter().map(|c| (&c.name, &c.context));
    Ok(named("contexts", "context", contexts, name, "current-context")?.0)
}

/// The entry of a list by its name, and the way to it: kubeconfigs keep `[{name: ..., cluster: {...}}, ...]`.
fn named<'c, T: 'c>(
    list: &str,
    field: &str,
    entries: impl Iterator<Item = (&'c String, &'c Option<T>)>,
    name: &str,
    referrer: &str,
) -> Result<(&'c T, String)> {
    let mut found = entries.enumerate().filter(|(_, (own, _))| *own == name);
    let Some((index, (_, entry))) = found.next() else {
        return refuse(list, format!("no entry has the name that {referrer} refers to"));
    };
    if let Some((second, _)) = found.next() {
        return refuse(
            format!("{list}[{second}].name"),
            "is the same as that of an entry before",
        );
    }
    let path = format!("{list}[{index}].{field}");
    match entry {
        Some(entry) => Ok((entry, path)),
        None => refuse(path, "must be a mapping"),
    }
}

fn server(cluster: &Cluster, path: &str) -> Result<Uri> {
    let field = join(path, "server");
    let Some(server) = &cluster.server else {
        return refuse(field, "is required");
    };
    let Ok(uri) = server.parse::<Uri>() else {
        return refuse(field, "is not an address such as https://host:443");
    };
    match (uri.scheme_str(), uri.authority()) {
        (Some("https"), Some(authority)) if authority.as_str().contains('@') => {
            refuse(field, "must not hold credentials; put them into the user")
        }
        (Some("https"), Some(_)) if uri.query().is_some() => refuse(field, "must not have a query"),
        (Some("https"), Some(_)) => Ok(uri),
        (Some("http"), _) => refuse(field, "must be https: credentials are not sent in the clear"),
        _ => refuse(field, "must be an address such as https://host:443"),
    }
}

fn server_name(cluster: &Cluster, path: &str) -> Result<Option<ServerName<'static>>> {
    let Some(name) = given(cluster.tls_server_name.as_deref()) else {
        return Ok(None);
    };
    match ServerName::try_from(name) {
        Ok(name) => Ok(Some(name.to_owned())),
        Err(_) => refuse(
            join(path, "tls-server-name"),
            "must be a DNS name or an IP address",
        ),
    }
}

fn credentials(user: &AuthInfo, path: &str) -> Result<Credentials> {
    let token = given(exposed(&user.token).map(str::trim));
    if token.is_some_and(|token| !token.bytes().all(|b| b.is_ascii_graphic())) {
        return refuse(
            join(path, "token"),
            "has characters that no HTTP header can carry",
        );
    }
    let (cert_field, key_field) = (
        join(path, "client-certificate-data"),
        join(path, "client-key-data"),
    );
    let chain = certificates(user.client_certificate_data.as_deref(), &cert_field)?;
    let key = private_key(exposed(&user.client_key_data), &key_field)?;
    let client_certificate = match (chain, key) {
        (Some(chain), Some(key)) => Some(ClientCertificate { chain, key }),
        (None, None) => None,
        (Some(_), None) => return refuse(key_field, "is required beside client-certificate-data"),
        (None, Some(_)) => return refuse(cert_field, "is required beside client-key-data"),
    };
    Ok(Credentials {
        token: token.map(SecretString::from),
        client_certificate,
    })
}

/// Base64 of PEM with one certificate or more.
fn certificates(encoded: Option<&str>, field: &str) -> Result<Option<Vec<CertificateDer<'static>>>> {
    let Some(pem) = base64(encoded, field)? else {
        return Ok(None);
    };
    match CertificateDer::pem_slice_iter(&pem).collect::<std::result::Result<Vec<_>, _>>() {
        Err(_) => refuse(field, "is not PEM"),
        Ok(certificates) if certificates.is_empty() => refuse(field, "holds no certificate in PEM"),
        Ok(certificates) => Ok(Some(certificates)),
    }
}

/// Base64 of PEM with a private key.
fn private_key(encoded: Option<&str>, field: &str) -> Result<Option<PrivateKeyDer<'static>>> {
    let Some(pem) = base64(encoded, field)?.map(Zeroizing::new) else {
        return Ok(None);
    };
    match PrivateKeyDer::from_pem_slice(&pem) {
        Ok(key) => Ok(Some(key)),
        Err(_) => refuse(field, "holds no private key in PEM"),
    }
}

fn base64(encoded: Option<&str>, field: &str) -> Result<Option<Vec<u8>>> {
    let Some(encoded) = given(encoded) else {
        return Ok(None);
    };
    // Folded YAML leaves line breaks or spaces in between.
    let compact: String = encoded.split_ascii_whitespace().collect();
    match base64::engine::general_purpose::STANDARD.decode(compact) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => refuse(field, "is not base64"),
    }
}

/// Refuses fields of a cluster that would read files, use a proxy or skip verification.
fn refuse_unsafe_cluster(cluster: &Cluster, path: &str) -> Result<()> {
    const FILES: &str = "files are not read; put the PEM into certificate-authority-data";
    const PROXIES: &str = "proxies are not used; name the address of the kube-apiserver itself";
    const INSECURE: &str =
        "the server must be verified; set certificate-authority-data and, if need be, tls-server-name";
    let insecure = cluster.insecure_skip_tls_verify == Some(true);
    let fields = [
        (
            "certificate-authority",
            is_given(&cluster.certificate_authority),
            FILES,
        ),
        ("proxy-url", is_given(&cluster.proxy_url), PROXIES),
        ("insecure-skip-tls-verify", insecure, INSECURE),
    ];
    refuse_fields(path, &fields)
}

/// Refuses fields of a user that would run programs, read files or impersonate.
fn refuse_unsafe_user(user: &AuthInfo, path: &str) -> Result<()> {
    const EXEC: &str = "programs are not run; use token or client-certificate-data";
    const PROVIDERS: &str = "auth providers are not used; use token or client-certificate-data";
    const TOKEN_FILES: &str = "files are not read; use token";
    const CERTIFICATE_FILES: &str = "files are not read; use client-certificate-data";
    const KEY_FILES: &str = "files are not read; use client-key-data";
    const BASIC: &str = "basic authentication is not used; use token or client-certificate-data";
    const IMPERSONATION: &str = "impersonation is not used; give the user itself the permissions";
    let password = given(exposed(&user.password)).is_some();
    let fields = [
        ("exec", user.exec.is_some(), EXEC),
        ("auth-provider", user.auth_provider.is_some(), PROVIDERS),
        ("tokenFile", is_given(&user.token_file), TOKEN_FILES),
        (
            "client-certificate",
            is_given(&user.client_certificate),
            CERTIFICATE_FILES,
        ),
        ("client-key", is_given(&user.client_key), KEY_FILES),
        ("username", is_given(&user.username), BASIC),
        ("password", password, BASIC),
        ("as", is_given(&user.impersonate), IMPERSONATION),
        ("as-uid", is_given(&user.impersonate_uid), IMPERSONATION),
        ("as-groups", user.impersonate_groups.is_some(), IMPERSONATION),
        (
            "as-user-extra",
            user.impersonate_user_extra.is_some(),
            IMPERSONATION,
        ),
    ];
    refuse_fields(path, &fields)
}

/// Refuses the first field that is set; each comes with what to do instead.
fn refuse_fields(path: &str, fields: &[(&str, bool, &str)]) -> Result<()> {
    match fields.iter().find(|(_, is_set, _)| *is_set) {
        None => Ok(()),
        Some((field, _, instead)) => refuse(join(path, field), format!("is not supported: {instead}")),
    }
}

fn is_given(text: &Option<String>) -> bool {
    given(text.as_deref()).is_some()
}

fn given(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

fn exposed(secret: &Option<SecretString>) -> Option<&str> {
    secret.as_ref().map(ExposeSecret::expose_secret)
}

fn join(path: &str, field: &str) -> String {
    format!("{path}.{field}")
}

fn refuse<T>(field: impl Into<String>, reason: impl Into<String>) -> Result<T> {
    Err(KubeconfigError {
        field: field.into(),
        reason: reason.into(),
    })
}
