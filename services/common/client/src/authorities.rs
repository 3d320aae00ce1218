//! Authorities that are trusted until they end.
//!
//! rustls looks at the validity of the certificates that a client shows, not at that of the authorities themselves. So
//! a thief with the key of an old one could issue certificates with any dates. [`watchdog_certificates::TrustStore`],
//! by which clients judge servers, looks at both.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};
use watchdog_certificates::ValidityPeriod;

/// Verifies clients by the authorities that have not ended at that time.
#[derive(Debug)]
struct UnendedAuthorities {
    /// Verifiers that each count until a time, the earliest first, and trust all that end then or later.
    by_end: Vec<(UnixTime, Arc<dyn ClientCertVerifier>)>,
    provider: Arc<CryptoProvider>,
}

/// Verifies clients. Those that show no certificate are accepted only if `mandatory` is false.
///
/// # Errors
/// When an authority cannot be used, or all have ended.
pub fn client_verifier(
    authorities: &[CertificateDer<'static>],
    now: UnixTime,
    mandatory: bool,
) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let mut ending: BTreeMap<UnixTime, Vec<_>> = BTreeMap::new();
    for authority in authorities {
        ending.entry(end(authority)).or_default().push(authority);
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let (mut roots, mut by_end) = (RootCertStore::empty(), Vec::new());
    for (end, authorities) in ending.into_iter().rev().take_while(|(end, _)| now <= *end) {
        for authority in authorities {
            roots.add(authority.clone())?;
        }
        let mut builder =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), provider.clone());
        if !mandatory {
            builder = builder.allow_unauthenticated();
        }
        let verifier = builder
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        by_end.push((end, verifier));
    }
    if by_end.is_empty() {
        return Err(Error::InvalidCertificate(CertificateError::Expired));
    }
    by_end.reverse();
    Ok(Arc::new(UnendedAuthorities { by_end, provider }))
}

/// One whose end cannot be read has none.
fn end(authority: &CertificateDer<'_>) -> UnixTime {
    let end = ValidityPeriod::of(authority).map_or(i64::MAX, |validity| validity.not_after.as_second());
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(end.try_into().unwrap_or(0)))
}

impl ClientCertVerifier for UnendedAuthorities {
    fn client_auth_mandatory(&self) -> bool {
        self.by_end
            .iter()
            .all(|(_, verifier)| verifier.client_auth_mandatory())
    }

    // Clients of ours have one certificate and need no hint.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let Some((_, counting)) = self.by_end.iter().find(|(end, _)| now <= *end) else {
            return Err(Error::InvalidCertificate(CertificateError::Expired));
        };
        counting.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};

    use super::*;

    /// An authority that ends with a year, and a certificate of it that ends much later.
    fn authority(last_year: i32) -> [CertificateDer<'static>; 2] {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(last_year, 12, 31);
        let key = KeyPair::generate().unwrap();
        let own = params.self_signed(&key).unwrap().der().clone();
        let mut forged = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        forged.not_after = date_time_ymd(2090, 1, 1);
        let issuer = Issuer::new(params, key);
        let leaf_key = KeyPair::generate().unwrap();
        [own, forged.signed_by(&leaf_key, &issuer).unwrap().der().clone()]
    }

    fn in_year(year: u64) -> UnixTime {
        UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            (year - 1970) * 31_556_952 + 10_000_000,
        ))
    }

    #[test]
    fn an_authority_is_trusted_until_it_ends_and_not_a_second_longer() {
        let [old, by_old] = authority(2030);
        let [new, by_new] = authority(2040);
        let both = [old.clone(), new];
        let clients = client_verifier(&both, in_year(2026), true).unwrap();
        let trusted = |certificate, now| clients.verify_client_cert(certificate, &[], now).is_ok();
        let last = end(&old);
        let after = UnixTime::since_unix_epoch(std::time::Duration::from_secs(last.as_secs() + 1));
        for (certificate, now, expected) in [
            (&by_old, in_year(2026), true),
            (&by_old, last, true),
            (&by_old, after, false),
            (&by_new, in_year(2026), true),
            (&by_new, after, true),
            (&by_new, in_year(2041), false),
            (&authority(2040)[1], in_year(2026), false),
        ] {
            assert_eq!(trusted(certificate, now), expected, "{now:?}");
        }
        assert!(clients.client_auth_mandatory());
        assert!(
            !client_verifier(&both, in_year(2026), false)
                .unwrap()
                .client_auth_mandatory()
        );
    }

    #[test]
    fn authorities_that_have_all_ended_are_refused() {
        let ended = [authority(2024)[0].clone(), authority(2025)[0].clone()];
        let expected = Error::InvalidCertificate(CertificateError::Expired);
        assert_eq!(
            client_verifier(&ended, in_year(2026), true).unwrap_err(),
            expected
        );
    }
}
