//! Certificates from files or from a Secret, or issued for this run.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use rustls::pki_types::UnixTime;
use watchdog_certificates::{Authorities, Issued, ValidityPeriod};
use watchdog_client::authorities::server_verifier;
use watchdog_client::failure::chain;
use watchdog_client::setup_error::SetupError;
use watchdog_client::tls::{ClientTls, certificates, client_config, read};

use super::port_forward::PortForward;
use super::server_name;
use crate::args::ConnectArgs;
use crate::error::CommandError;
use crate::program::Program;

/// TLS, and the validity of the own certificate if it can be read.
type Certificates = (ClientTls, Option<ValidityPeriod>);

/// An authority that the options name: how errors call it, and what it consists of.
struct NamedAuthority {
    name: String,
    ca: Vec<u8>,
    key: Vec<u8>,
}

impl NamedAuthority {
    fn issue(&self, names: &[String], now: Timestamp) -> Result<(Issued, Authorities), CommandError> {
        let issued = Authorities::from_pem(&self.ca, &self.key)
            .and_then(|authorities| Ok((authorities.issue(names, now)?, authorities)));
        issued.map_err(|error| self.unusable(error.as_ref()))
    }

    /// With a certificate for the names of the programs, which are among those that may call.
    fn tls(&self, names: &[String]) -> Result<Certificates, CommandError> {
        let now = Timestamp::now();
        let (issued, authorities) = self.issue(names, now)?;
        let trusted: Vec<_> = authorities.trusted(now).cloned().collect();
        let verifier = server_verifier(&trusted, UnixTime::now());
        let verifier = verifier.map_err(|error| self.unusable(&error))?;
        let config = client_config(verifier, vec![issued.certificate], issued.key);
        let config = config.map_err(|error| self.unusable(&error))?;
        Ok((ClientTls::new(config), Some(issued.validity)))
    }

