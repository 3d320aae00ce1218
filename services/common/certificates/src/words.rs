//! Errors of TLS in words: those of rustls and webpki show the names of their variants.

use std::fmt::Debug;

use heck::ToSnakeCase as _;
use rustls::{CertificateError, Error, OtherError};

/// An error of TLS for people. Of a certificate that [`TrustStore`](crate::TrustStore) refuses, this is the refusal.
#[must_use]
pub fn tls_error_in_words(error: &Error) -> String {
    let (what, why): (_, &dyn Debug) = match error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(refusal))) => {
            return refusal.to_string();
        }
        // Some variants have words of their own.
        Error::InvalidCertificate(why) if why.to_string() != format!("{why:?}") => return error.to_string(),
        Error::InvalidCertificate(why) => ("invalid peer certificate", why),
        Error::AlertReceived(why) => ("the other side ended the connection", why),
        Error::PeerIncompatible(why) => ("the other side is not compatible", why),
        Error::PeerMisbehaved(why) => ("the other side broke the rules of TLS", why),
        Error::InvalidMessage(why) => ("the other side sent a message that cannot be read", why),
        Error::InappropriateMessage { got_type, .. } => {
            ("the other side sent an unexpected message", got_type)
        }
        Error::InappropriateHandshakeMessage { got_type, .. } => {
            ("the other side sent an unexpected message", got_type)
        }
        Error::InconsistentKeys(why) => ("the private key does not fit", why),
        error => return error.to_string(),
    };
    format!("{what}: {}", variant_in_words(why))
}

/// The name of a variant in words, without what it carries: `UnknownIssuer` is "unknown issuer".
pub(crate) fn variant_in_words(variant: &dyn Debug) -> String {
    let text = format!("{variant:?}");
    let name = text.split(|c: char| !c.is_ascii_alphanumeric()).next();
    let words = name.unwrap_or_default().to_snake_case().replace('_', " ");
    words.strip_suffix(" context").unwrap_or(&words).to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::ServerName;
    use rustls::{AlertDescription, InconsistentKeys, PeerIncompatible};

    use super::*;

    #[test]
    fn no_name_of_a_variant_is_shown() {
        let other_name = CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("api.test").unwrap(),
            presented: Vec::new(),
        };
        let refusal = OtherError(Arc::new(std::io::Error::other("the certificate is refused")));
        for (error, expected) in [
            (
                CertificateError::UnknownIssuer.into(),
                "invalid peer certificate: unknown issuer",
            ),
            (
                CertificateError::UnsupportedSignatureAlgorithmContext {
                    signature_algorithm_id: vec![1],
                    supported_algorithms: Vec::new(),
                }
                .into(),
                "invalid peer certificate: unsupported signature algorithm",
            ),
            (
                other_name.into(),
                "invalid peer certificate: certificate not valid for name \"api.test\"; certificate is not valid for \
                 any names (according to its subjectAltName extension)",
            ),
            (
                CertificateError::Other(refusal).into(),
                "the certificate is refused",
            ),
            (
                Error::AlertReceived(AlertDescription::UnknownCA),
                "the other side ended the connection: unknown ca",
            ),
            (
                PeerIncompatible::NoCipherSuitesInCommon.into(),
                "the other side is not compatible: no cipher suites in common",
            ),
            (
                InconsistentKeys::KeyMismatch.into(),
                "the private key does not fit: key mismatch",
            ),
            (Error::NoCertificatesPresented, "peer sent no certificates"),
        ] {
            assert_eq!(tls_error_in_words(&error), expected);
        }
    }
}
