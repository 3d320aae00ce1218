//! The rules by which a client judges the certificate of a server: those of Go's crypto/x509, which every API server is
//! used to. They accept more than webpki does (an authority that is the server's own certificate, policies that are
//! critical, any extended key usage) and ask more of an authority (its own dates, usages and length of path).

use std::fmt;
use std::io;
use std::net::IpAddr;

use rustls::{CertificateError, OtherError};
use rustls_pki_types::{
    CertificateDer, ServerName, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime,
};
use webpki::{EndEntityCert, KeyUsage, RawPublicKeyEntity, anchor_from_trusted_cert};
use x509_parser::asn1_rs::{Any, Oid, Tag};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::X509Version;

use crate::validity::ValidityPeriod;

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

/// RSA keys of fewer bits are not accepted.
const FEWEST_RSA_BITS: usize = 2048;

type Algorithms = [&'static dyn SignatureVerificationAlgorithm];

/// Why a certificate is refused: which one, the reason and the remedy, in bounded text without control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    certificate: String,
    reason: String,
    remedy: String,
    is_about_name: bool,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            certificate,
            reason,
            remedy,
            ..
        } = self;
        write!(f, "{certificate} {reason}. {remedy}")
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// The refusal that an error of a TLS connection is about, if it is: this error itself, not one of its sources.
    #[must_use]
    pub fn within<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e Self> {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Self::within(error.get_ref()?);
        }
        match error.downcast_ref::<rustls::Error>()? {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(refusal))) => {
                refusal.downcast_ref()
            }
            _ => None,
        }
    }

    /// True if the certificate is good, and for another name.
    #[must_use]
    pub const fn is_about_name(&self) -> bool {
        self.is_about_name
    }
}

/// The certificates that a client trusts.
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

    /// Judges the certificate of a server and the others that it sent.
    pub(crate) fn judge(
        &self,
        server: &[u8],
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
        algorithms: &Algorithms,
    ) -> Result<(), Refusal> {
        let parse = |role, der| Certificate::parse(der).map_err(|why| unreadable(role, &why));
        let leaf = parse("the server's certificate", server)?;
        let sent = others
            .iter()
            .map(|der| parse("a certificate that the server sent with its own", der))
            .collect::<Result<Vec<_>, _>>()?;
        leaf.check_itself(SERVER, now)?;
        leaf.check_name(name)?;
        leaf.check_key()?;
        if self.0.iter().any(|trusted| *trusted.der == *server) {
            return leaf.check_usage(SERVER);
        }
        let mut search = Search {
            trusted: self,
            sent: &sent,
            others,
            now,
            algorithms,
            signatures_left: MOST_SIGNATURES,
        };
        search.extend(&mut vec![&leaf])
    }
}

const SERVER: &str = "the server's certificate";
const AUTHORITY: &str = "the authority";

/// A certificate, and the parts of it that count.
struct Certificate<'a> {
    der: &'a [u8],
    parsed: X509Certificate<'a>,
    /// Its identifier and parameters, as they stand in the certificate.
    signature_algorithm: &'a [u8],
    /// The flag of its basic constraints; none without them.
    is_authority: Option<bool>,
    most_intermediates: Option<u32>,
    may_sign: bool,
    may_serve: bool,
    names: Vec<GeneralName<'a>>,
    policies: Vec<Oid<'a>>,
    requires_policy: bool,
    inhibits_any_policy: bool,
    maps_policies: bool,
    constrains_names: bool,
    unknown_critical: Option<String>,
}

