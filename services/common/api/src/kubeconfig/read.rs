//! From YAML or JSON to a [`ShootAccess`].

use super::{ClientCertificate, Credentials, KubeconfigError, ShootAccess};
use crate::yaml::{self, Kind, Node, Pos};
use base64::Engine as _;
use http::Uri;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use secrecy::SecretString;
use std::collections::HashSet;

type Result<T> = std::result::Result<T, KubeconfigError>;

/// Reads a kubeconfig and picks its current context, or the only one.
///
/// # Errors
/// The first thing that is wrong or refused, by field; never a value of the file.
pub fn parse(bytes: &[u8]) -> Result<ShootAccess> {
    let root = match yaml::parse(bytes) {
        Ok(Some(root)) if !root.is_null() => root,
        Ok(_) => return refuse("kubeconfig", "is empty"),
        // The parser's message may quote the file.
        Err(error) => {
            let at = format!(
                "is not valid YAML at line {}, column {}",
                error.pos.line, error.pos.column
            );
            return refuse("kubeconfig", at);
        }
    };
    if !matches!(root.kind, Kind::Mapping(_)) {
        return refuse(
            "kubeconfig",
            "must be a mapping with clusters, contexts and users",
        );
    }
    if let Some(pos) = repeated_key(&root) {
        // Which of the two counts differs between libraries.
        return refuse(
            "kubeconfig",
            format!(
                "has the same field twice, at line {}, column {}",
                pos.line, pos.column
            ),
        );
    }
    let (context, context_path) = context(&root)?;
    let cluster_name = text(context, &context_path, "cluster")?;
    let Some(cluster_name) = cluster_name else {
        return refuse(join(&context_path, "cluster"), "is required");
    };
    let (cluster, cluster_path) = named(&root, "clusters", "cluster", cluster_name)?;
    let user = match text(context, &context_path, "user")? {
        Some(name) => Some(named(&root, "users", "user", name)?),
        None => None,
    };
    for field in REFUSED_IN_CLUSTER {
        field.check(cluster, &cluster_path)?;
    }
    let credentials = match user {
        Some((user, path)) => credentials(user, &path)?,
        None => Credentials::None,
    };
    Ok(ShootAccess {
        server: server(cluster, &cluster_path)?,
        ca_pem: certificates(cluster, &cluster_path, "certificate-authority-data")?,
        tls_server_name: server_name(cluster, &cluster_path)?,
        credentials,
    })
}

fn repeated_key(node: &Node) -> Option<Pos> {
    match &node.kind {
        Kind::Scalar(_) => None,
        Kind::Sequence(items) => items.iter().find_map(repeated_key),
        Kind::Mapping(entries) => {
            let mut seen = HashSet::new();
            let twice = entries.iter().find(|entry| !seen.insert(entry.key.as_str()));
            twice
                .map(|entry| entry.key_pos)
                .or_else(|| entries.iter().find_map(|entry| repeated_key(&entry.value)))
        }
    }
}

/// A field that is refused wherever it has a value.
struct Refused {
    field: &'static str,
    /// What to do instead.
    instead: &'static str,
}

const REFUSED_IN_CLUSTER: &[Refused] = &[
    Refused {
        field: "certificate-authority",
        instead: "files are not read; put the PEM into certificate-authority-data",
    },
    Refused {
        field: "proxy-url",
        instead: "proxies are not used; name the address of the kube-apiserver itself",
    },
    Refused {
        field: "insecure-skip-tls-verify",
        instead: "the server must be verified; set certificate-authority-data and, if need be, tls-server-name",
    },
];

const REFUSED_IN_USER: &[Refused] = &[
    Refused {
        field: "exec",
        instead: "programs are not run; use token or client-certificate-data",
    },
    Refused {
        field: "auth-provider",
        instead: "auth providers are not used; use token or client-certificate-data",
    },
    Refused {
        field: "tokenFile",
        instead: "files are not read; use token",
    },
    Refused {
        field: "client-certificate",
        instead: "files are not read; use client-certificate-data",
    },
    Refused {
        field: "client-key",
        instead: "files are not read; use client-key-data",
    },
    Refused {
        field: "username",
        instead: "basic authentication is not used; use token or client-certificate-data",
    },
    Refused {
        field: "password",
        instead: "basic authentication is not used; use token or client-certificate-data",
    },
    Refused {
        field: "as",
        instead: "impersonation is not used; give the user itself the permissions",
    },
    Refused {
        field: "as-uid",
        instead: "impersonation is not used; give the user itself the permissions",
    },
    Refused {
        field: "as-groups",
        instead: "impersonation is not used; give the user itself the permissions",
    },
    Refused {
        field: "as-user-extra",
        instead: "impersonation is not used; give the user itself the permissions",
    },
];

impl Refused {
    fn check(&self, node: &Node, path: &str) -> Result<()> {
        match node.get(self.field) {
            // Unset, or switched off.
            None => Ok(()),
            Some(value) if value.as_text() == Some("") || value.as_bool() == Some(false) => Ok(()),
            Some(_) => refuse(
                join(path, self.field),
                format!("is not supported: {}", self.instead),
            ),
        }
    }
}

/// The context in use, and the way to it.
fn context(root: &Node) -> Result<(&Node, String)> {
    if let Some(current) = text(root, "", "current-context")?.filter(|name| !name.is_empty()) {
        return named(root, "contexts", "context", current);
    }
    match entries(root, "contexts")? {
        [] => refuse("contexts", "must hold a context"),
        [only] => inner(only, "contexts[0]", "context"),
        _ => refuse("current-context", "is required when there are several contexts"),
    }
}

