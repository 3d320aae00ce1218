use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, GeneralSubtree,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P521_SHA512,
    SignatureAlgorithm, date_time_ymd,
};

use super::*;

const HOST: &str = "api.shoot.test";
const SERVES: ExtendedKeyUsagePurpose = ExtendedKeyUsagePurpose::ServerAuth;
const POLICY_CONSTRAINTS: &[u64] = &[2, 5, 29, 36];
const POLICIES: &[u64] = &[2, 5, 29, 32];
/// requireExplicitPolicy: 0
const REQUIRE_POLICY: &[u8] = &[0x30, 0x03, 0x80, 0x01, 0x00];
/// 2.5.29.32.0
const ANY: &[u8] = &[0x30, 0x08, 0x30, 0x06, 0x06, 0x04, 0x55, 0x1d, 0x20, 0x00];
/// 1.2.3 and 1.2.4
const FIRST: &[u8] = &[0x30, 0x06, 0x30, 0x04, 0x06, 0x02, 0x2a, 0x03];
const SECOND: &[u8] = &[0x30, 0x06, 0x30, 0x04, 0x06, 0x02, 0x2a, 0x04];

/// A certificate and its key.
struct Made {
    der: CertificateDer<'static>,
    params: CertificateParams,
    key: KeyPair,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2026, 1, 1);
    params.not_after = date_time_ymd(2027, 1, 1);
    params
}