impl<'a> Certificate<'a> {
    fn parse(der: &'a [u8]) -> Result<Self, String> {
        let bad = |_| "is not in DER".to_owned();
        let (rest, parsed) = X509Certificate::from_der(der).map_err(|_| "is not in DER".to_owned())?;
        if !rest.is_empty() {
            return Err("has bytes after its end".to_owned());
        }
        let (_, whole) = Any::from_der(der).map_err(bad)?;
        let (rest, _) = Any::from_der(whole.data).map_err(bad)?;
        let (_, algorithm) = Any::from_der(rest).map_err(bad)?;
        if parsed.signature_algorithm != parsed.tbs_certificate.signature {
            return Err("names two algorithms of its signature".to_owned());
        }
        let mut read = Self {
            der,
            signature_algorithm: algorithm.data,
            is_authority: None,
            most_intermediates: None,
            may_sign: true,
            may_serve: true,
            names: Vec::new(),
            policies: Vec::new(),
            requires_policy: false,
            inhibits_any_policy: false,
            maps_policies: false,
            constrains_names: false,
            unknown_critical: None,
            parsed,
        };
        read.read_extensions()?;
        Ok(read)
    }

    fn read_extensions(&mut self) -> Result<(), String> {
        let extensions = self.parsed.extensions();
        if self.parsed.version() != X509Version::V3 && !extensions.is_empty() {
            return Err("has extensions, which only version 3 has".to_owned());
        }
        for (index, extension) in extensions.iter().enumerate() {
            if extensions
                .iter()
                .skip(index + 1)
                .any(|other| other.oid == extension.oid)
            {
                return Err(format!("has the extension {} twice", extension.oid));
            }
            match extension.parsed_extension() {
                ParsedExtension::BasicConstraints(basic) => {
                    self.is_authority = Some(basic.ca);
                    self.most_intermediates = basic.path_len_constraint;
                }
                ParsedExtension::KeyUsage(usage) => self.may_sign = usage.flags == 0 || usage.key_cert_sign(),
                ParsedExtension::ExtendedKeyUsage(usage) => self.may_serve = usage.any || usage.server_auth,
                ParsedExtension::SubjectAlternativeName(names) => {
                    let malformed =
                        |name: &GeneralName<'_>| matches!(name, GeneralName::Invalid(Tag(2 | 7), _));
                    if names.general_names.iter().any(malformed) {
                        return Err("has a malformed subject alternative name".to_owned());
                    }
                    self.names.clone_from(&names.general_names);
                }
                ParsedExtension::CertificatePolicies(policies) => {
                    self.policies = policies.iter().map(|policy| policy.policy_id.clone()).collect();
                }
                ParsedExtension::PolicyMappings(_) => self.maps_policies = true,
                ParsedExtension::PolicyConstraints(constraints) => {
                    self.requires_policy = constraints.require_explicit_policy.is_some();
                }
                ParsedExtension::InhibitAnyPolicy(_) => self.inhibits_any_policy = true,
                ParsedExtension::NameConstraints(_) => self.constrains_names = true,
                ParsedExtension::CRLDistributionPoints(_) => {}
                ParsedExtension::ParseError { .. }
                    if extension.critical || extension.oid.as_bytes().starts_with(&STANDARD_EXTENSIONS) =>
                {
                    return Err(format!("has a malformed extension {}", extension.oid));
                }
                _ if extension.critical => self.unknown_critical = Some(extension.oid.to_string()),
                _ => {}
            }
        }
        Ok(())
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

    fn validity(&self) -> ValidityPeriod {
        ValidityPeriod::of_parsed(&self.parsed)
    }

    fn refuse(&self, role: &str, reason: impl Into<String>, remedy: impl Into<String>) -> Refusal {
        let [subject, issuer] =
            [self.parsed.subject(), self.parsed.issuer()].map(|name| shown(&name.to_string()));
        let end = self.validity().not_after;
        Refusal {
            certificate: format!("{role} (subject {subject}, issuer {issuer}, valid until {end})"),
            reason: reason.into(),
            remedy: remedy.into(),
            is_about_name: false,
        }
    }

    fn refuse_name(&self, reason: String, remedy: String) -> Refusal {
        Refusal {
            is_about_name: true,
            ..self.refuse(SERVER, reason, remedy)
        }
    }

    /// Checks the rules for every certificate, wherever it stands.
    fn check_itself(&self, role: &str, now: UnixTime) -> Result<(), Refusal> {
        if let Some(extension) = &self.unknown_critical {
            let reason = format!("has the critical extension {extension}, which clients do not know");
            return Err(self.refuse(role, reason, "Issue it again without that extension"));
        }
        let ValidityPeriod {
            not_before,
            not_after,
        } = self.validity();
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now > not_after.as_second() {
            return Err(self.refuse(role, "has expired", "Issue it again"));
        }
        if now < not_before.as_second() {
            let reason = format!("is not valid before {not_before}");
            return Err(self.refuse(role, reason, "Check the clocks of the server and of this machine"));
        }
        Ok(())
    }

    fn check_usage(&self, role: &str) -> Result<(), Refusal> {
        if self.may_serve {
            return Ok(());
        }
        let remedy = "Issue it again with the extended key usage serverAuth, or without any";
        Err(self.refuse(
            role,
            "is not for servers: its extended key usages lack serverAuth",
            remedy,
        ))
    }

    /// Checks that the key is one with which a handshake can be signed. That of an authority is checked with its
    /// signatures.
    fn check_key(&self) -> Result<(), Refusal> {
        match self.parsed.public_key().parsed() {
            Ok(PublicKey::RSA(rsa)) if rsa.key_size() < FEWEST_RSA_BITS => {
                let reason = format!("has an RSA key of fewer than {FEWEST_RSA_BITS} bits");
                Err(self.refuse(SERVER, reason, "Issue it again with a longer key"))
            }
            _ => Ok(()),
        }
    }

    fn check_name(&self, expected: &ServerName<'_>) -> Result<(), Refusal> {
        let (kind, expected_text, matches) = match expected {
            ServerName::IpAddress(ip) => {
                let octets = match IpAddr::from(*ip) {
                    IpAddr::V4(v4) => v4.octets().to_vec(),
                    IpAddr::V6(v6) => v6.octets().to_vec(),
                };
                let same =
                    |name: &GeneralName<'_>| matches!(name, GeneralName::IPAddress(ip) if *ip == octets);
                ("IP", IpAddr::from(*ip).to_string(), self.names.iter().any(same))
            }
            ServerName::DnsName(host) => {
                let host = host.as_ref();
                let same = |name: &GeneralName<'_>| match name {
                    GeneralName::DNSName(pattern) => covers(pattern, host),
                    _ => false,
                };
                ("DNS", host.to_owned(), self.names.iter().any(same))
            }
            _ => ("DNS", "of an unknown kind".to_owned(), false),
        };
        if matches {
            return Ok(());
        }
        let names: Vec<String> = self
            .names
            .iter()
            .filter_map(name_shown)
            .take(NAMES_SHOWN)
            .collect();
        let expected = shown(&expected_text);
        let again = format!("issue it again with the subject alternative name {kind}:{expected}");
        if names.is_empty() {
            let common = self.parsed.subject().iter_common_name().next();
            let has = match common.and_then(|name| name.as_str().ok()) {
                Some(common) => format!("only the common name {}, which clients ignore", shown(common)),
                None => "no name at all".to_owned(),
            };
            let reason =
                format!("does not have the name {expected}: it has no subject alternative name, {has}");
            return Err(self.refuse_name(reason, capitalized(&again)));
        }
        let more = if self.names.len() > names.len() {
            ", …"
        } else {
            ""
        };
        let reason = format!(
            "does not have the name {expected}, only {}{more}",
            names.join(", ")
        );
        let remedy = format!("Set tls-server-name in the kubeconfig to a name that it has, or {again}");
        Err(self.refuse_name(reason, remedy))
    }

