//! The kubeconfig of a shoot: only what can be used without leaving the process.

use super::document::{RefusedFields, decode, select};
use super::seed::checked;
use super::{Result, ShootAccess, field};
use std::io;
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
    let selected = select(&documents, None, REFUSED)?;
    let tls_server_name = field::server_name(&selected.cluster)?;
    let token = field::token(&selected.user)?;
    // None of the fields that name files is left.
    let access = checked(selected, false, &|_| Err(io::ErrorKind::Unsupported.into()))?;
    Ok(ShootAccess {
        server: access.server,
        authorities: access.authorities,
        tls_server_name,
        token,
        client_certificate: access.client_certificate,
    })
}
