//! The rules by which the certificates of servers and of callers are judged: those of Go's crypto/x509, which every API
//! server is used to. They accept more than webpki does (an authority that is the server's own certificate, policies
//! that are critical, any extended key usage) and ask more of an authority (its own dates, usages and length of path).

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use rustls::{CertificateError, OtherError};
use rustls_pki_types::{
    CertificateDer, DnsName, ServerName, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime,
};
use webpki::{EndEntityCert, KeyUsage, RawPublicKeyEntity, anchor_from_trusted_cert};
use x509_parser::asn1_rs::{Any, Oid, Tag};
use x509_parser::certificate::{BasicExtension, X509Certificate};
use x509_parser::error::X509Error;
use x509_parser::extensions::{BasicConstraints, GeneralName, ParsedExtension, X509Extension};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::X509Version;

use crate::provider;
use crate::validity::ValidityPeriod;
use crate::words::variant_in_words;

/// The most signatures that are checked for one handshake, as in Go.
const MOST_SIGNATURES: u32 = 100;

/// The most characters of a name of a certificate, which may be anything.
const LONGEST_NAME: usize = 64;

/// Of the names of a certificate, this many are shown.
const NAMES_SHOWN: usize = 5;

/// The identifiers of the extensions of RFC 5280 begin with this.
const STANDARD_EXTENSIONS: [u8; 2] = [0x55, 0x1d];

/// The policy that stands for any other, 2.5.29.32.0.
const ANY_POLICY: [u8; 4] = [0x55, 0x1d, 0x20, 0x00];

/// Where people change the name that a server must have: of an API server, and of a program of the watchdog.
const EXPECTED_NAME: &str = "tls-server-name in a kubeconfig, --tls-peer-server-name for gRPC";
/// The same of the authorities.
const TRUSTED: &str = "certificate-authority-data in a kubeconfig, --tls-client-ca or ca.crt for gRPC";

/// RSA keys of fewer bits are not accepted.
const FEWEST_RSA_BITS: usize = 2048;

/// Why a certificate is refused: which one, the reason and the remedy, in bounded text without control characters.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    text: String,
    /// The error of TLS that the other side learns.
    pub(crate) kind: CertificateError,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// The refusal with which a handshake failed.
    #[must_use]
    pub fn of(error: &rustls::Error) -> Option<&Self> {
        match error {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(refusal))) => {
                refusal.downcast_ref()
            }
            _ => None,
        }
    }

    /// True if the certificate is good, and for another name.
    #[must_use]
    pub fn is_about_name(&self) -> bool {
        self.kind == CertificateError::NotValidForName
    }

    fn of_kind(self, kind: CertificateError) -> Self {
        Self { kind, ..self }
    }
}

/// The use for which a certificate is shown.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose<'a> {
    /// To be a server of this name.
    Server(&'a ServerName<'a>),
    /// To call a server.
    Client,
}

impl Purpose<'_> {
    /// The certificate, in a refusal.
    const fn role(self) -> &'static str {
        match self {
            Self::Server(_) => "the server's certificate",
            Self::Client => "the caller's certificate",
        }
    }

    /// The extended key usage that allows it.
    const fn key_usage(self) -> &'static str {
        match self {
            Self::Server(_) => "serverAuth",
            Self::Client => "clientAuth",
        }
    }
}

/// The certificates that one side of a connection trusts.
#[derive(Debug, Default)]
pub struct TrustStore(Vec<Trusted>);

#[derive(Debug)]
struct Trusted {
    der: CertificateDer<'static>,
    subject: Box<[u8]>,
}