fn authority(name: &str) -> CertificateParams {
    let mut params = params(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn server() -> CertificateParams {
    let mut params = params("kube-apiserver");
    params.subject_alt_names = vec![rcgen::SanType::DnsName(HOST.try_into().unwrap())];
    params.is_ca = IsCa::ExplicitNoCa;
    params.extended_key_usages = vec![SERVES];
    params
}

fn with(mut params: CertificateParams, oid: &[u64], critical: bool, content: &[u8]) -> CertificateParams {
    let mut extension = CustomExtension::from_oid_content(oid, content.to_vec());
    extension.set_criticality(critical);
    params.custom_extensions.push(extension);
    params
}

fn self_signed_with(params: CertificateParams, algorithm: &'static SignatureAlgorithm) -> Made {
    let key = KeyPair::generate_for(algorithm).unwrap();
    let der = params.self_signed(&key).unwrap().der().clone();
    Made { der, params, key }
}

fn self_signed(params: CertificateParams) -> Made {
    self_signed_with(params, &PKCS_ECDSA_P256_SHA256)
}

fn signed_with(params: CertificateParams, by: &Made, algorithm: &'static SignatureAlgorithm) -> Made {
    let key = KeyPair::generate_for(algorithm).unwrap();
    let issuer = Issuer::from_params(&by.params, &by.key);
    let der = params.signed_by(&key, &issuer).unwrap().der().clone();
    Made { der, params, key }
}

fn signed(params: CertificateParams, by: &Made) -> Made {
    signed_with(params, by, &PKCS_ECDSA_P256_SHA256)
}

fn seconds(year: i32) -> UnixTime {
    let at = u64::try_from(date_time_ymd(year, 6, 1).unix_timestamp()).unwrap();
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(at))
}

/// How a client that trusts `trusted` judges a server that sends `others` with its own certificate.
fn judge(
    trusted: &[&CertificateDer<'static>],
    server: &[u8],
    others: &[CertificateDer<'_>],
    name: &str,
    year: i32,
) -> Result<(), String> {
    let (store, unreadable) = TrustStore::new(trusted.iter().map(|&der| der.clone()));
    assert_eq!(unreadable, 0);
    let name = ServerName::try_from(name).unwrap();
    store
        .judge(server, others, Purpose::Server(&name), seconds(year))
        .map(drop)
        .map_err(|refusal| refusal.to_string())
}

/// The server sends `sent`, its own certificate first.
fn judged_at(trusted: &[&Made], sent: &[&Made], name: &str, year: i32) -> Result<(), String> {
    let trusted: Vec<_> = trusted.iter().map(|made| &made.der).collect();
    let others: Vec<_> = sent.iter().skip(1).map(|made| made.der.clone()).collect();
    judge(&trusted, &sent[0].der, &others, name, year)
}

fn judged(trusted: &[&Made], sent: &[&Made]) -> Result<(), String> {
    judged_at(trusted, sent, HOST, 2026)
}

#[track_caller]
fn refused(outcome: Result<(), String>, reason: &str) {
    let refusal = outcome.unwrap_err();
    assert!(refusal.contains(reason), "{refusal}");
    assert!(
        refusal.contains("(subject CN=") && refusal.contains(", issuer CN="),
        "{refusal}"
    );
    assert!(refusal.contains(", valid until 20"), "{refusal}");
}

#[test]
fn a_chain_to_a_trusted_authority_is_accepted() {
    let root = self_signed(authority("root"));
    let between = signed(authority("between"), &root);
    let leaf = signed(server(), &between);
    assert_eq!(judged(&[&root], &[&leaf, &between]), Ok(()));
    assert_eq!(
        judged(&[&between], &[&leaf]),
        Ok(()),
        "an authority that another one signed"
    );
    refused(judged(&[&root], &[&leaf]), "neither trusted nor sent");
    refused(judged(&[&leaf], &[&between]), "no subject alternative name");
}

#[test]
fn a_certificate_that_is_itself_trusted_is_accepted_for_its_own_names() {
    let root = self_signed(authority("root"));
    let leaf = signed(server(), &root);
    assert_eq!(judged(&[&leaf], &[&leaf]), Ok(()));
    let mut params = server();
    params.distinguished_name.push(DnType::CommonName, "own");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let own = self_signed(params);
    assert_eq!(judged(&[&own], &[&own]), Ok(()));
    for pinned in [&leaf, &own] {
        refused(
            judged_at(&[pinned], &[pinned], "other.test", 2026),
            "does not have the name other.test",
        );
        refused(judged_at(&[pinned], &[pinned], HOST, 2028), "has expired");
    }
    refused(judged(&[&leaf], &[&own]), "signed by itself");
    // What is trusted for itself signs nothing.
    let below = signed(server(), &leaf);
    refused(judged(&[&leaf], &[&below]), "do not make it an authority");
}

#[test]
fn curves_and_hashes_of_go_are_known() {
    for algorithm in [
        &PKCS_ECDSA_P521_SHA512,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ED25519,
    ] {
        let root = self_signed_with(authority("root"), algorithm);
        let leaf = signed_with(server(), &root, algorithm);
        assert_eq!(judged(&[&root], &[&leaf]), Ok(()));
    }
}

/// Made with openssl, because rcgen makes neither: an authority of version 1, and keys on P-256 with SHA-512.
#[test]
fn old_authorities_and_long_hashes_are_accepted() {
    for pem in [
        include_bytes!("v1-authority.pem").as_slice(),
        include_bytes!("p256-sha512.pem"),
    ] {
        let read = pem::parse_many(pem).unwrap();
        let [root, leaf] = [0, 1].map(|index| CertificateDer::from(read[index].contents().to_vec()));
        assert_eq!(judge(&[&root], &leaf, &[], HOST, 2027), Ok(()));
    }
}

/// A handshake with such a key fails, and would not say why.
#[test]
fn a_short_key_of_the_server_is_refused_even_where_its_certificate_is_trusted() {
    use rustls_pki_types::pem::PemObject as _;
    let der = CertificateDer::from_pem_slice(include_bytes!("rsa1024.pem")).unwrap();
    let refusal = judge(&[&der], &der, &[], HOST, 2030).unwrap_err();
    assert!(
        refusal.ends_with("has an RSA key of fewer than 2048 bits. Issue it again with a longer key"),
        "{refusal}"
    );
}

#[test]
fn every_date_counts() {
    let root = self_signed(authority("root"));
    let mut early = authority("between");
    early.not_after = date_time_ymd(2026, 2, 1);
    let mut late = authority("between");
    late.not_before = date_time_ymd(2026, 12, 1);
    for (params, reason) in [
        (early, "has expired"),
        (late, "is not valid before 2026-12-01T00:00:00Z"),
    ] {
        let between = signed(params, &root);
        let leaf = signed(server(), &between);
        refused(judged(&[&root], &[&leaf, &between]), reason);
        refused(judged(&[&between], &[&leaf]), reason);
    }
    let leaf = signed(server(), &root);
    refused(judged_at(&[&root], &[&leaf], HOST, 2028), "has expired");
    refused(judged_at(&[&root], &[&leaf], HOST, 2025), "is not valid before");
}

#[test]
fn a_signature_of_another_key_is_refused() {
    let root = self_signed(authority("root"));
    let namesake = self_signed(authority("root"));
    let leaf = signed(server(), &namesake);
    refused(
        judged(&[&root], &[&leaf]),
        "is not signed by the authority CN=root",
    );
    refused(
        judged(&[&root], &[&leaf, &namesake]),
        "is not signed by the authority CN=root",
    );
    assert_eq!(
        judged(&[&root, &namesake], &[&leaf]),
        Ok(()),
        "the next of the same name has signed it"
    );
    for byte in 0..leaf.der.len() {
        let mut der = leaf.der.to_vec();
        der[byte] ^= 1;
        assert!(
            judge(&[&namesake.der], &der, &[], HOST, 2026).is_err(),
            "byte {byte}"
        );
    }
}

#[test]
fn only_authorities_sign() {
    let root = self_signed(authority("root"));
    let mut without_flag = authority("between");
    without_flag.is_ca = IsCa::NoCa;
    let mut denied = authority("between");
    denied.is_ca = IsCa::ExplicitNoCa;
    let mut other_usage = authority("between");
    other_usage.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let make_no = "do not make it an authority";
    for (params, reason) in [
        (without_flag, make_no),
        (denied, make_no),
        (other_usage, "its key usage does not allow that"),
    ] {
        let between = signed(params, &root);
        let leaf = signed(server(), &between);
        refused(judged(&[&root], &[&leaf, &between]), reason);
        refused(judged(&[&between], &[&leaf]), reason);
    }
}

#[test]
fn a_path_is_no_longer_than_its_authorities_allow() {
    let mut short = authority("root");
    short.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let root = self_signed(short);
    let between = signed(authority("between"), &root);
    let leaf = signed(server(), &between);
    refused(
        judged(&[&root], &[&leaf, &between]),
        "allows 0 authorities below it, and there are 1",
    );
    let direct = signed(server(), &root);
    assert_eq!(judged(&[&root], &[&direct]), Ok(()));
}

#[test]
fn extended_key_usages_count_in_the_whole_chain() {
    let usages = |mut params: CertificateParams, usages: &[ExtendedKeyUsagePurpose]| {
        params.extended_key_usages = usages.to_vec();
        params
    };
    let client = [ExtendedKeyUsagePurpose::ClientAuth];
    let any = [ExtendedKeyUsagePurpose::Any];
    let root = self_signed(authority("root"));
    for accepted in [
        usages(server(), &[]),
        usages(server(), &any),
        usages(server(), &[client[0].clone(), SERVES]),
    ] {
        assert_eq!(judged(&[&root], &[&signed(accepted, &root)]), Ok(()));
    }
    let leaf = signed(usages(server(), &client), &root);
    refused(judged(&[&root], &[&leaf]), "lack serverAuth");
    refused(judged(&[&leaf], &[&leaf]), "lack serverAuth");
    let between = signed(usages(authority("between"), &client), &root);
    let leaf = signed(server(), &between);
    refused(judged(&[&root], &[&leaf, &between]), "lack serverAuth");
    refused(judged(&[&between], &[&leaf]), "lack serverAuth");
}

#[test]
fn critical_policies_are_judged() {
    let root = self_signed(authority("root"));
    let demanding = |policies| {
        let params = with(authority("between"), POLICY_CONSTRAINTS, true, REQUIRE_POLICY);
        signed(with(params, POLICIES, true, policies), &root)
    };
    let below = |between: &Made, policies: &[u8]| signed(with(server(), POLICIES, true, policies), between);
    for (above, own) in [(ANY, ANY), (ANY, FIRST), (FIRST, ANY), (FIRST, FIRST)] {
        let between = demanding(above);
        assert_eq!(judged(&[&root], &[&below(&between, own), &between]), Ok(()));
    }
    let between = demanding(FIRST);
    refused(
        judged(&[&root], &[&below(&between, SECOND), &between]),
        "do not have in common",
    );
    refused(
        judged(&[&root], &[&signed(server(), &between), &between]),
        "do not have in common",
    );
    assert_eq!(
        judged(&[&between], &[&below(&between, SECOND)]),
        Ok(()),
        "the trusted one demands nothing"
    );
}

#[test]
fn an_unknown_critical_extension_is_refused() {
    let oid = &[1, 2, 3, 4];
    let root = self_signed(authority("root"));
    let leaf = signed(with(server(), oid, true, b"\x05\x00"), &root);
    refused(judged(&[&root], &[&leaf]), "the critical extension 1.2.3.4,");
    refused(judged(&[&leaf], &[&leaf]), "the critical extension 1.2.3.4,");
    let leaf = signed(with(server(), oid, false, b"\x05\x00"), &root);
    assert_eq!(judged(&[&root], &[&leaf]), Ok(()));
    let root = self_signed(with(authority("root"), oid, true, b"\x05\x00"));
    refused(
        judged(&[&root], &[&signed(server(), &root)]),
        "the critical extension 1.2.3.4,",
    );
}

#[test]
fn name_constraints_hold() {
    let constrained = |permitted: &str| {
        let mut params = authority("root");
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::DnsName(permitted.to_owned())],
            excluded_subtrees: Vec::new(),
        });
        params
    };
    let root = self_signed(constrained("shoot.test"));
    assert_eq!(judged(&[&root], &[&signed(server(), &root)]), Ok(()));
    let root = self_signed(constrained("other.test"));
    refused(
        judged(&[&root], &[&signed(server(), &root)]),
        "under the name constraints",
    );
    let outer = self_signed(authority("outer"));
    let between = signed(constrained("other.test"), &outer);
    let leaf = signed(server(), &between);
    refused(
        judged(&[&outer], &[&leaf, &between]),
        "under the name constraints",
    );
}

