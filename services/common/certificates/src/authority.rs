//! The certificate authorities that the replicas of a seed share, and the certificates issued from them.

use std::fmt;
use std::ops::Range;

use anyhow::{Context as _, anyhow, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use pem::{EncodeConfig, LineEnding, Pem};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::x509::AttributeTypeAndValue;

use crate::chain::{Purpose, Refusal, TrustStore, dns_names, unix_time};
use crate::validity::ValidityPeriod;

#[cfg(test)]
mod tests;

/// Life of a certificate. It is not revoked, so it is short.
const CERTIFICATE_LIFE: SignedDuration = SignedDuration::from_hours(24);

/// A program replaces its certificate after one third of its life, every 8 h.
const RENEW_CERTIFICATE_DIVISOR: i32 = 3;

/// Life of an authority.
const AUTHORITY_LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);

/// An authority is followed by the next one this long before its end.
const AUTHORITY_RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(120 * 24);

/// An authority that ends within this time hands over to the one after it. By then all replicas have trusted that one
/// for three months, even one that could not read the Secret for weeks.
const HAND_OVER_BEFORE: SignedDuration = SignedDuration::from_hours(30 * 24);

/// An authority takes over only when it is as old as this. It matters where none was made in time, for example because
/// the seed was switched off for months.
const TAKE_OVER_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// The clocks of two replicas differ by less than this. So new certificates are valid from this long ago, and an
/// authority issues only while it is valid for a clock that differs by it.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_hours(1);

/// New authorities are valid from this long ago, so that they issue at once.
const AUTHORITY_BACKDATED: SignedDuration = SignedDuration::from_hours(2);

/// The most authorities that a Secret holds. Two are in use while one follows the other. A replica whose clock is ahead
/// adds more, which the others use from their beginning on. So none may be removed before it has ended.
const MAX_AUTHORITIES: usize = 8;

/// The years that X.509 can write.
const YEARS: std::ops::RangeInclusive<i32> = 1950..=9999;

/// Characters of a common name at most: RFC 5280, ub-common-name.
const MAX_COMMON_NAME: usize = 64;

/// The cryptography failed.
const CANNOT_ISSUE: &str = "cannot issue a certificate";

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
    fn new(now: Timestamp) -> anyhow::Result<Self> {
        // X.509 counts in seconds. Rounded, the authority equals the one that is read back.
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let validity = ValidityPeriod {
            not_before: shifted(now, -AUTHORITY_BACKDATED),
            not_after: shifted(now, AUTHORITY_LIFE),
        };
        let mut params = params(&format!("dependency watchdog {now:.0}"), validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().context(CANNOT_ISSUE)?;
        let certificate = params.self_signed(&key).context(CANNOT_ISSUE)?;
        Ok(Self {
            certificate: certificate.der().clone(),
            key: key.serialize_pem(),
            validity,
        })
    }

    /// `number` counts from 1, for people.
    fn read(number: usize, certificate: Pem, key: &Pem) -> anyhow::Result<Self> {
        let key = pem::encode_config(key, encoding());
        let pair = KeyPair::from_pem(&key).map_err(|_| anyhow!("key {number} of ca.key cannot be read"))?;
        let der = CertificateDer::from(certificate.into_contents());
        let unreadable = || anyhow!("certificate {number} of ca.crt cannot be read");
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|_| unreadable())?;
        let validity = ValidityPeriod::of_parsed(&parsed);
        ensure!(
            parsed.is_ca(),
            "certificate {number} of ca.crt is not one of an authority"
        );
        // As strict as the TLS of the programs, which reads it next.
        TrustStore::of(&der).ok_or_else(unreadable)?;
        // rcgen writes the subject into everything that it issues, and panics at an identifier that begins with another
        // arc than 0, 1 or 2.
        let has_known_arc = |of: &AttributeTypeAndValue<'_>| {
            let first = of.attr_type().as_bytes().first();
            first.is_some_and(|first| *first < 3 * 40)
        };
        if !parsed.subject().iter_attributes().all(has_known_arc) {
            return Err(unreadable());
        }
        if parsed.public_key().raw != rcgen::PublicKeyData::subject_public_key_info(&pair) {
            bail!("key {number} of ca.key does not belong to certificate {number} of ca.crt");
        }
        Ok(Self {
            certificate: der,
            key,
            validity,
        })
    }

    fn ends_within(&self, time: SignedDuration, now: Timestamp) -> bool {
        self.validity.not_after <= shifted(now, time)
    }

    /// True if it is old enough that all replicas have read it.
    fn is_known(&self, now: Timestamp) -> bool {
        shifted(self.validity.not_before, AUTHORITY_BACKDATED + TAKE_OVER_AFTER) <= now
    }

    /// True if it is valid by the clocks of all replicas.
    fn is_valid_for_all(&self, now: Timestamp) -> bool {
        let clocks = [shifted(now, -CLOCK_SKEW), shifted(now, CLOCK_SKEW)];
        clocks.into_iter().all(|clock| self.validity.contains(clock))
    }

    fn issue(
        &self,
        params: &CertificateParams,
        key: &KeyPair,
    ) -> Result<CertificateDer<'static>, rcgen::Error> {
        let issuer = Issuer::from_ca_cert_der(&self.certificate, KeyPair::from_pem(&self.key)?)?;
        Ok(params.signed_by(key, &issuer)?.der().clone())
    }
}