    fn unusable(&self, error: &(dyn std::error::Error + 'static)) -> CommandError {
        let text = format!("{}: {}", self.name, chain(error));
        CommandError::usage(text, "correct it, or use another certificate")
    }
}

/// Writes a certificate of the authority, its key and the authority's certificate into a folder.
///
/// # Errors
/// When no authority is named, it cannot be used, or a file cannot be written.
pub(crate) async fn write(args: &ConnectArgs, folder: &Path, names: &[String]) -> Result<(), CommandError> {
    let authority = match (&args.tls_secret, &args.tls_ca, &args.tls_ca_key) {
        (Some(secret), _, _) => {
            let data = PortForward::open(args).await?.secret(secret).await?;
            of_data(secret, &data)?
        }
        (None, Some(ca), Some(key)) => of_files(ca, key)?,
        _ => {
            return Err(CommandError::usage(
                "a certificate needs an authority, but none is given",
                format!(
                    "add --tls-secret {0}-leases/{0}-authority, or --tls-ca and --tls-ca-key",
                    args.name
                ),
            ));
        }
    };
    let (issued, _) = authority.issue(names, Timestamp::now())?;
    let (certificate, key) = issued.to_pem();
    let ca = String::from_utf8_lossy(&authority.ca);
    for (name, content) in [
        ("ca.crt", ca.as_ref()),
        ("tls.crt", &certificate),
        ("tls.key", &key),
    ] {
        let path = folder.join(name);
        let unwritable = |error| {
            CommandError::usage(
                format!("cannot write {}: {error}", path.display()),
                "name another folder",
            )
        };
        write_private(&path, content).map_err(unwritable)?;
    }
    Ok(())
}

/// Writes a file that only its owner may read, even if it existed before and others could read it.
fn write_private(path: &Path, content: &str) -> std::io::Result<()> {
    const MODE: u32 = 0o600;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(MODE)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.write_all(content.as_bytes())
}

/// The TLS that the options ask for; none for plaintext.
pub(super) async fn of(
    args: &ConnectArgs,
    seed: Option<&PortForward>,
) -> Result<Option<Certificates>, CommandError> {
    if args.insecure_plaintext {
        return Ok(None);
    }
    let names = &Program::ALL.map(|program| server_name(args, program));
    if let (Some(secret), Some(seed)) = (&args.tls_secret, seed) {
        return of_secret(secret, seed, names).await.map(Some);
    }
    let unusable = |error: SetupError| {
        CommandError::usage(
            chain(&error),
            "correct --tls-ca, --tls-cert, --tls-key and --tls-ca-key",
        )
    };
    let shown = |path: &Path| path.display().to_string();
    let read = |path| read(path).map_err(unusable);
    match (&args.tls_ca, &args.tls_cert, &args.tls_key, &args.tls_ca_key) {
        (Some(ca), _, _, Some(key)) => of_files(ca, key)?.tls(names).map(Some),
        (Some(ca), Some(cert), Some(key), None) => {
            let names = [ca, cert, key].map(|path| shown(path));
            let [ca_name, cert_name, key_name] = &names;
            let (ca, cert, key) = (read(ca)?, read(cert)?, read(key)?);
            of_pem([(ca_name, &ca), (cert_name, &cert), (key_name, &key)])
                .map(Some)
                .map_err(unusable)
        }
        _ => Err(CommandError::usage(
            "the programs require a client certificate, but none is given",
            format!(
                "add --tls-secret NAME for a Secret that you may read (for example {0}-leases/{0}-authority), or \
                 --tls-ca, --tls-cert and --tls-key; --insecure-plaintext is for programs without TLS",
                args.name
            ),
        )),
    }
}

/// A Secret of the authority has its key, and a certificate is issued for this run. Any other has a certificate.
async fn of_secret(name: &str, seed: &PortForward, names: &[String]) -> Result<Certificates, CommandError> {
    let data = seed.secret(name).await?;
    if data.contains_key("ca.key") {
        return of_data(name, &data)?.tls(names);
    }
    let shown = ["ca.crt", "tls.crt", "tls.key"].map(|key| format!("{key} of the Secret {name}"));
    let [ca_name, cert_name, key_name] = &shown;
    let [ca, cert, key] = ["ca.crt", "tls.crt", "tls.key"].map(|key| part(name, &data, key));
    of_pem([(ca_name, ca?), (cert_name, cert?), (key_name, key?)])
        .map_err(|error| CommandError::usage(chain(&error), "name another Secret with --tls-secret"))
}

fn of_data(name: &str, data: &BTreeMap<String, ByteString>) -> Result<NamedAuthority, CommandError> {
    Ok(NamedAuthority {
        name: format!("the Secret {name}"),
        ca: part(name, data, "ca.crt")?.to_owned(),
        key: part(name, data, "ca.key")?.to_owned(),
    })
}

fn of_files(ca: &Path, key: &Path) -> Result<NamedAuthority, CommandError> {
    let unusable =
        |error: SetupError| CommandError::usage(chain(&error), "correct --tls-ca and --tls-ca-key");
    Ok(NamedAuthority {
        name: format!("{} and {}", ca.display(), key.display()),
        ca: read(ca).map_err(unusable)?,
        key: read(key).map_err(unusable)?,
    })
}

fn part<'a>(name: &str, data: &'a BTreeMap<String, ByteString>, key: &str) -> Result<&'a [u8], CommandError> {
    let missing = || {
        CommandError::usage(
            format!("the Secret {name} has no {key}"),
            "name a Secret with ca.crt and ca.key, or with tls.crt, tls.key and ca.crt",
        )
    };
    data.get(key).map(|part| part.0.as_slice()).ok_or_else(missing)
}

fn of_pem([ca, cert, key]: [(&str, &[u8]); 3]) -> Result<Certificates, SetupError> {
    let chain = certificates(cert.0, cert.1)?;
    let validity = chain.first().and_then(|own| ValidityPeriod::of(own));
    Ok((ClientTls::from_pem(ca, cert, key)?, validity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_for_its_owner_only_whatever_was_there_before() {
        let path = std::env::temp_dir().join(format!("watchdogctl-key-{}", std::process::id()));
        std::fs::write(&path, "longer than what follows").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        write_private(&path, "key").unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        let content = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((mode & 0o777, content.as_str()), (0o600, "key"));
    }
}