    /// Checks the signature on this certificate with the key of another one.
    fn check_signature(&self, parent: &Self, algorithms: &Algorithms) -> Result<(), Refusal> {
        let key = parent.parsed.public_key();
        let spki = SubjectPublicKeyInfoDer::from(key.raw);
        let signature = &self.parsed.signature_value;
        let by = shown(&parent.parsed.subject().to_string());
        let mut is_checked = false;
        if let Ok(entity) = RawPublicKeyEntity::try_from(&spki)
            && signature.unused_bits == 0
        {
            let message = self.parsed.tbs_certificate.as_ref();
            let named = |algorithm: &&&dyn SignatureVerificationAlgorithm| {
                algorithm.signature_alg_id().as_ref() == self.signature_algorithm
            };
            for algorithm in algorithms.iter().filter(named) {
                match entity.verify_signature(*algorithm, message, &signature.data) {
                    Ok(()) => return Ok(()),
                    Err(webpki::Error::InvalidSignatureForPublicKey) => is_checked = true,
                    // Another curve or kind of key.
                    Err(_) => {}
                }
            }
        }
        match key.parsed() {
            Ok(PublicKey::RSA(rsa)) if rsa.key_size() < FEWEST_RSA_BITS => {
                let reason =
                    format!("is signed by {by} with an RSA key of fewer than {FEWEST_RSA_BITS} bits");
                Err(self.refuse(
                    "a certificate",
                    reason,
                    "Issue the authority and the certificate again",
                ))
            }
            _ if is_checked => {
                let reason =
                    format!("is not signed by the authority {by}, although it names it as its issuer");
                let remedy = "Put the authority that signed it into certificate-authority-data";
                Err(self.refuse("a certificate", reason, remedy))
            }
            _ => {
                let algorithm = &self.parsed.signature_algorithm.algorithm;
                let reason =
                    format!("is signed by {by} with an algorithm ({algorithm}) or key that is not accepted");
                let remedy = "Issue it again with SHA-256 or longer, and RSA, P-256, P-384, P-521 or Ed25519";
                Err(self.refuse("a certificate", reason, remedy))
            }
        }
    }

