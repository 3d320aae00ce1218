//! The fields of a cluster and of a user, checked. Reasons never repeat a value.

use super::document::{Section, join};
use super::{Result, refuse};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use kube::config::{AuthInfo, Cluster};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretString};

/// The address of the server.
pub(super) fn server(cluster: &Section<Cluster>, allow_http: bool) -> Result<Uri> {
    let field = join(&cluster.path, "server");
    let Some(server) = &cluster.value.server else {
        return refuse(field, "is required");
    };
    let Ok(uri) = server.parse::<Uri>() else {
        return refuse(field, "is not an address such as https://host:443");
    };
    match (uri.scheme_str(), uri.authority()) {
        (Some("https" | "http"), Some(authority)) if authority.as_str().contains('@') => {
            refuse(field, "must not hold credentials; put them into the user")
        }
        (Some("https" | "http"), Some(_)) if uri.query().is_some() => refuse(field, "must not have a query"),
        (Some("http"), Some(_)) if !allow_http => {
            refuse(field, "must be https: credentials are not sent in the clear")
        }
        (Some("https" | "http"), Some(_)) => Ok(uri),
        _ => refuse(
            field,
            "must be an address such as https://host:443, with https:// before the host",
        ),
    }
}

/// The name in the server's certificate, where it is not the host of the address.
pub(super) fn server_name(cluster: &Section<Cluster>) -> Result<Option<ServerName<'static>>> {
    let Some(name) = &cluster.value.tls_server_name else {
        return Ok(None);
    };
    match ServerName::try_from(name.as_str()) {
        Ok(name) => Ok(Some(name.to_owned())),
        Err(_) => refuse(
            join(&cluster.path, "tls-server-name"),
            "must be a DNS name or an IP address",
        ),
    }
}

/// The token, without white space around it, as client-go has it.
pub(super) fn token(user: &Section<AuthInfo>) -> Result<Option<SecretString>> {
    let token = user.value.token.as_ref();
    let token = token.map(|token| header_text(token.expose_secret(), join(&user.path, "token")));
    Ok(token
        .transpose()?
        .filter(|token| !token.expose_secret().is_empty()))
}

/// Text for an HTTP header, trimmed.
pub(super) fn header_text(text: &str, field: String) -> Result<SecretString> {
    let text = text.trim();
    if !text.bytes().all(|b| b.is_ascii_graphic()) {
        return refuse(field, "has characters that no HTTP header can carry");
    }
    Ok(SecretString::from(text))
}

/// Base64 of PEM with one certificate or more.
pub(super) fn certificates(encoded: &str, field: &str) -> Result<Vec<CertificateDer<'static>>> {
    certificates_of_pem(&decoded(encoded, field)?, field)
}

/// PEM with one certificate or more.
pub(super) fn certificates_of_pem(pem: &[u8], field: &str) -> Result<Vec<CertificateDer<'static>>> {
    match CertificateDer::pem_slice_iter(pem).collect::<std::result::Result<Vec<_>, _>>() {
        Err(_) => refuse(field, "is not PEM"),
        Ok(certificates) if certificates.is_empty() => refuse(field, "holds no certificate in PEM"),
        Ok(certificates) => Ok(certificates),
    }
}

/// Base64 of PEM with a private key.
pub(super) fn private_key(encoded: &str, field: &str) -> Result<PrivateKeyDer<'static>> {
    private_key_of_pem(&Zeroizing::new(decoded(encoded, field)?), field)
}

/// PEM with a private key.
pub(super) fn private_key_of_pem(pem: &[u8], field: &str) -> Result<PrivateKeyDer<'static>> {
    match PrivateKeyDer::from_pem_slice(pem) {
        Ok(key) => Ok(key),
        Err(_) => refuse(field, "holds no private key in PEM"),
    }
}

/// The bytes behind base64.
pub(super) fn decoded(encoded: &str, field: &str) -> Result<Vec<u8>> {
    // Folded YAML leaves line breaks or spaces in between.
    let compact: String = encoded.split_ascii_whitespace().collect();
    match STANDARD.decode(compact) {
        Ok(bytes) => Ok(bytes),
        Err(_) => refuse(field, "is not base64"),
    }
}

/// Bytes as a kubeconfig holds them.
pub(super) fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// A certificate needs its key, and a key its certificate.
pub(super) fn pair<C, K>(certificate: Option<C>, key: Option<K>, path: &str) -> Result<Option<(C, K)>> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        (Some(_), None) => refuse(
            join(path, "client-key-data"),
            "is required beside client-certificate-data",
        ),
        (None, Some(_)) => refuse(
            join(path, "client-certificate-data"),
            "is required beside client-key-data",
        ),
    }
}