impl TrustStore {
    /// Of these certificates, leaving out those that cannot be read; also returns how many were left out.
    #[must_use]
    pub fn new(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> (Self, usize) {
        let mut unreadable = 0;
        let mut trusted = Vec::new();
        for der in certificates {
            match Certificate::parse(&der).map(|read| Box::from(read.subject())) {
                Ok(subject) => trusted.push(Trusted { der, subject }),
                Err(_) => unreadable += 1,
            }
        }
        (Self(trusted), unreadable)
    }

    /// True if it trusts nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The certificate of an authority alone, if it can be read.
    pub(crate) fn of(authority: &CertificateDer<'static>) -> Option<Self> {
        let (store, unreadable) = Self::new([authority.clone()]);
        (unreadable == 0).then_some(store)
    }

    /// Judges the certificates that a caller showed, its own one first. Returns for how long they are accepted.
    ///
    /// # Errors
    /// When they are not.
    pub fn judge_caller(&self, shown: &[CertificateDer<'_>], now: UnixTime) -> Result<Duration, Refusal> {
        let (own, others) = shown
            .split_first()
            .ok_or_else(|| unreadable(Purpose::Client.role(), "is missing"))?;
        let end = unix_time(self.judge(own, others, Purpose::Client, now)?);
        // The last second counts.
        let seconds = end.as_secs().saturating_sub(now.as_secs()).saturating_add(1);
        Ok(Duration::from_secs(seconds))
    }

    /// Judges a certificate and the others that were sent with it. Returns until when they are accepted.
    pub(crate) fn judge(
        &self,
        own: &[u8],
        others: &[CertificateDer<'_>],
        purpose: Purpose<'_>,
        now: UnixTime,
    ) -> Result<Timestamp, Refusal> {
        let role = purpose.role();
        let parse = |role, der| Certificate::parse(der).map_err(|why| unreadable(role, &why));
        let leaf = parse(role, own)?;
        let sent = others
            .iter()
            .map(|der| parse("a certificate that was sent with it", der))
            .collect::<Result<Vec<_>, _>>()?;
        leaf.check_itself(role, now)?;
        if let Purpose::Server(name) = purpose {
            leaf.check_name(role, name)?;
        }
        leaf.check_key(role)?;
        match purpose {
            Purpose::Server(_) if self.0.iter().any(|trusted| *trusted.der == *own) => {
                leaf.check_usage(role, purpose)?;
                return Ok(leaf.end());
            }
            // Go accepts that too. It would let the key of an authority call, which is only for signing.
            Purpose::Client if leaf.parsed.is_ca() => {
                let reason = "is one of an authority, with which nobody calls";
                return Err(leaf.refuse(role, reason, "Issue another one without CA:TRUE"));
            }
            _ => {}
        }
        let mut search = Search {
            trusted: self,
            sent: &sent,
            purpose,
            now,
            signatures_left: MOST_SIGNATURES,
        };
        search.extend(&mut vec![&leaf])
    }
}

/// The DNS names of a certificate, wildcards included; none if it cannot be read.
#[must_use]
pub fn dns_names(certificate: &CertificateDer<'_>) -> Option<Vec<String>> {
    let certificate = Certificate::parse(certificate).ok()?;
    let names = certificate.names().iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    });
    let is_valid = |name: &&str| DnsName::try_from(name.strip_prefix("*.").unwrap_or(name)).is_ok();
    Some(names.filter(is_valid).map(str::to_owned).collect())
}

const AUTHORITY: &str = "the authority";

/// A certificate whose extensions can all be read.
struct Certificate<'a> {
    parsed: X509Certificate<'a>,
    /// Its identifier and parameters, as they stand in the certificate.
    signature_algorithm: &'a [u8],
}

impl<'a> Certificate<'a> {
    fn parse(der: &'a [u8]) -> Result<Self, String> {
        let (rest, parsed) = X509Certificate::from_der(der).map_err(no_der)?;
        if !rest.is_empty() {
            return Err("has bytes after its end".to_owned());
        }
        let (_, whole) = Any::from_der(der).map_err(no_der)?;
        let (rest, _) = Any::from_der(whole.data).map_err(no_der)?;
        let (_, algorithm) = Any::from_der(rest).map_err(no_der)?;
        if parsed.signature_algorithm != parsed.tbs_certificate.signature {
            return Err("names two algorithms of its signature".to_owned());
        }
        check_extensions(&parsed)?;
        Ok(Self {
            signature_algorithm: algorithm.data,
            parsed,
        })
    }

