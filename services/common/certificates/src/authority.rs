//! The certificate authorities that the replicas of a seed share, and the certificates issued from them.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use pem::{EncodeConfig, LineEnding, Pem};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::validity::ValidityPeriod;

#[cfg(test)]
mod tests;

/// A new authority is trusted for this time before certificates are issued from it. By then every replica has read it,
/// even one that could not reach the API server for hours.
pub const OVERLAP: SignedDuration = SignedDuration::from_hours(24);

/// A program replaces its certificate after this time, a third of the certificate's life.
pub const RENEW_CERTIFICATE_AFTER: SignedDuration = SignedDuration::from_hours(8);

/// Life of a certificate. It is not revoked, so it is short.
const CERTIFICATE_LIFE: SignedDuration = SignedDuration::from_hours(24);

/// Life of an authority.
const AUTHORITY_LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);

/// An authority is followed by the next one this long before its end.
const AUTHORITY_RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(120 * 24);

/// New certificates are valid from this long ago: the clocks of the others may be behind.
const BACKDATED: SignedDuration = SignedDuration::from_hours(1);

/// Authorities in a Secret at most. Two are in use while one follows the other. A replica whose clock is off by a year
/// adds one of its own, which hurts nobody.
const MAX_AUTHORITIES: usize = 4;

/// Characters of a common name at most: RFC 5280, ub-common-name.
const MAX_COMMON_NAME: usize = 64;

/// Why authorities cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A part of the Secret is not PEM.
    #[error("{0} is not PEM")]
    NotPem(&'static str),
    /// Every certificate needs its key.
    #[error("ca.crt holds {certificates} certificates and ca.key {keys} keys, they must be as many")]
    Unpaired {
        /// Certificates in ca.crt.
        certificates: usize,
        /// Keys in ca.key.
        keys: usize,
    },
    /// More than this project ever writes.
    #[error("ca.crt holds {0} certificates, at most {MAX_AUTHORITIES} are allowed")]
    TooMany(usize),
    /// A certificate cannot be parsed.
    #[error("certificate {0} of ca.crt cannot be read")]
    UnreadableCertificate(usize),
    /// A certificate may not issue others.
    #[error("certificate {0} of ca.crt is not one of an authority")]
    NotAnAuthority(usize),
    /// A key cannot be parsed.
    #[error("key {0} of ca.key cannot be read")]
    UnreadableKey(usize),
    /// A key is not the one of its certificate.
    #[error("key {0} of ca.key does not belong to certificate {0} of ca.crt")]
    KeyOfAnother(usize),
    /// By the clock of this process.
    #[error("no authority is valid at {0}: check the clock of this node")]
    NoneValid(Timestamp),
    /// Neither X.509 nor this project reaches as far.
    #[error("the clock of this node shows {0}, for which no certificate can be made")]
    ImpossibleTime(Timestamp),
    /// The cryptography failed.
    #[error("cannot issue a certificate: {0}")]
    Issue(#[from] rcgen::Error),
}

/// A certificate authority with its key.
#[derive(Clone, PartialEq, Eq)]
struct CertificateAuthority {
    certificate: CertificateDer<'static>,
    key: String,
    validity: ValidityPeriod,
}

// The key must not reach a log.
impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthority")
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}

impl CertificateAuthority {
    fn new(now: Timestamp) -> Result<Self, AuthorityError> {
        // Certificates count in seconds: what is read back is then the same.
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let validity = ValidityPeriod {
            not_before: now - BACKDATED,
            not_after: now + AUTHORITY_LIFE,
        };
        let mut params = params(&format!("dependency watchdog {now:.0}"), validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        Ok(Self {
            certificate: params.self_signed(&key)?.der().clone(),
            key: key.serialize_pem(),
            validity,
        })
    }

    /// `number` counts from 1, for people.
    fn read(number: usize, certificate: Pem, key: &Pem) -> Result<Self, AuthorityError> {
        let key = pem::encode_config(key, encoding());
        let pair = KeyPair::from_pem(&key).map_err(|_| AuthorityError::UnreadableKey(number))?;
        let der = certificate.into_contents();
        let unreadable = AuthorityError::UnreadableCertificate(number);
        let Ok((_, parsed)) = X509Certificate::from_der(&der) else {
            return Err(unreadable);
        };
        let validity = ValidityPeriod::of_parsed(&parsed).ok_or(unreadable)?;
        if !parsed.is_ca() {
            return Err(AuthorityError::NotAnAuthority(number));
        }
        if parsed.public_key().raw != rcgen::PublicKeyData::subject_public_key_info(&pair) {
            return Err(AuthorityError::KeyOfAnother(number));
        }
        Ok(Self {
            certificate: der.into(),
            key,
            validity,
        })
    }
}

/// The certificate authorities of a seed, by the beginning of their validity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Authorities(Vec<CertificateAuthority>);

/// A certificate with its key.
#[derive(Debug)]
pub struct Issued {
    /// The certificate alone; a reader that trusts the authority needs no more.
    pub certificate: CertificateDer<'static>,
    /// Its private key.
    pub key: PrivateKeyDer<'static>,
    /// From when to when it is valid.
    pub validity: ValidityPeriod,
}

impl Issued {
    /// The certificate and its key, each as PEM.
    #[must_use]
    pub fn to_pem(&self) -> (String, String) {
        let part = |tag, der: &[u8]| pem::encode_config(&Pem::new(tag, der), encoding());
        (
            part("CERTIFICATE", &self.certificate),
            part("PRIVATE KEY", self.key.secret_der()),
        )
    }
}

impl Authorities {
    /// Reads `ca.crt` and `ca.key`: as many keys as certificates, in the same order.
    ///
    /// # Errors
    /// When a part cannot be used. The message never shows its content.
    pub fn from_pem(certificates: &[u8], keys: &[u8]) -> Result<Self, AuthorityError> {
        let certificates = parts("ca.crt", certificates, |tag| tag == "CERTIFICATE")?;
        let keys = parts("ca.key", keys, |tag| tag.ends_with("PRIVATE KEY"))?;
        if certificates.len() != keys.len() {
            return Err(AuthorityError::Unpaired {
                certificates: certificates.len(),
                keys: keys.len(),
            });
        }
        if certificates.len() > MAX_AUTHORITIES {
            return Err(AuthorityError::TooMany(certificates.len()));
        }
        let pairs = certificates.into_iter().zip(&keys).zip(1..);
        let authorities =
            pairs.map(|((certificate, key), number)| CertificateAuthority::read(number, certificate, key));
        authorities.collect::<Result<_, _>>().map(Self::sorted)
    }

