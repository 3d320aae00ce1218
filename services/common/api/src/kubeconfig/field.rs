//! The fields of a cluster and of a user, checked. Reasons never repeat a value.

use super::document::{FilePart, join};
use super::{ClientCertificate, Result, refuse};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use http::Uri;
use http::uri::Authority;
use kube::config::{AuthInfo, Cluster};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use secrecy::{ExposeSecret, SecretString};

/// Go's decoder does not look at the bits behind the last byte.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// The address of the server.
pub(super) fn server(cluster: &FilePart<Cluster>, allow_http: bool) -> Result<Uri> {
    let field = join(&cluster.path, "server");
    let Some(server) = &cluster.value.server else {
        return refuse(field, "is required");
    };
    if !server.is_ascii() {
        return refuse(field, "must be ASCII; write an internationalized name as xn--…");
    }
    let Ok(uri) = server.parse::<Uri>() else {
        return refuse(field, "is not an address such as https://host:443");
    };
    let reason = match (uri.scheme_str(), uri.authority()) {
        (Some(scheme @ ("https" | "http")), Some(authority)) => {
            if authority.as_str().contains('@') {
                "must not hold credentials; put them into the user"
            } else if authority.host().contains('%') {
                "must not have the zone of an IPv6 address; use an address or a name without one"
            } else if !has_valid_port(authority) {
                "must have a port between 1 and 65535, or none"
            } else if uri.query().is_some() {
                "must not have a query"
            } else if scheme == "http" && !allow_http {
                "must be https: credentials are not sent in the clear"
            } else {
                return Ok(uri);
            }
        }
        _ => "must be an address such as https://host:443, with https:// before the host",
    };
    refuse(field, reason)
}

/// False if what follows the host is no port. The parser of addresses ignores it then.
pub(super) fn has_valid_port(authority: &Authority) -> bool {
    let address = authority.as_str().rsplit('@').next().unwrap_or_default();
    match address.strip_prefix(authority.host()) {
        None | Some("" | ":") => true,
        Some(_) => authority.port_u16().is_some_and(|port| port > 0),
    }
}

/// The name in the server's certificate, where it is not the host of the address.
pub(super) fn server_name(cluster: &FilePart<Cluster>) -> Result<Option<ServerName<'static>>> {
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
pub(super) fn token(user: &FilePart<AuthInfo>) -> Result<Option<SecretString>> {
    let token = user.value.token.as_ref();
    let token = token.map(|token| header_text(token.expose_secret(), join(&user.path, "token")));
    Ok(token
        .transpose()?
        .filter(|token| !token.expose_secret().is_empty()))
}

/// The longest token: servers written in Go take this many bytes in all headers of a request.
const MOST_TOKEN_BYTES: usize = 1 << 20;

/// A token for an HTTP header, trimmed.
pub(super) fn header_text(text: &str, field: String) -> Result<SecretString> {
    let text = text.trim();
    if text.len() > MOST_TOKEN_BYTES {
        let length = text.len();
        let reason = format!(
            "has {length} bytes, and API servers take a token of at most {MOST_TOKEN_BYTES}; keep the token alone there"
        );
        return refuse(field, reason);
    }
    if !text.bytes().all(|b| b.is_ascii_graphic()) {
        return refuse(field, "has characters that no HTTP header can carry");
    }
    Ok(SecretString::from(text))
}

/// The `Authorization` of a bearer token.
#[must_use]
pub fn bearer(token: &SecretString) -> SecretString {
    format!("Bearer {}", token.expose_secret()).into()
}

/// The `Authorization` of a name and a password.
#[must_use]
pub fn basic(name: &str, password: &SecretString) -> SecretString {
    let credentials = LENIENT.encode(format!("{name}:{}", password.expose_secret()));
    format!("Basic {credentials}").into()
}

/// PEM with one certificate or more. A block that cannot be read becomes an empty certificate, because who uses them
/// warns of those that cannot be read.
pub(super) fn certificates_of_pem(pem: &[u8], field: &str) -> Result<Vec<CertificateDer<'static>>> {
    let blocks = CertificateDer::pem_slice_iter(pem);
    let read: Vec<_> = blocks
        .map(|block| block.unwrap_or_else(|_| Vec::new().into()))
        .collect();
    match read.iter().any(|certificate| !certificate.is_empty()) {
        true => Ok(read),
        false => refuse(field, "holds no certificate in PEM"),
    }
}

/// The certificates of a client and its key, and how errors name both. One of them needs the other.
pub(super) fn client_certificate(
    chain: Option<&[u8]>,
    key: Option<&[u8]>,
    [chain_name, key_name]: [&str; 2],
) -> Result<Option<ClientCertificate>> {
    let required = |missing: &str, given: &str| {
        let given = given.rsplit('.').next().unwrap_or_default();
        refuse(missing, format!("is required beside {given}"))
    };
    let (chain, key) = match (chain, key) {
        (Some(chain), Some(key)) => (chain, key),
        (None, None) => return Ok(None),
        (Some(_), None) => return required(key_name, chain_name),
        (None, Some(_)) => return required(chain_name, key_name),
    };
    let mut chain = certificates_of_pem(chain, chain_name)?;
    chain.retain(|certificate| !certificate.is_empty());
    match PrivateKeyDer::from_pem_slice(key) {
        Ok(key) => Ok(Some(ClientCertificate { chain, key })),
        Err(_) => refuse(key_name, "holds no private key in PEM"),
    }
}

/// The bytes behind base64.
pub(super) fn decoded(encoded: &str, field: &str) -> Result<Vec<u8>> {
    // Folded YAML leaves line breaks or spaces in between.
    let compact: String = encoded.split_ascii_whitespace().collect();
    match LENIENT.decode(compact) {
        Ok(bytes) => Ok(bytes),
        Err(_) => refuse(field, "is not base64"),
    }
}

/// Bytes as a kubeconfig holds them.
pub(super) fn encoded(bytes: &[u8]) -> String {
    LENIENT.encode(bytes)
}