    fn subject(&self) -> &[u8] {
        self.parsed.subject().as_raw()
    }

    fn issuer(&self) -> &[u8] {
        self.parsed.issuer().as_raw()
    }

    fn is_same_subject(&self, other: &Self) -> bool {
        self.subject() == other.subject() && self.parsed.public_key().raw == other.parsed.public_key().raw
    }

    fn basic_constraints(&self) -> Option<&BasicConstraints> {
        readable(self.parsed.basic_constraints())
    }

    fn may_sign(&self) -> bool {
        readable(self.parsed.key_usage()).is_none_or(|usage| usage.flags == 0 || usage.key_cert_sign())
    }

    fn may_be_used(&self, purpose: Purpose<'_>) -> bool {
        let usages = readable(self.parsed.extended_key_usage());
        usages.is_none_or(|usages| match purpose {
            Purpose::Server(_) => usages.any || usages.server_auth,
            // Go accepts `any` here too. Nobody needs that, and it would let in what was issued for something else.
            Purpose::Client => usages.client_auth,
        })
    }

    /// The last second of its validity.
    fn end(&self) -> Timestamp {
        ValidityPeriod::of_parsed(&self.parsed).not_after
    }

    fn names(&self) -> &[GeneralName<'a>] {
        readable(self.parsed.subject_alternative_name()).map_or(&[], |names| &names.general_names)
    }

    fn constrains_names(&self) -> bool {
        readable(self.parsed.name_constraints()).is_some()
    }

    fn policies(&self) -> impl Iterator<Item = &[u8]> {
        let policies =
            self.parsed
                .extensions()
                .iter()
                .find_map(|extension| match extension.parsed_extension() {
                    ParsedExtension::CertificatePolicies(policies) => Some(policies),
                    _ => None,
                });
        policies
            .into_iter()
            .flatten()
            .map(|policy| policy.policy_id.as_bytes())
    }

    fn requires_policy(&self) -> bool {
        let constraints = readable(self.parsed.policy_constraints());
        constraints.is_some_and(|constraints| constraints.require_explicit_policy.is_some())
    }

