//! The authorities that callers must be signed by. They are trusted from their beginning to their end.
//!
//! rustls looks at the validity of the certificates that a client shows, not at that of the authorities themselves. So
//! a thief with the key of an old one could issue certificates with any dates. [`watchdog_certificates::TrustStore`],
//! by which clients judge servers, looks at both.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};
use watchdog_certificates::ValidityPeriod;

use crate::tls::provider;

const EXPIRED: Error = Error::InvalidCertificate(CertificateError::Expired);

const NOT_YET_VALID: Error = Error::InvalidCertificate(CertificateError::NotValidYet);

const UNKNOWN_ISSUER: Error = Error::InvalidCertificate(CertificateError::UnknownIssuer);

/// The authorities of callers, the one that ends last first. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ClientAuthorities(Arc<[ClientAuthority]>);

#[derive(Debug)]
struct ClientAuthority {
    begin: UnixTime,
    end: UnixTime,
    /// Trusts this authority alone.
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ClientAuthorities {
    /// Leaves out those that have ended.
    ///
    /// # Errors
    /// When one cannot be used, or all have ended.
    pub(crate) fn new(authorities: &[CertificateDer<'static>], now: UnixTime) -> Result<Self, Error> {
        let mut trusted = Vec::new();
        for authority in authorities {
            let [begin, end] = bounds(authority);
            if end < now {
                continue;
            }
            let mut root = RootCertStore::empty();
            root.add(authority.clone())?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(root), provider()).build();
            let verifier = verifier.map_err(|error| Error::General(error.to_string()))?;
            trusted.push(ClientAuthority { begin, end, verifier });
        }
        if trusted.is_empty() {
            return Err(EXPIRED);
        }
        trusted.sort_by_key(|authority| Reverse(authority.end));
        Ok(Self(trusted.into()))
    }

    /// Verifies the certificates of callers. Those that show none are accepted only if `mandatory` is false.
    pub(crate) fn verifier(&self, mandatory: bool) -> Arc<dyn ClientCertVerifier> {
        Arc::new(CallerVerifier {
            authorities: self.clone(),
            mandatory,
        })
    }

    /// How long the certificates that a caller showed, its own one first, are accepted; none if they are not.
    pub(crate) fn accept_for(&self, shown: &[CertificateDer<'static>], now: UnixTime) -> Option<Duration> {
        let (own, between) = shown.split_first()?;
        let authority_end = self.end_of_issuer(own, between, now).ok()?;
        let ends = shown.iter().map(|certificate| bounds(certificate)[1]);
        let last = ends.fold(authority_end, UnixTime::min);
        // The last second counts.
        let seconds = last.as_secs().saturating_sub(now.as_secs()).saturating_add(1);
        Some(Duration::from_secs(seconds))
    }

    /// The end of the authority that accepts a certificate, of several the one that ends last.
    fn end_of_issuer(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<UnixTime, Error> {
        let mut refusal = UNKNOWN_ISSUER;
        for authority in self.0.iter() {
            let verified = authority.verifier.verify_client_cert(own, between, now);
            let error = match verified {
                Ok(_) if authority.end < now => EXPIRED,
                Ok(_) if now < authority.begin => NOT_YET_VALID,
                Ok(_) => return Ok(authority.end),
                // All but its own authority say only that they do not know it.
                Err(error) if error == UNKNOWN_ISSUER => continue,
                Err(error) => error,
            };
            refusal = error;
        }
        Err(refusal)
    }
}

/// The first and the last second of a certificate. One whose dates cannot be read has none.
fn bounds(certificate: &CertificateDer<'_>) -> [UnixTime; 2] {
    let seconds = ValidityPeriod::of(certificate).map_or([0, i64::MAX], |validity| {
        [validity.not_before, validity.not_after].map(|at| at.as_second())
    });
    seconds.map(|at| UnixTime::since_unix_epoch(Duration::from_secs(at.try_into().unwrap_or_default())))
}

/// Verifies callers by the authorities that are valid at that time.
#[derive(Debug)]
struct CallerVerifier {
    authorities: ClientAuthorities,
    mandatory: bool,
}

impl ClientCertVerifier for CallerVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    // Clients of ours have one certificate and need no hint.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.authorities.end_of_issuer(own, between, now)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            own,
            signed,
            &provider().signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            own,
            signed,
            &provider().signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};

    use super::*;

    fn authority(years: [i32; 2]) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = format!("{years:?}");
        params.distinguished_name.push(DnType::CommonName, name);
        [params.not_before, params.not_after] = years.map(|year| date_time_ymd(year, 1, 1));
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn issued(by: &CertifiedIssuer<'static, KeyPair>, last_year: i32) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["client.test".to_owned()]).unwrap();
        params.not_after = date_time_ymd(last_year, 1, 1);
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, by).unwrap().der().clone()
    }