#[test]
fn a_refusal_names_what_a_certificate_has_and_lacks() {
    let root = self_signed(authority("root"));
    let leaf = signed(params("api.shoot.test\nlevel=info \u{202e}"), &root);
    let refusal = judged(&[&root], &[&leaf]).unwrap_err();
    assert_eq!(
        refusal,
        "the server's certificate (subject CN=api.shoot.test\u{fffd}level=info \u{fffd}, issuer CN=root, valid until \
         2027-01-01T00:00:00Z) does not have the name api.shoot.test: it has no subject alternative name, only the \
         common name api.shoot.test\u{fffd}level=info \u{fffd}, which clients ignore. Issue it again with the subject \
         alternative name DNS:api.shoot.test"
    );
    let leaf = signed(params(&"x".repeat(5000)), &root);
    assert!(judged(&[&root], &[&leaf]).unwrap_err().len() < 700);
    let leaf = signed(server(), &root);
    let refusal = judged_at(&[&root], &[&leaf], "10.0.0.1", 2026).unwrap_err();
    assert!(
        refusal.contains("only api.shoot.test. Expect a name that it has (tls-server-name in a kubeconfig, "),
        "{refusal}"
    );
    assert!(refusal.contains("--tls-peer-server-name for gRPC"), "{refusal}");
    assert!(refusal.ends_with("alternative name IP:10.0.0.1"), "{refusal}");
}