    /// An extension that a client must know, and does not.
    fn unknown_critical(&self) -> Option<&Oid<'a>> {
        let is_known = |extension: &X509Extension<'_>| {
            matches!(
                extension.parsed_extension(),
                ParsedExtension::BasicConstraints(_)
                    | ParsedExtension::KeyUsage(_)
                    | ParsedExtension::ExtendedKeyUsage(_)
                    | ParsedExtension::SubjectAlternativeName(_)
                    | ParsedExtension::CertificatePolicies(_)
                    | ParsedExtension::PolicyMappings(_)
                    | ParsedExtension::PolicyConstraints(_)
                    | ParsedExtension::InhibitAnyPolicy(_)
                    | ParsedExtension::NameConstraints(_)
                    | ParsedExtension::CRLDistributionPoints(_)
            )
        };
        let mut critical = self
            .parsed
            .extensions()
            .iter()
            .filter(|extension| extension.critical);
        critical
            .find(|extension| !is_known(extension))
            .map(|extension| &extension.oid)
    }

    fn has_short_rsa_key(&self) -> bool {
        let key = self.parsed.public_key().parsed();
        matches!(key, Ok(PublicKey::RSA(rsa)) if rsa.key_size() < FEWEST_RSA_BITS)
    }

    fn refuse(&self, role: &str, reason: impl fmt::Display, remedy: impl fmt::Display) -> Refusal {
        let [subject, issuer] =
            [self.parsed.subject(), self.parsed.issuer()].map(|name| shown(&name.to_string()));
        let end = self.end();
        Refusal {
            text: format!(
                "{role} (subject {subject}, issuer {issuer}, valid until {end}) {reason}. {remedy}"
            ),
            kind: CertificateError::UnknownIssuer,
        }
    }

    /// Checks the rules for every certificate, wherever it stands.
    fn check_itself(&self, role: &str, now: UnixTime) -> Result<(), Refusal> {
        if let Some(extension) = self.unknown_critical() {
            let reason = format!("has the critical extension {extension}, which clients do not know");
            let refusal = self.refuse(role, reason, "Issue it again without that extension");
            return Err(refusal.of_kind(CertificateError::UnhandledCriticalExtension));
        }
        let validity = ValidityPeriod::of_parsed(&self.parsed);
        let [not_before, not_after] = [validity.not_before, validity.not_after].map(unix_time);
        if now > not_after {
            let refusal = self.refuse(role, "has expired", "Issue it again");
            return Err(refusal.of_kind(CertificateError::ExpiredContext { time: now, not_after }));
        }
        if now < not_before {
            let reason = format!("is not valid before {}", validity.not_before);
            let refusal = self.refuse(role, reason, "Check the clocks of the server and of this machine");
            return Err(refusal.of_kind(CertificateError::NotValidYetContext {
                time: now,
                not_before,
            }));
        }
        Ok(())
    }

    fn check_usage(&self, role: &str, purpose: Purpose<'_>) -> Result<(), Refusal> {
        if self.may_be_used(purpose) {
            return Ok(());
        }
        let usage = purpose.key_usage();
        let reason = format!("has extended key usages that lack {usage}");
        let remedy = format!("Issue it again with the extended key usage {usage}, or without any");
        let refusal = self.refuse(role, reason, remedy);
        Err(refusal.of_kind(CertificateError::InvalidPurpose))
    }

    /// Checks that the key is one with which a handshake can be signed. That of an authority is checked with its
    /// signatures.
    fn check_key(&self, role: &str) -> Result<(), Refusal> {
        if self.has_short_rsa_key() {
            let reason = format!("has an RSA key of fewer than {FEWEST_RSA_BITS} bits");
            return Err(self.refuse(role, reason, "Issue it again with a longer key"));
        }
        Ok(())
    }

    fn check_name(&self, role: &str, expected: &ServerName<'_>) -> Result<(), Refusal> {
        let is_expected = |name: &GeneralName<'_>| match (name, expected) {
            (GeneralName::IPAddress(octets), ServerName::IpAddress(ip)) => {
                address(octets) == Some(IpAddr::from(*ip))
            }
            (GeneralName::DNSName(pattern), ServerName::DnsName(host)) => covers(pattern, host.as_ref()),
            _ => false,
        };
        if self.names().iter().any(is_expected) {
            return Ok(());
        }
        let kind = match expected {
            ServerName::IpAddress(_) => "IP",
            _ => "DNS",
        };
        let expected = shown(&expected.to_str());
        let again = format!("it again with the subject alternative name {kind}:{expected}");
        let names: Vec<_> = self
            .names()
            .iter()
            .filter_map(name_shown)
            .take(NAMES_SHOWN)
            .collect();
        let refusal = if names.is_empty() {
            let common = self.parsed.subject().iter_common_name().next();
            let has = match common.and_then(|name| name.as_str().ok()) {
                Some(common) => format!("only the common name {}, which clients ignore", shown(common)),
                None => "no name at all".to_owned(),
            };
            let reason =
                format!("does not have the name {expected}: it has no subject alternative name, {has}");
            self.refuse(role, reason, format!("Issue {again}"))
        } else {
            let more = if self.names().len() > names.len() {
                ", …"
            } else {
                ""
            };
            let reason = format!(
                "does not have the name {expected}, only {}{more}",
                names.join(", ")
            );
            let remedy = format!("Expect a name that it has ({EXPECTED_NAME}), or issue {again}");
            self.refuse(role, reason, remedy)
        };
        Err(refusal.of_kind(CertificateError::NotValidForName))
    }

    /// Checks the signature on this certificate with the key of another one.
    fn check_signature(&self, parent: &Self) -> Result<(), Refusal> {
        let spki = SubjectPublicKeyInfoDer::from(parent.parsed.public_key().raw);
        let signature = &self.parsed.signature_value;
        let mut is_checked = false;
        if let Ok(entity) = RawPublicKeyEntity::try_from(&spki)
            && signature.unused_bits == 0
        {
            let message = self.parsed.tbs_certificate.as_ref();
            let named = |algorithm: &&&dyn SignatureVerificationAlgorithm| {
                algorithm.signature_alg_id().as_ref() == self.signature_algorithm
            };
            let algorithms = provider().signature_verification_algorithms;
            for algorithm in algorithms.all.iter().filter(named) {
                match entity.verify_signature(*algorithm, message, &signature.data) {
                    Ok(()) => return Ok(()),
                    Err(webpki::Error::InvalidSignatureForPublicKey) => is_checked = true,
                    // Another curve or kind of key.
                    Err(_) => {}
                }
            }
        }
        let by = shown(&parent.parsed.subject().to_string());
        let trust = format!("Trust the authority that signed it ({TRUSTED})");
        let algorithm = &self.parsed.signature_algorithm.algorithm;
        let (reason, remedy) = if parent.has_short_rsa_key() {
            (
                format!("is signed by {by} with an RSA key of fewer than {FEWEST_RSA_BITS} bits"),
                "Issue the authority and the certificate again",
            )
        } else if is_checked {
            (
                format!("is not signed by the authority {by}, although it names it as its issuer"),
                &*trust,
            )
        } else {
            (
                format!("is signed by {by} with an algorithm ({algorithm}) or key that is not accepted"),
                "Issue it again with SHA-256 or longer, and RSA, P-256, P-384, P-521 or Ed25519",
            )
        };
        Err(self.refuse("a certificate", reason, remedy))
    }
}

