//! The kubeconfig of a shoot: only what can be used without leaving the process.

use super::document::{RefusedFields, Selected, decode, join, select};
use super::{Credentials, Result, ShootAccess, field};
use secrecy::ExposeSecret;
use secrecy::zeroize::Zeroizing;
use std::path::Path;

/// As large as a Secret can be.
const MAX_BYTES: usize = 1 << 20;

/// Fields that would read files, run programs, use a proxy, skip verification or impersonate.
const REFUSED: RefusedFields = RefusedFields {
    cluster: &[
        (
            "certificate-authority",
            "files are not read; put the PEM into certificate-authority-data",
        ),
        (
            "proxy-url",
            "proxies are not used; name the address of the kube-apiserver itself",
        ),
        (
            "insecure-skip-tls-verify",
            "the server must be verified; set certificate-authority-data and, if need be, tls-server-name",
        ),
    ],
    user: &[
        (
            "exec",
            "programs are not run; use token or client-certificate-data",
        ),
        (
            "auth-provider",
            "auth providers are not used; use token or client-certificate-data",
        ),
        ("tokenFile", "files are not read; use token"),
        (
            "client-certificate",
            "files are not read; use client-certificate-data",
        ),
        ("client-key", "files are not read; use client-key-data"),
        ("username", BASIC),
        ("password", BASIC),
        ("as", IMPERSONATION),
        ("as-uid", IMPERSONATION),
        ("as-groups", IMPERSONATION),
        ("as-user-extra", IMPERSONATION),
    ],
};
const BASIC: &str = "basic authentication is not used; use token or client-certificate-data";
const IMPERSONATION: &str = "impersonation is not used; give the user itself the permissions";

/// Reads the kubeconfig of a shoot and picks its current context, or the only one.
///
/// # Errors
/// The first thing that is wrong or refused, by field; never a value of the file.
pub fn parse(bytes: &[u8]) -> Result<ShootAccess> {
    let documents = decode(bytes, MAX_BYTES, Path::new(""))?;
    let Selected { cluster, user } = select(&documents, None, REFUSED)?;
    let authorities = cluster.value.certificate_authority_data.as_deref();
    let authorities =
        authorities.map(|data| field::certificates(data, &join(&cluster.path, "certificate-authority-data")));
    let [chain_name, key_name] =
        ["client-certificate-data", "client-key-data"].map(|field| join(&user.path, field));
    let chain = user.value.client_certificate_data.as_deref();
    let chain = chain.map(|data| field::decoded(data, &chain_name)).transpose()?;
    let key = user.value.client_key_data.as_ref();
    let key = key
        .map(|data| field::decoded(data.expose_secret(), &key_name))
        .transpose()?;
    let pair = field::pair(chain, key.map(Zeroizing::new), &user.path)?;
    let client_certificate =
        pair.map(|(chain, key)| field::client_certificate((&chain, &chain_name), (&key, &key_name)));
    Ok(ShootAccess {
        server: field::server(&cluster, false)?,
        authorities: authorities.transpose()?,
        tls_server_name: field::server_name(&cluster)?,
        credentials: Credentials {
            token: field::token(&user)?,
            client_certificate: client_certificate.transpose()?,
        },
    })
}