#[test]
fn wildcards_stand_for_one_label() {
    for (pattern, host, expected) in [
        ("api.test", "API.test.", true),
        ("*.test", "api.test", true),
        ("*.test", "a.api.test", false),
        ("*.test", "test", false),
        ("*.test", ".test", false),
        ("a*.test", "api.test", false),
        ("api.*", "api.test", false),
        ("*", "test", false),
        ("", "", false),
    ] {
        assert_eq!(covers(pattern, host), expected, "{pattern} {host}");
    }
}

#[test]
fn what_cannot_be_read_is_left_out_and_nothing_panics() {
    let root = self_signed(authority("root"));
    let (store, unreadable) = TrustStore::new([CertificateDer::from(b"0".to_vec()), root.der.clone()]);
    assert!(!store.is_empty() && unreadable == 1);
    for cut in 0..root.der.len() {
        assert!(judge(&[&root.der], &root.der[..cut], &[], HOST, 2026).is_err());
    }
}

/// Without a bound, certificates that sign each other take as many signatures as they have orders.
#[test]
fn the_search_is_bounded() {
    let roots: Vec<_> = (0..12).map(|_| self_signed(authority("same"))).collect();
    let trusted = self_signed(authority("trusted"));
    let stranger = self_signed(authority("same"));
    let leaf = signed(server(), &stranger);
    let sent: Vec<_> = [&leaf].into_iter().chain(&roots).collect();
    refused(
        judged(&[&trusted], &sent),
        "is not signed by the authority CN=same",
    );
    let made: Vec<_> = (0..8).map(|_| self_signed(authority("same"))).collect();
    let ring = made.iter().flat_map(|by| {
        let issuer = Issuer::from_params(&by.params, &by.key);
        let sign = move |of: &Made| of.params.signed_by(&of.key, &issuer).unwrap().der().clone();
        made.iter().map(sign)
    });
    let leaf = signed(server(), &made[0]);
    let ring: Vec<_> = ring.collect();
    assert!(judge(&[&trusted.der], &leaf.der, &ring, HOST, 2026).is_err());
}