/// The entry of a list by its name: kubeconfigs keep `[{name: ..., cluster: {...}}, ...]`.
fn named<'n>(root: &'n Node, list: &str, field: &str, name: &str) -> Result<(&'n Node, String)> {
    let is_named = |(_, entry): &(usize, &Node)| entry.get("name").and_then(Node::as_text) == Some(name);
    let mut found = entries(root, list)?.iter().enumerate().filter(is_named);
    if let Some((index, entry)) = found.next() {
        if let Some((second, _)) = found.next() {
            return refuse(
                format!("{list}[{second}].name"),
                "is the same as that of an entry before",
            );
        }
        return inner(entry, &format!("{list}[{index}]"), field);
    }
    let referrer = if field == "context" {
        "current-context"
    } else {
        "the context"
    };
    refuse(list, format!("no entry has the name that {referrer} refers to"))
}

fn inner<'n>(entry: &'n Node, path: &str, field: &str) -> Result<(&'n Node, String)> {
    let path = join(path, field);
    match entry.get(field) {
        Some(node) if matches!(node.kind, Kind::Mapping(_)) => Ok((node, path)),
        _ => refuse(path, "must be a mapping"),
    }
}

fn entries<'n>(root: &'n Node, list: &str) -> Result<&'n [Node]> {
    match root.get(list).map(|node| &node.kind) {
        None => Ok(&[]),
        Some(Kind::Sequence(items)) => Ok(items),
        Some(_) => refuse(list, "must be a list"),
    }
}

fn text<'n>(node: &'n Node, path: &str, field: &str) -> Result<Option<&'n str>> {
    match node.get(field) {
        None => Ok(None),
        Some(value) => match value.as_text() {
            Some(text) => Ok(Some(text)),
            None => refuse(join(path, field), "must be a text"),
        },
    }
}

fn server(cluster: &Node, path: &str) -> Result<Uri> {
    let field = join(path, "server");
    let Some(server) = text(cluster, path, "server")? else {
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

fn server_name(cluster: &Node, path: &str) -> Result<Option<String>> {
    let Some(name) = text(cluster, path, "tls-server-name")?.filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    match rustls_pki_types::ServerName::try_from(name) {
        Ok(_) => Ok(Some(name.to_owned())),
        Err(_) => refuse(
            join(path, "tls-server-name"),
            "must be a DNS name or an IP address",
        ),
    }
}

fn credentials(user: &Node, path: &str) -> Result<Credentials> {
    for field in REFUSED_IN_USER {
        field.check(user, path)?;
    }
    let token = text(user, path, "token")?
        .map(str::trim)
        .filter(|token| !token.is_empty());
    let token = match token {
        Some(token) if token.bytes().all(|b| b.is_ascii_graphic()) => Some(SecretString::from(token)),
        Some(_) => {
            return refuse(
                join(path, "token"),
                "has characters that no HTTP header can carry",
            );
        }
        None => None,
    };
    let certificate = certificates(user, path, "client-certificate-data")?;
    let key = private_key(user, path)?;
    let certificate = match (certificate, key) {
        (Some(cert_pem), Some(key_pem)) => Some(ClientCertificate { cert_pem, key_pem }),
        (None, None) => None,
        (Some(_), None) => {
            return refuse(
                join(path, "client-key-data"),
                "is required beside client-certificate-data",
            );
        }
        (None, Some(_)) => {
            return refuse(
                join(path, "client-certificate-data"),
                "is required beside client-key-data",
            );
        }
    };
    Ok(match (token, certificate) {
        (None, None) => Credentials::None,
        (Some(token), None) => Credentials::Token(token),
        (None, Some(certificate)) => Credentials::ClientCertificate(certificate),
        (Some(token), Some(certificate)) => Credentials::TokenAndClientCertificate(token, certificate),
    })
}

/// Base64 of PEM with one certificate or more.
fn certificates(node: &Node, path: &str, field: &str) -> Result<Option<Vec<u8>>> {
    let Some(pem) = base64(node, path, field)? else {
        return Ok(None);
    };
    let mut sections = 0;
    for section in CertificateDer::pem_slice_iter(&pem) {
        if section.is_err() {
            return refuse(join(path, field), "is not PEM");
        }
        sections += 1;
    }
    if sections == 0 {
        refuse(join(path, field), "holds no certificate in PEM")
    } else {
        Ok(Some(pem))
    }
}

/// Base64 of PEM with a private key.
fn private_key(user: &Node, path: &str) -> Result<Option<SecretString>> {
    let Some(pem) = base64(user, path, "client-key-data")? else {
        return Ok(None);
    };
    if PrivateKeyDer::from_pem_slice(&pem).is_err() {
        return refuse(join(path, "client-key-data"), "holds no private key in PEM");
    }
    match String::from_utf8(pem) {
        Ok(pem) => Ok(Some(SecretString::from(pem))),
        Err(_) => refuse(join(path, "client-key-data"), "is not PEM"),
    }
}

fn base64(node: &Node, path: &str, field: &str) -> Result<Option<Vec<u8>>> {
    let Some(encoded) = text(node, path, field)?.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    // Folded YAML leaves line breaks or spaces in between.
    let compact: String = encoded.split_ascii_whitespace().collect();
    match base64::engine::general_purpose::STANDARD.decode(compact) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => refuse(join(path, field), "is not base64"),
    }
}

fn join(path: &str, field: &str) -> String {
    if path.is_empty() {
        field.to_owned()
    } else {
        format!("{path}.{field}")
    }
}

fn refuse<T>(field: impl Into<String>, reason: impl Into<String>) -> Result<T> {
    Err(KubeconfigError {
        field: field.into(),
        reason: reason.into(),
    })
}