    fn has_policy(&self, policy: &[u8]) -> bool {
        self.policies.iter().any(|own| own.as_bytes() == policy)
    }
}

/// The search for a chain from the server's certificate to one that is trusted.
struct Search<'a> {
    trusted: &'a TrustStore,
    sent: &'a [Certificate<'a>],
    others: &'a [CertificateDer<'a>],
    now: UnixTime,
    algorithms: &'a Algorithms,
    signatures_left: u32,
}

impl<'a> Search<'a> {
    /// Extends a chain to one that is trusted; the refusal is that of the first candidate.
    fn extend(&mut self, chain: &mut Vec<&'a Certificate<'a>>) -> Result<(), Refusal> {
        let Some(&child) = chain.last() else {
            return Ok(());
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
                Ok(()) => return Ok(()),
                Err(refusal) => _ = first.get_or_insert(refusal),
            }
        }
        for parent in self.sent {
            if parent.subject() != child.issuer() || chain.iter().any(|known| known.is_same_subject(parent)) {
                continue;
            }
            let outcome = match self.check_parent(chain, parent) {
                Ok(()) if parent.is_authority != Some(true) => Err(no_authority(parent)),
                Ok(()) => {
                    chain.push(parent);
                    let extended = self.extend(chain);
                    chain.pop();
                    extended
                }
                Err(refusal) => Err(refusal),
            };
            match outcome {
                Ok(()) => return Ok(()),
                Err(refusal) => _ = first.get_or_insert(refusal),
            }
        }
        Err(first.unwrap_or_else(|| {
            let reason = match child.issuer() == child.subject() {
                true => "is signed by itself and is not among the trusted authorities",
                false => "is signed by an authority that is neither trusted nor sent by the server",
            };
            let remedy = "Put its issuer, or the certificate itself, into certificate-authority-data";
            child.refuse(if chain.len() == 1 { SERVER } else { AUTHORITY }, reason, remedy)
        }))
    }

    /// Judges a chain that ends in a trusted certificate.
    fn complete(&mut self, chain: &[&'a Certificate<'a>], root: &Certificate<'_>) -> Result<(), Refusal> {
        self.check_parent(chain, root)?;
        for (index, certificate) in chain.iter().enumerate() {
            certificate.check_usage(if index == 0 { SERVER } else { AUTHORITY })?;
        }
        root.check_usage(AUTHORITY)?;
        check_policies(chain)?;
        let Some((server, authorities)) = chain.split_first() else {
            return Ok(());
        };
        let mut constraining = authorities
            .iter()
            .copied()
            .chain([root])
            .filter(|one| one.constrains_names);
        let Some(first) = constraining.next() else {
            return Ok(());
        };
        // Go also judges them by their own constraints; webpki does not.
        if let Some(named) = [first]
            .into_iter()
            .chain(constraining)
            .find(|one| !one.names.is_empty())
        {
            let reason = "has name constraints and subject alternative names of its own";
            return Err(named.refuse(AUTHORITY, reason, "Issue it again without these names"));
        }
        self.check_constrained_names(server, root)
    }

    /// webpki judges the whole chain where an authority may sign some names only.
    fn check_constrained_names(
        &self,
        server: &Certificate<'_>,
        root: &Certificate<'_>,
    ) -> Result<(), Refusal> {
        let root = CertificateDer::from(root.der);
        let leaf = CertificateDer::from(server.der);
        let judged = anchor_from_trusted_cert(&root).and_then(|anchor| {
            let end_entity = EndEntityCert::try_from(&leaf)?;
            let usage = KeyUsage::server_auth();
            end_entity.verify_for_usage(
                self.algorithms,
                &[anchor],
                self.others,
                self.now,
                usage,
                None,
                None,
            )?;
            Ok(())
        });
        judged.map_err(|error| {
            let reason = format!("is not accepted under the name constraints of its authorities: {error}");
            server.refuse(
                SERVER,
                reason,
                "Issue it again with names that its authorities may sign",
            )
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
        // Version 1 knows no flag.
        if !parent
            .is_authority
            .unwrap_or(parent.parsed.version() != X509Version::V3)
        {
            return Err(no_authority(parent));
        }
        if !parent.may_sign {
            let reason = "has signed a certificate, and its key usage does not allow that";
            return Err(parent.refuse(AUTHORITY, reason, "Issue it again with the key usage keyCertSign"));
        }
        child.check_signature(parent, self.algorithms)?;
        parent.check_itself(AUTHORITY, self.now)?;
        let between = u32::try_from(chain.len().saturating_sub(1)).unwrap_or(u32::MAX);
        match parent.most_intermediates {
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
    let Some(demanding) = chain.iter().find(|certificate| certificate.requires_policy) else {
        return Ok(());
    };
    let any_counts = !chain.iter().any(|certificate| certificate.inhibits_any_policy);
    let has = |certificate: &Certificate<'_>, policy: &[u8]| {
        certificate.has_policy(policy) || (any_counts && certificate.has_policy(&ANY_POLICY))
    };
    let in_common = chain
        .iter()
        .flat_map(|certificate| &certificate.policies)
        .filter(|policy| any_counts || policy.as_bytes() != ANY_POLICY)
        .any(|policy| {
            chain
                .iter()
                .all(|certificate| has(certificate, policy.as_bytes()))
        });
    if in_common && !chain.iter().any(|certificate| certificate.maps_policies) {
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

fn unreadable(role: &str, why: &str) -> Refusal {
    Refusal {
        certificate: role.to_owned(),
        reason: format!("cannot be read: it {why}"),
        remedy: "Issue it again".to_owned(),
        is_about_name: false,
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

fn name_shown(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(shown(name)),
        GeneralName::IPAddress(octets) => {
            let v4 = <[u8; 4]>::try_from(*octets).map(IpAddr::from);
            let v6 = || <[u8; 16]>::try_from(*octets).map(IpAddr::from);
            v4.or_else(|_| v6()).ok().map(|address| address.to_string())
        }
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

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters
        .next()
        .map(|first| first.to_ascii_uppercase())
        .into_iter()
        .chain(characters)
        .collect()
}

#[cfg(test)]
mod tests;
