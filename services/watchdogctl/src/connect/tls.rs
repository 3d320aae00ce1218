//! Certificates from files or from a Secret.

use jiff::Timestamp;
use watchdog_client::failure::chain;
use watchdog_client::setup_error::SetupError;
use watchdog_client::tls::{ClientTls, certificates, read};

use super::certificate;
use super::port_forward::PortForward;
use crate::args::ConnectArgs;
use crate::error::CommandError;

/// TLS, and the end of the own certificate if it can be read.
type Certificates = (ClientTls, Option<Timestamp>);

/// The TLS that the options ask for; none for plaintext.
pub(super) async fn of(
    args: &ConnectArgs,
    seed: Option<&PortForward>,
) -> Result<Option<Certificates>, CommandError> {
    if args.insecure_plaintext {
        return Ok(None);
    }
    if let (Some(secret), Some(seed)) = (&args.tls_secret, seed) {
        return of_secret(secret, seed).await.map(Some);
    }
    let (Some(ca), Some(cert), Some(key)) = (&args.tls_ca, &args.tls_cert, &args.tls_key) else {
        return Err(CommandError::usage(
            "the programs ask for a client certificate, and none is given",
            format!(
                "add --tls-secret NAME for a Secret in namespace {} that you may read (for example \
                 {}-lease-probe-tls), or --tls-ca, --tls-cert and --tls-key; --insecure-plaintext is for programs \
                 without TLS",
                args.namespace, args.name
            ),
        ));
    };
    let unusable =
        |error: SetupError| CommandError::usage(chain(&error), "correct --tls-ca, --tls-cert and --tls-key");
    let [ca_name, cert_name, key_name] = [ca, cert, key].map(|path| path.display().to_string());
    let read = |path| read(path).map_err(unusable);
    let (ca, cert, key) = (read(ca)?, read(cert)?, read(key)?);
    let parts = [(&ca_name, &ca), (&cert_name, &cert), (&key_name, &key)];
    of_pem(parts.map(|(name, pem)| (name.as_str(), pem.as_slice())))
        .map(Some)
        .map_err(unusable)
}

async fn of_secret(name: &str, seed: &PortForward) -> Result<Certificates, CommandError> {
    let [ca, cert, key] = seed.secret(name, ["ca.crt", "tls.crt", "tls.key"]).await?;
    let shown = ["ca.crt", "tls.crt", "tls.key"].map(|key| format!("{key} of the Secret {name}"));
    let [ca_name, cert_name, key_name] = &shown;
    of_pem([(ca_name, &ca), (cert_name, &cert), (key_name, &key)])
        .map_err(|error| CommandError::usage(chain(&error), "name another Secret with --tls-secret"))
}

fn of_pem([ca, cert, key]: [(&str, &[u8]); 3]) -> Result<Certificates, SetupError> {
    let chain = certificates(cert.0, cert.1)?;
    let end = chain.first().and_then(|own| certificate::end(own));
    Ok((ClientTls::from_pem(ca, cert, key)?, end))
}