fn second(year: i32, offset: i64) -> UnixTime {
    let start = date_time_ymd(year, 1, 1).unix_timestamp();
    UnixTime::since_unix_epoch(Duration::from_secs((start + offset).try_into().unwrap()))
}

/// From and until the first day of these years.
fn valid_in(mut params: CertificateParams, years: [i32; 2]) -> CertificateParams {
    [params.not_before, params.not_after] = years.map(|year| date_time_ymd(year, 1, 1));
    params
}

fn caller(years: [i32; 2]) -> CertificateParams {
    let mut params = valid_in(params("caller"), years);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

#[test]
fn a_caller_is_accepted_while_its_certificate_and_its_authority_are_valid_and_not_a_second_longer() {
    for (authority_years, own_end, [begin, end]) in [
        ([2020, 2040], 2030, [2026, 2030]),
        ([2020, 2030], 2040, [2026, 2030]),
        ([2020, 2040], 2040, [2026, 2040]),
        ([2028, 2040], 2030, [2028, 2030]),
    ] {
        let ours = self_signed(valid_in(authority("ours"), authority_years));
        let other = self_signed(valid_in(authority("other"), [2020, 2050]));
        let own = signed(caller([2020, own_end]), &ours).der;
        let (both, _) = TrustStore::new([other.der.clone(), ours.der]);
        let judged = |now| both.judge_caller(std::slice::from_ref(&own), now);
        assert!(judged(second(begin, 0)).is_ok());
        assert!(begin == 2026 || judged(second(begin, -1)).is_err());
        for (seconds, expected) in [(-10, Some(11)), (0, Some(1)), (1, None)] {
            let left = judged(second(end, seconds)).ok();
            assert_eq!(
                left,
                expected.map(Duration::from_secs),
                "{authority_years:?} {own_end}"
            );
        }
        let (replaced, _) = TrustStore::new([other.der]);
        assert!(replaced.judge_caller(&[own], second(end, -10)).is_err());
    }
    assert!(TrustStore::default().judge_caller(&[], second(2026, 0)).is_err());
}

#[test]
fn a_refused_caller_learns_the_kind_of_refusal() {
    use rustls::AlertDescription::{self, CertificateExpired, UnknownCA, UnsupportedCertificate};
    let ours = self_signed(valid_in(authority("ours"), [2020, 2030]));
    let future = self_signed(valid_in(authority("future"), [2028, 2050]));
    let stranger = self_signed(valid_in(authority("stranger"), [2020, 2050]));
    let usage = |usage| {
        let mut params = caller([2020, 2040]);
        params.extended_key_usages = vec![usage];
        signed(params, &ours).der
    };
    let own = signed(caller([2020, 2040]), &ours).der;
    let (store, _) = TrustStore::new([ours.der.clone(), future.der.clone(), own.clone()]);
    for (own, year, alert) in [
        (own, 2031, CertificateExpired),
        (signed(caller([2020, 2025]), &ours).der, 2026, CertificateExpired),
        (
            signed(caller([2020, 2040]), &future).der,
            2026,
            CertificateExpired,
        ),
        (signed(caller([2020, 2040]), &stranger).der, 2026, UnknownCA),
        (ours.der.clone(), 2026, UnknownCA),
        (usage(SERVES), 2026, UnsupportedCertificate),
        (usage(ExtendedKeyUsagePurpose::Any), 2026, UnsupportedCertificate),
    ] {
        let refusal = store.judge_caller(&[own], second(year, 0)).unwrap_err();
        assert_eq!(AlertDescription::from(refusal.kind.clone()), alert, "{refusal}");
    }
}