/// The certificate authorities of a seed, in the order in which they were added.
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
    /// Outside of this range a new certificate must be issued, also when the clock was set back to before its start.
    pub in_use: Range<Timestamp>,
}

/// A client's certificate, its key and the authorities that it trusts, as PEM.
pub struct ClientPem<'a> {
    /// `ca.crt`
    pub ca: &'a [u8],
    /// `tls.crt`
    pub certificate: &'a [u8],
    /// `tls.key`
    pub key: &'a [u8],
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
    pub fn from_pem(certificates: &[u8], keys: &[u8]) -> anyhow::Result<Self> {
        let certificates = parts("ca.crt", certificates, |tag| tag == "CERTIFICATE")?;
        let keys = parts("ca.key", keys, |tag| tag.ends_with("PRIVATE KEY"))?;
        ensure!(
            certificates.len() == keys.len(),
            "ca.crt holds {} certificates and ca.key holds {} keys: every certificate needs its key",
            certificates.len(),
            keys.len()
        );
        ensure!(
            certificates.len() <= MAX_AUTHORITIES,
            "ca.crt holds {} certificates, at most {MAX_AUTHORITIES} are allowed",
            certificates.len()
        );
        let pairs = certificates.into_iter().zip(&keys).zip(1..);
        let authorities =
            pairs.map(|((certificate, key), number)| CertificateAuthority::read(number, certificate, key));
        authorities.collect::<Result<_, _>>().map(Self)
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

    /// The authorities to trust: all that have not ended. Many clients do not look at the validity of an authority
    /// itself, so a thief with the key of an old one could still issue certificates for them.
    pub fn trusted(&self, now: Timestamp) -> impl Iterator<Item = &CertificateDer<'static>> {
        let not_ended = self
            .0
            .iter()
            .filter(move |authority| now <= authority.validity.not_after);
        not_ended.map(|authority| &authority.certificate)
    }

    /// The authorities to trust, as PEM, without their keys.
    #[must_use]
    pub fn trusted_pem(&self, now: Timestamp) -> String {
        let trusted = self.trusted(now);
        let trusted: Vec<_> = trusted.map(|der| Pem::new("CERTIFICATE", der.to_vec())).collect();
        pem::encode_many_config(&trusted, encoding())
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of authorities.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The content of the Secret that should replace this one, if any: another authority when the last one ends within
    /// four months.
    ///
    /// Nothing is taken away that others may still need, whatever the clock of this process shows: beyond
    /// `MAX_AUTHORITIES` the one goes that was added first.
    ///
    /// # Errors
    /// When no authority can be made.
    pub fn renewed(&self, now: Timestamp) -> anyhow::Result<Option<Self>> {
        let lasts = |authority: &CertificateAuthority| {
            authority.validity.contains(now) && !authority.ends_within(AUTHORITY_RENEW_BEFORE, now)
        };
        if self.0.iter().any(lasts) {
            return Ok(None);
        }
        let surplus = (self.len() + 1).saturating_sub(MAX_AUTHORITIES);
        let mut authorities: Vec<_> = self.0.iter().skip(surplus).cloned().collect();
        authorities.push(CertificateAuthority::new(now)?);
        Ok(Some(Self(authorities)))
    }

    /// Issues a certificate with these DNS names, for a server and a client.
    ///
    /// # Errors
    /// When no authority is valid now, one cannot issue certificates, or a name is not a DNS name.
    pub fn issue(&self, names: &[String], now: Timestamp) -> anyhow::Result<Issued> {
        let name = names.first().context("a certificate needs a name")?;
        let name = ServerName::try_from(name.as_str()).context(CANNOT_ISSUE)?;
        self.issue_for(names, Purpose::Server(&name), now)
    }

    /// Issues a certificate with this DNS name for a client. No client accepts it from a server, so its holder can take
    /// the place of no program.
    ///
    /// # Errors
    /// As [`Self::issue`].
    pub fn issue_for_client(&self, name: &str, now: Timestamp) -> anyhow::Result<Issued> {
        self.issue_for(&[name.to_owned()], Purpose::Client, now)
    }

    /// True if a certificate of [`Self::issue_for_client`], as PEM, is the one to use with the authorities `ca`: they
    /// are those to trust now, the certificate has this name and its key, and it is not due for replacement.
    #[must_use]
    pub fn is_client_current(&self, client: &ClientPem<'_>, name: &str, now: Timestamp) -> bool {
        let key = std::str::from_utf8(client.key).map(KeyPair::from_pem);
        let (Ok(certificate), Ok(Ok(key))) = (pem::parse(client.certificate), key) else {
            return false;
        };
        let der = CertificateDer::from(certificate.into_contents());
        let Ok((_, parsed)) = X509Certificate::from_der(&der) else {
            return false;
        };
        let has_name = dns_names(&der).is_some_and(|names| names.iter().any(|known| known == name));
        let mut trusted = self.trusted(now);
        client.ca == self.trusted_pem(now).as_bytes()
            && has_name
            && trusted.any(|authority| verify(&der, authority, Purpose::Client, now).is_ok())
            && in_use(ValidityPeriod::of_parsed(&parsed)).contains(&now)
            && parsed.public_key().raw == rcgen::PublicKeyData::subject_public_key_info(&key)
    }

    fn issue_for(&self, names: &[String], purpose: Purpose<'_>, now: Timestamp) -> anyhow::Result<Issued> {
        let (number, signer) = self
            .signer(now)
            .with_context(|| format!("no authority is valid at {now}: check the clock of this node"))?;
        let validity = ValidityPeriod {
            not_before: shifted(now, -CLOCK_SKEW),
            not_after: signer.validity.not_after.min(shifted(now, CERTIFICATE_LIFE)),
        };
        let common_name = names.first().map_or("", String::as_str);
        let mut params = params(common_name, validity)?;
        for name in names {
            let name = Ia5String::try_from(name.as_str()).context(CANNOT_ISSUE)?;
            params.subject_alt_names.push(rcgen::SanType::DnsName(name));
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if matches!(purpose, Purpose::Server(_)) {
            params
                .extended_key_usages
                .push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().context(CANNOT_ISSUE)?;
        let certificate = signer.issue(&params, &key).context(CANNOT_ISSUE)?;
        verify(&certificate, &signer.certificate, purpose, now).map_err(|why| {
            anyhow!("certificates that are issued from certificate {number} of ca.crt are not valid: {why}")
        })?;
        Ok(Issued {
            certificate,
            key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            validity,
            in_use: in_use(validity),
        })
    }

    /// The authority to issue from, and its number in error messages. It is the first one that is valid for all
    /// replicas, until that one ends soon and a later one is known to them. If none is valid for all, it is the first
    /// valid one: an operator's own may have begun a moment ago.
    ///
    /// They are in the order in which they were added. So an authority that a replica with a wrong clock added issues
    /// nothing before all replicas have read it.
    fn signer(&self, now: Timestamp) -> Option<(usize, &CertificateAuthority)> {
        let numbered = || (1..).zip(&self.0);
        let mut valid_for_all = numbered().filter(|(_, authority)| authority.is_valid_for_all(now));
        let first = valid_for_all
            .next()
            .or_else(|| numbered().find(|(_, authority)| authority.validity.contains(now)))?;
        Some(valid_for_all.fold(first, |signer, next| {
            if signer.1.ends_within(HAND_OVER_BEFORE, now) && next.1.is_known(now) {
                next
            } else {
                signer
            }
        }))
    }
}

/// Verifies a certificate as a program that trusts this authority does.
fn verify(
    certificate: &CertificateDer<'_>,
    authority: &CertificateDer<'static>,
    purpose: Purpose<'_>,
    at: Timestamp,
) -> Result<(), Refusal> {
    let trusted = TrustStore::of(authority).unwrap_or_default();
    trusted.judge(certificate, &[], purpose, unix_time(at)).map(drop)
}

/// The time in which a certificate needs no replacement. It begins when the certificate was issued, so that one is
/// replaced, too, after the clock was set back.
fn in_use(validity: ValidityPeriod) -> Range<Timestamp> {
    let issued = shifted(validity.not_before, CLOCK_SKEW);
    let life = validity.not_after.duration_since(issued);
    issued..shifted(issued, life / RENEW_CERTIFICATE_DIVISOR)
}

fn params(common_name: &str, validity: ValidityPeriod) -> anyhow::Result<CertificateParams> {
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

fn offset_date_time(at: Timestamp) -> anyhow::Result<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(at.as_second())
        .ok()
        .filter(|at| YEARS.contains(&at.year()))
        .with_context(|| format!("the clock of this node shows {at}, for which no certificate can be made"))
}

/// Saturates at the limits of [`Timestamp`].
fn shifted(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(at)
}

fn parts(name: &str, text: &[u8], wanted: impl Fn(&str) -> bool) -> anyhow::Result<Vec<Pem>> {
    let mut parts = pem::parse_many(text).map_err(|_| anyhow!("{name} is not PEM"))?;
    parts.retain(|part| wanted(part.tag()));
    Ok(parts)
}

fn encoding() -> EncodeConfig {
    EncodeConfig::new().set_line_ending(LineEnding::LF)
}