    /// `ca.crt` and `ca.key`.
    #[must_use]
    pub fn to_pem(&self) -> (String, String) {
        let certificate =
            |authority: &CertificateAuthority| Pem::new("CERTIFICATE", authority.certificate.to_vec());
        let certificates: Vec<_> = self.0.iter().map(certificate).collect();
        let keys = self.0.iter().map(|authority| authority.key.as_str()).collect();
        (pem::encode_many_config(&certificates, encoding()), keys)
    }

    /// The authorities to trust: all. One that has ended or not begun proves nothing anyway.
    pub fn certificates(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        self.0.iter().map(|authority| &authority.certificate)
    }

    /// The end of the authority that is valid for longest; none if there is none.
    #[must_use]
    pub fn end(&self, now: Timestamp) -> Option<Timestamp> {
        self.valid(now)
            .map(|authority| authority.validity.not_after)
            .max()
    }

    /// The content of the Secret that should replace this one, if any: another authority when the last one ends within four months.
    ///
    /// Nothing is taken away that others may still need, whatever the clock of this process shows: beyond
    /// `MAX_AUTHORITIES` the one goes that ends first.
    ///
    /// # Errors
    /// When no authority can be made.
    pub fn renewed(&self, now: Timestamp) -> Result<Option<Self>, AuthorityError> {
        if self
            .end(now)
            .is_some_and(|end| end > now + AUTHORITY_RENEW_BEFORE)
        {
            return Ok(None);
        }
        let mut authorities = self.0.clone();
        if authorities.len() >= MAX_AUTHORITIES {
            authorities.sort_by_key(|authority| authority.validity.not_after);
            authorities.remove(0);
        }
        authorities.push(CertificateAuthority::new(now)?);
        Ok(Some(Self::sorted(authorities)))
    }

    /// Issues a certificate with these DNS names, for a server and a client, from the newest authority that has been
    /// trusted for [`OVERLAP`], or else from the oldest.
    ///
    /// # Errors
    /// When no authority is valid now, or a name is not a DNS name.
    pub fn issue(&self, names: &[String], now: Timestamp) -> Result<Issued, AuthorityError> {
        let known =
            |authority: &&CertificateAuthority| authority.validity.not_before + BACKDATED + OVERLAP <= now;
        let signer = self
            .valid(now)
            .filter(known)
            .last()
            .or_else(|| self.valid(now).next());
        let signer = signer.ok_or(AuthorityError::NoneValid(now))?;
        let validity = ValidityPeriod {
            not_before: now - BACKDATED,
            not_after: signer.validity.not_after.min(now + CERTIFICATE_LIFE),
        };
        let common_name = names.first().map_or("", String::as_str);
        let mut params = params(common_name, validity)?;
        for name in names {
            let name = rcgen::SanType::DnsName(name.as_str().try_into()?);
            params.subject_alt_names.push(name);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        let issuer = Issuer::from_ca_cert_der(&signer.certificate, KeyPair::from_pem(&signer.key)?)?;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?.der().clone();
        Ok(Issued {
            certificate,
            key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            validity,
        })
    }

    fn sorted(mut authorities: Vec<CertificateAuthority>) -> Self {
        authorities.sort_by_key(|authority| authority.validity.not_before);
        Self(authorities)
    }

    fn valid(&self, now: Timestamp) -> impl Iterator<Item = &CertificateAuthority> {
        self.0
            .iter()
            .filter(move |authority| authority.validity.contains(now))
    }
}

fn params(common_name: &str, validity: ValidityPeriod) -> Result<CertificateParams, AuthorityError> {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(
        DnType::CommonName,
        common_name.chars().take(MAX_COMMON_NAME).collect::<String>(),
    );
    params.distinguished_name = name;
    params.not_before = offset_date_time(validity.not_before)?;
    params.not_after = offset_date_time(validity.not_after)?;
    Ok(params)
}

fn offset_date_time(at: Timestamp) -> Result<OffsetDateTime, AuthorityError> {
    OffsetDateTime::from_unix_timestamp(at.as_second()).map_err(|_| AuthorityError::ImpossibleTime(at))
}

fn parts(name: &'static str, text: &[u8], wanted: impl Fn(&str) -> bool) -> Result<Vec<Pem>, AuthorityError> {
    let mut parts = pem::parse_many(text).map_err(|_| AuthorityError::NotPem(name))?;
    parts.retain(|part| wanted(part.tag()));
    Ok(parts)
}

fn encoding() -> EncodeConfig {
    EncodeConfig::new().set_line_ending(LineEnding::LF)
}