fn no_der<E>(_: E) -> String {
    "is not in DER".to_owned()
}

/// The extension of a certificate, if it has it. Those that cannot be read were refused with [`check_extensions`].
fn readable<T>(extension: Result<Option<BasicExtension<T>>, X509Error>) -> Option<T> {
    extension.ok().flatten().map(|extension| extension.value)
}

fn check_extensions(parsed: &X509Certificate<'_>) -> Result<(), String> {
    if parsed.version() != X509Version::V3 && !parsed.extensions().is_empty() {
        return Err("has extensions, which only version 3 has".to_owned());
    }
    if parsed.extensions_map().is_err() {
        return Err("has an extension twice".to_owned());
    }
    let is_malformed = |name: &GeneralName<'_>| matches!(name, GeneralName::Invalid(Tag(2 | 7), _));
    for extension in parsed.extensions() {
        let is_standard = extension.oid.as_bytes().starts_with(&STANDARD_EXTENSIONS);
        match extension.parsed_extension() {
            ParsedExtension::ParseError { .. } if extension.critical || is_standard => {
                return Err(format!("has a malformed extension {}", extension.oid));
            }
            ParsedExtension::SubjectAlternativeName(names)
                if names.general_names.iter().any(is_malformed) =>
            {
                return Err("has a malformed subject alternative name".to_owned());
            }
            _ => {}
        }
    }
    Ok(())
}

/// The search for a chain from a certificate to one that is trusted.
struct Search<'a> {
    trusted: &'a TrustStore,
    sent: &'a [Certificate<'a>],
    purpose: Purpose<'a>,
    now: UnixTime,
    signatures_left: u32,
}

