//! The certificate of the caller, from files or from a Secret.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use watchdog_certificates::ValidityPeriod;
use watchdog_client::failure::chain;
use watchdog_client::setup_error::SetupError;
use watchdog_client::tls::{ClientTls, certificates, read};

use super::release::{self, ChartRelease};
use super::seed::SeedReader;
use crate::args::ConnectArgs;
use crate::error::{CommandError, CommandResult};

/// The parts of a certificate, as files and in Secrets.
const PARTS: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

/// A certificate to call the programs with.
#[derive(Clone)]
pub(crate) struct CallerCertificate {
    /// The name of each part, for errors, and its text.
    pem: [(String, Vec<u8>); 3],
    pub(crate) tls: ClientTls,
    /// From when to when it is valid, if that can be read.
    pub(crate) validity: Option<ValidityPeriod>,
}

impl CallerCertificate {
    /// The one that the options ask for, else that of the release; none for plaintext.
    ///
    /// # Errors
    /// When none is known, or it cannot be used.
    pub(super) async fn read(
        args: &ConnectArgs,
        seed: Option<&SeedReader>,
        release: Option<&ChartRelease>,
    ) -> CommandResult<Option<Self>> {
        if args.insecure_plaintext {
            return Ok(None);
        }
        if let (Some(ca), Some(cert), Some(key)) = (&args.tls_ca, &args.tls_cert, &args.tls_key) {
            return Self::of_files([ca, cert, key]).map(Some);
        }
        let of_release = || release?.observer_secret();
        match (args.tls_secret.as_deref().or_else(of_release), seed) {
            _ if args.tls_secret.is_none() && release.is_some_and(ChartRelease::is_plaintext) => Ok(None),
            (Some(name), Some(seed)) => {
                let given = args.namespace.as_deref().unwrap_or(release::NAMESPACE);
                let namespace = release.map_or(given, |release| &release.namespace);
                Self::of_secret(seed, namespace, name).await.map(Some)
            }
            _ => Err(Self::none_given()),
        }
    }

    fn of_files(paths: [&Path; 3]) -> CommandResult<Self> {
        let what_to_do = "correct --tls-ca, --tls-cert and --tls-key";
        let part = |path: &Path| {
            let text = read(path).map_err(|error| CommandError::usage(chain(&error), what_to_do))?;
            Ok::<_, CommandError>((path.display().to_string(), text))
        };
        let [ca, cert, key] = paths.map(part);
        Self::new([ca?, cert?, key?], what_to_do)
    }

    async fn of_secret(seed: &SeedReader, namespace: &str, name: &str) -> CommandResult<Self> {
        let data = seed.secret(namespace, name).await?;
        let part = |part: &str| {
            let missing = || {
                let what_to_do = "a program fills the Secret of the chart within two minutes of its start: watchdogctl \
                                  check says whether one runs; or name a Secret with tls.crt, tls.key and ca.crt";
                CommandError::usage(format!("the Secret {name} has no {part}"), what_to_do)
            };
            let text = data.get(part).ok_or_else(missing)?;
            Ok::<_, CommandError>((format!("{part} of the Secret {name}"), text.0.clone()))
        };
        let [ca, cert, key] = PARTS.map(part);
        Self::new([ca?, cert?, key?], "name another Secret with --tls-secret")
    }

    fn new(pem: [(String, Vec<u8>); 3], what_to_do: &str) -> CommandResult<Self> {
        let [ca, cert, key] = { &pem }
            .each_ref()
            .map(|(name, text)| (name.as_str(), text.as_slice()));
        let used = certificates(cert.0, cert.1).and_then(|chain| {
            let validity = chain.first().and_then(|own| ValidityPeriod::of(own));
            Ok((ClientTls::from_pem(ca, cert, key)?, validity))
        });
        let unusable = |error: SetupError| CommandError::usage(chain(&error), what_to_do);
        let (tls, validity) = used.map_err(unusable)?;
        Ok(Self { pem, tls, validity })
    }

    pub(crate) fn none_given() -> CommandError {
        CommandError::usage(
            "the programs require a client certificate, but none is given, and no Deployment names a Secret with one",
            "add --tls-secret NAME for a Secret that you may read, or --tls-ca, --tls-cert and --tls-key; \
             --insecure-plaintext is for programs without TLS",
        )
    }

    /// Writes its parts into a folder.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn write(&self, folder: &Path) -> CommandResult<()> {
        for (part, (_, text)) in PARTS.iter().zip(&self.pem) {
            let path = folder.join(part);
            write_private(&path, text).map_err(|error| {
                let what = format!("cannot write {}: {error}", path.display());
                CommandError::usage(what, "name another folder")
            })?;
        }
        Ok(())
    }
}

/// Writes a file that only its owner may read, even if it existed before and others could read it.
fn write_private(path: &Path, content: &[u8]) -> std::io::Result<()> {
    const MODE: u32 = 0o600;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(MODE);
    let mut file = options.open(path)?;
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.write_all(content)
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