    /// A number of seconds after the start of a year.
    fn at(year: i32, seconds: i64) -> UnixTime {
        let start = date_time_ymd(year, 1, 1).unix_timestamp();
        UnixTime::since_unix_epoch(Duration::from_secs((start + seconds).try_into().unwrap()))
    }

    #[test]
    fn a_caller_is_accepted_while_its_certificate_and_its_authority_are_valid_and_not_a_second_longer() {
        for (authority_years, own_end, [begin, end]) in [
            ([2020, 2040], 2030, [2026, 2030]),
            ([2020, 2030], 2040, [2026, 2030]),
            ([2020, 2040], 2040, [2026, 2040]),
            ([2028, 2040], 2030, [2028, 2030]),
        ] {
            let (ours, other) = (authority(authority_years), authority([2020, 2050]));
            let own = issued(&ours, own_end);
            let shown = [own.clone()];
            let both = [ours.der().clone(), other.der().clone()];
            let both = ClientAuthorities::new(&both, at(2026, 0)).unwrap();
            for mandatory in [true, false] {
                let verifier = both.verifier(mandatory);
                assert_eq!(verifier.client_auth_mandatory(), mandatory);
                let accepts = |now| verifier.verify_client_cert(&own, &[], now).is_ok();
                assert!(accepts(at(begin, 0)) && accepts(at(end, 0)) && !accepts(at(end, 1)));
                assert!(begin == 2026 || !accepts(at(begin, -1)));
            }
            let left = both.accept_for(&shown, at(end, -10));
            assert_eq!(
                left,
                Some(Duration::from_secs(11)),
                "{authority_years:?} {own_end}"
            );
            assert_eq!(
                both.accept_for(&shown, at(end, 1)),
                None,
                "{authority_years:?} {own_end}"
            );
            assert_eq!(both.accept_for(&[], at(end, -10)), None);
            let replaced = ClientAuthorities::new(&[other.der().clone()], at(2026, 0)).unwrap();
            assert_eq!(replaced.accept_for(&shown, at(end, -10)), None);
        }
    }

    #[test]
    fn the_refusal_is_that_of_the_authority_which_has_issued_the_certificate() {
        for (own_end, other_end) in [(2040, 2050), (2050, 2040)] {
            let (ours, future) = (authority([2020, own_end]), authority([2028, other_end]));
            let both = [ours.der().clone(), future.der().clone()];
            let both = ClientAuthorities::new(&both, at(2026, 0)).unwrap().verifier(true);
            let refused = |own: &CertificateDer<'_>, now| both.verify_client_cert(own, &[], now).unwrap_err();
            let expired = refused(&issued(&ours, 2025), at(2026, 0)).to_string();
            assert!(expired.contains("expired"), "{expired}");
            assert_eq!(refused(&issued(&ours, 2060), at(own_end, 1)), EXPIRED);
            assert_eq!(refused(&issued(&future, 2030), at(2026, 0)), NOT_YET_VALID);
            let stranger = authority([2020, 2060]);
            assert_eq!(refused(&issued(&stranger, 2030), at(2026, 0)), UNKNOWN_ISSUER);
        }
    }

    #[test]
    fn authorities_that_have_all_ended_are_refused() {
        let ended = [2024, 2025].map(|end| authority([2020, end]).der().clone());
        assert_eq!(ClientAuthorities::new(&ended, at(2026, 0)).unwrap_err(), EXPIRED);
    }
}