impl<'a> Search<'a> {
    /// Extends a chain to one that is trusted, and returns its end; the refusal is that of the first candidate.
    fn extend(&mut self, chain: &mut Vec<&'a Certificate<'a>>) -> Result<Timestamp, Refusal> {
        let Some(&child) = chain.last() else {
            return Ok(Timestamp::MAX);
        };
        let mut first = None;
        let trusted = self.trusted;
        for candidate in trusted
            .0
            .iter()
            .filter(|trusted| *trusted.subject == *child.issuer())
        {
            let outcome = Certificate::parse(&candidate.der)
                .map_err(|why| unreadable(AUTHORITY, &why))
                .and_then(|root| self.complete(chain, &root));
            match outcome {
                Ok(end) => return Ok(end),
                Err(refusal) => _ = first.get_or_insert(refusal),
            }
        }
        for parent in self.sent {
            if parent.subject() != child.issuer() || chain.iter().any(|known| known.is_same_subject(parent)) {
                continue;
            }
            let outcome = match self.check_parent(chain, parent) {
                Ok(()) if !parent.parsed.is_ca() => Err(no_authority(parent)),
                Ok(()) => {
                    chain.push(parent);
                    let extended = self.extend(chain);
                    chain.pop();
                    extended
                }
                Err(refusal) => Err(refusal),
            };
            match outcome {
                Ok(end) => return Ok(end),
                Err(refusal) => _ = first.get_or_insert(refusal),
            }
        }
        Err(first.unwrap_or_else(|| {
            let reason = match child.issuer() == child.subject() {
                true => "is signed by itself and is not among the trusted authorities",
                false => "is signed by an authority that is neither trusted nor sent with it",
            };
            let remedy = format!("Trust its issuer, or the certificate itself ({TRUSTED})");
            child.refuse(self.role(chain.len() - 1), reason, remedy)
        }))
    }

