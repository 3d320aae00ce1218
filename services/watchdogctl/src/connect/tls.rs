//! Certificates from files or from a Secret.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use k8s_openapi::ByteString;
use watchdog_certificates::ValidityPeriod;
use watchdog_client::failure::chain;
use watchdog_client::setup_error::SetupError;
use watchdog_client::tls::{ClientTls, certificates, read};

use super::release::{self, ChartRelease};
use super::seed::SeedReader;
use crate::args::ConnectArgs;
use crate::error::CommandError;

/// TLS, and the validity of the own certificate if it can be read.
type Certificates = (ClientTls, Option<ValidityPeriod>);

/// The parts of a certificate, as files and in Secrets.
const PARTS: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

/// Writes the certificate of people into a folder, and returns when it ends.
///
/// # Errors
/// When no Secret with one is known or can be read, or a file cannot be written.
pub(crate) async fn write(args: &ConnectArgs, folder: &Path) -> Result<Option<ValidityPeriod>, CommandError> {
    let seed = SeedReader::open(args).await?;
    let (name, data) = match &args.tls_secret {
        Some(name) => (name.clone(), seed.secret(namespace(args), name).await?),
        None => {
            let release = release::find(&seed, args).await?;
            let name = release.observer_secret.clone().ok_or_else(none_given)?;
            let data = seed.secret(&release.namespace, &name).await?;
            (name, data)
        }
    };
    let (_, validity) = of_data(&name, &data)?;
    for part in PARTS {
        let path = folder.join(part);
        let unwritable = |error| {
            CommandError::usage(
                format!("cannot write {}: {error}", path.display()),
                "name another folder",
            )
        };
        write_private(&path, part_of(&name, &data, part)?).map_err(unwritable)?;
    }
    Ok(validity)
}

/// Writes a file that only its owner may read, even if it existed before and others could read it.
fn write_private(path: &Path, content: &[u8]) -> std::io::Result<()> {
    const MODE: u32 = 0o600;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(MODE)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.write_all(content)
}

/// The TLS that the options ask for, else that of the release; none for plaintext.
pub(super) async fn of(
    args: &ConnectArgs,
    seed: Option<&SeedReader>,
    release: Option<&ChartRelease>,
) -> Result<Option<Certificates>, CommandError> {
    if args.insecure_plaintext {
        return Ok(None);
    }
    if let (Some(name), Some(seed)) = (&args.tls_secret, seed) {
        let namespace = release.map_or(namespace(args), |release| &release.namespace);
        return of_data(name, &seed.secret(namespace, name).await?).map(Some);
    }
    if let (Some(ca), Some(cert), Some(key)) = (&args.tls_ca, &args.tls_cert, &args.tls_key) {
        return of_files([ca, cert, key]).map(Some);
    }
    match (seed, release) {
        (_, Some(release)) if release.is_plaintext => Ok(None),
        (Some(seed), Some(release)) => {
            let name = release.observer_secret.as_ref().ok_or_else(none_given)?;
            of_data(name, &seed.secret(&release.namespace, name).await?).map(Some)
        }
        _ => Err(none_given()),
    }
}

/// The namespace of a Secret that is named without one, where no release was looked for.
fn namespace(args: &ConnectArgs) -> &str {
    args.namespace.as_deref().unwrap_or(release::NAMESPACE)
}

fn none_given() -> CommandError {
    CommandError::usage(
        "the programs require a client certificate, but none is given, and no Deployment names a Secret with one",
        "add --tls-secret NAME for a Secret that you may read, or --tls-ca, --tls-cert and --tls-key; \
         --insecure-plaintext is for programs without TLS",
    )
}

fn of_files(paths: [&Path; 3]) -> Result<Certificates, CommandError> {
    let unusable =
        |error: SetupError| CommandError::usage(chain(&error), "correct --tls-ca, --tls-cert and --tls-key");
    let names = paths.map(|path| path.display().to_string());
    let [ca, cert, key] = paths.map(|path| read(path).map_err(unusable));
    let [ca_name, cert_name, key_name] = &names;
    of_pem([(ca_name, &ca?), (cert_name, &cert?), (key_name, &key?)]).map_err(unusable)
}

fn of_data(name: &str, data: &BTreeMap<String, ByteString>) -> Result<Certificates, CommandError> {
    let shown = PARTS.map(|part| format!("{part} of the Secret {name}"));
    let [ca_name, cert_name, key_name] = &shown;
    let [ca, cert, key] = PARTS.map(|part| part_of(name, data, part));
    of_pem([(ca_name, ca?), (cert_name, cert?), (key_name, key?)])
        .map_err(|error| CommandError::usage(chain(&error), "name another Secret with --tls-secret"))
}

fn part_of<'a>(
    name: &str,
    data: &'a BTreeMap<String, ByteString>,
    part: &str,
) -> Result<&'a [u8], CommandError> {
    let missing = || {
        let what_to_do = "a program fills the Secret of the chart within two minutes of its start: watchdogctl check \
                          says whether one runs; or name a Secret with tls.crt, tls.key and ca.crt";
        CommandError::usage(format!("the Secret {name} has no {part}"), what_to_do)
    };
    data.get(part).map(|part| part.0.as_slice()).ok_or_else(missing)
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
        write_private(&path, b"key").unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        let content = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((mode & 0o777, content.as_str()), (0o600, "key"));
    }
}