    /// The certificate at this place of a chain, in a refusal.
    const fn role(&self, place: usize) -> &'static str {
        match place {
            0 => self.purpose.role(),
            _ => AUTHORITY,
        }
    }

    /// Judges a chain that ends in a trusted certificate. Returns until when it is accepted.
    fn complete(
        &mut self,
        chain: &[&'a Certificate<'a>],
        root: &Certificate<'_>,
    ) -> Result<Timestamp, Refusal> {
        self.check_parent(chain, root)?;
        for (place, certificate) in chain.iter().enumerate() {
            certificate.check_usage(self.role(place), self.purpose)?;
        }
        root.check_usage(AUTHORITY, self.purpose)?;
        check_policies(chain)?;
        self.check_constraints(chain, root)?;
        let ends = chain.iter().map(|certificate| certificate.end());
        Ok(ends.fold(root.end(), Timestamp::min))
    }

    fn check_constraints(&self, chain: &[&Certificate<'_>], root: &Certificate<'_>) -> Result<(), Refusal> {
        let Some((leaf, authorities)) = chain.split_first() else {
            return Ok(());
        };
        let authorities = authorities.iter().copied().chain([root]);
        let mut constraining = authorities.filter(|one| one.constrains_names()).peekable();
        if constraining.peek().is_none() {
            return Ok(());
        }
        // Go also judges them by their own constraints; webpki does not.
        if let Some(named) = constraining.find(|one| !one.names().is_empty()) {
            let reason = "has name constraints and subject alternative names of its own";
            return Err(named.refuse(AUTHORITY, reason, "Issue it again without these names"));
        }
        // webpki judges the whole chain where an authority may sign some names only.
        let der = |one: &Certificate<'_>| CertificateDer::from(one.parsed.as_raw().to_vec());
        let (root, own) = (der(root), der(leaf));
        let sent: Vec<_> = self.sent.iter().map(der).collect();
        let usage = match self.purpose {
            Purpose::Server(_) => KeyUsage::server_auth(),
            Purpose::Client => KeyUsage::client_auth(),
        };
        let algorithms = provider().signature_verification_algorithms.all;
        let judged = anchor_from_trusted_cert(&root).and_then(|anchor| {
            let end_entity = EndEntityCert::try_from(&own)?;
            end_entity.verify_for_usage(algorithms, &[anchor], &sent, self.now, usage, None, None)?;
            Ok(())
        });
        judged.map_err(|error| {
            let why = variant_in_words(&error);
            let reason = format!("is not accepted under the name constraints of its authorities: {why}");
            let remedy = "Issue it again with names that its authorities may sign";
            leaf.refuse(self.role(0), reason, remedy)
        })
    }

    /// Judges the certificate that has signed the last one of the chain.
    fn check_parent(&mut self, chain: &[&Certificate<'_>], parent: &Certificate<'_>) -> Result<(), Refusal> {
        let Some(child) = chain.last() else {
            return Ok(());
        };
        self.signatures_left = self.signatures_left.checked_sub(1).ok_or_else(|| {
            let reason = format!("has too many possible chains: {MOST_SIGNATURES} signatures were checked");
            child.refuse("a certificate", reason, "Let the server send one chain")
        })?;
        let basic = parent.basic_constraints();
        // Version 1 knows no flag.
        if !basic.map_or(parent.parsed.version() != X509Version::V3, |basic| basic.ca) {
            return Err(no_authority(parent));
        }
        if !parent.may_sign() {
            let reason = "has signed a certificate, and its key usage does not allow that";
            return Err(parent.refuse(AUTHORITY, reason, "Issue it again with the key usage keyCertSign"));
        }
        child.check_signature(parent)?;
        parent.check_itself(AUTHORITY, self.now)?;
        let between = u32::try_from(chain.len().saturating_sub(1)).unwrap_or(u32::MAX);
        match basic.and_then(|basic| basic.path_len_constraint) {
            Some(most) if between > most => {
                let reason = format!("allows {most} authorities below it, and there are {between}");
                Err(parent.refuse(AUTHORITY, reason, "Issue it again with a longer path"))
            }
            _ => Ok(()),
        }
    }
}

/// Where a certificate below the trusted one demands a policy, all have to have one in common. RFC 5280 accepts more,
/// such as mapped policies.
fn check_policies(chain: &[&Certificate<'_>]) -> Result<(), Refusal> {
    let Some(demanding) = chain.iter().find(|certificate| certificate.requires_policy()) else {
        return Ok(());
    };
    let inhibits_any = |one: &&Certificate<'_>| readable(one.parsed.inhibit_anypolicy()).is_some();
    let maps_policies = |one: &&Certificate<'_>| readable(one.parsed.policy_mappings()).is_some();
    let any_counts = !chain.iter().any(inhibits_any);
    let has = |certificate: &&Certificate<'_>, wanted: &[u8]| {
        certificate
            .policies()
            .any(|policy| policy == wanted || (any_counts && policy == ANY_POLICY))
    };
    let in_common = chain
        .iter()
        .flat_map(|certificate| certificate.policies())
        .filter(|policy| any_counts || *policy != ANY_POLICY)
        .any(|policy| chain.iter().all(|certificate| has(certificate, policy)));
    if in_common && !chain.iter().any(maps_policies) {
        return Ok(());
    }
    let reason =
        "demands a certificate policy that the certificates below and above it do not have in common";
    Err(demanding.refuse("a certificate", reason, "Issue them again with one policy"))
}

fn no_authority(certificate: &Certificate<'_>) -> Refusal {
    let reason = "has signed a certificate, and its basic constraints do not make it an authority";
    certificate.refuse(AUTHORITY, reason, "Issue it again with CA:TRUE")
}

/// Saturates at 1970.
pub(crate) fn unix_time(at: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(at.as_second().try_into().unwrap_or_default()))
}

fn unreadable(role: &str, why: &str) -> Refusal {
    Refusal {
        text: format!("{role} cannot be read: it {why}. Issue it again"),
        kind: CertificateError::BadEncoding,
    }
}

/// True if the name of a certificate, which may begin with a wildcard for one label, covers the host.
fn covers(pattern: &str, host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    match (pattern.strip_prefix("*."), host.split_once('.')) {
        (Some(parent), Some((label, rest))) => !label.is_empty() && rest.eq_ignore_ascii_case(parent),
        _ => !host.is_empty() && pattern.eq_ignore_ascii_case(host),
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| v6()).ok()
}

fn name_shown(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(shown(name)),
        GeneralName::IPAddress(octets) => address(octets).map(|address| address.to_string()),
        _ => None,
    }
}

/// Text that somebody else wrote, short and on one line.
fn shown(text: &str) -> String {
    let is_plain = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let plain = |c| if is_plain(c) { c } else { '\u{fffd}' };
    match text.char_indices().nth(LONGEST_NAME) {
        None => text.chars().map(plain).collect(),
        Some(_) => text.chars().take(LONGEST_NAME).map(plain).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests;
