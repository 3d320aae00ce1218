use proptest::prelude::*;
use rustls_pki_types::UnixTime;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::*;

const DAY: SignedDuration = SignedDuration::from_hours(24);

fn noon() -> Timestamp {
    "2026-11-23T12:00:00Z".parse().unwrap()
}

fn begun(now: Timestamp) -> Authorities {
    Authorities::default().renewed(now).unwrap().unwrap()
}

fn names() -> Vec<String> {
    vec!["watchdog-weeder.garden.svc".to_owned()]
}

/// True if a reader of these authorities takes the certificate at this time, as a server's and as a client's.
fn trusts(authorities: &Authorities, issued: &Issued, at: Timestamp) -> bool {
    let anchor = |authority| anchor_from_trusted_cert(authority).unwrap().to_owned();
    let anchors: Vec<_> = authorities.certificates().map(anchor).collect();
    let certificate = EndEntityCert::try_from(&issued.certificate).unwrap();
    let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(at.as_second().try_into().unwrap()));
    [KeyUsage::server_auth(), KeyUsage::client_auth()]
        .into_iter()
        .all(|usage| {
            let algorithms = &[webpki::ring::ECDSA_P256_SHA256];
            certificate
                .verify_for_usage(algorithms, &anchors, &[], at, usage, None, None)
                .is_ok()
        })
}

#[test]
fn the_first_authority_issues_at_once() {
    let authorities = begun(noon());
    let issued = authorities.issue(&names(), noon()).unwrap();
    assert!(trusts(&authorities, &issued, noon()));
    assert!(
        trusts(&authorities, &issued, noon() - SignedDuration::from_mins(50)),
        "a clock that is behind"
    );
    assert!(
        !trusts(&authorities, &issued, noon() + DAY + SignedDuration::from_secs(1)),
        "short-lived"
    );
    assert!(!trusts(&begun(noon()), &issued, noon()), "another authority");
    let certificate = EndEntityCert::try_from(&issued.certificate).unwrap();
    assert_eq!(certificate.valid_dns_names().collect::<Vec<_>>(), names());
    assert!(authorities.renewed(noon()).unwrap().is_none(), "one is enough");
}

#[test]
fn the_next_authority_is_trusted_for_a_day_before_it_issues() {
    let first = begun(noon());
    let late = noon() + AUTHORITY_LIFE - AUTHORITY_RENEW_BEFORE;
    assert!(
        first
            .renewed(late - SignedDuration::from_secs(1))
            .unwrap()
            .is_none()
    );
    let both = first.renewed(late).unwrap().unwrap();
    assert_eq!(both.certificates().count(), 2);
    let before = both
        .issue(&names(), late + OVERLAP - SignedDuration::from_secs(1))
        .unwrap();
    let after = both.issue(&names(), late + OVERLAP).unwrap();
    let at = late + OVERLAP;
    assert!(trusts(&first, &before, at), "a reader that knows the first only");
    assert!(!trusts(&first, &after, at));
    assert!(trusts(&both, &after, at));
}

#[test]
fn a_secret_is_read_as_it_was_written() {
    let first = begun(noon() + SignedDuration::from_millis(1));
    let both = first.renewed(noon() + AUTHORITY_LIFE - DAY).unwrap().unwrap();
    let (certificates, keys) = both.to_pem();
    assert_eq!(
        Authorities::from_pem(certificates.as_bytes(), keys.as_bytes()).unwrap(),
        both
    );
    assert_eq!(Authorities::from_pem(b"", b"").unwrap(), Authorities::default());
}

#[test]
fn what_cannot_be_used_is_named_and_not_shown() {
    let (certificate, key) = begun(noon()).to_pem();
    let (_, other) = begun(noon()).to_pem();
    let leaf = begun(noon()).issue(&names(), noon()).unwrap();
    let leaf = pem::encode(&Pem::new("CERTIFICATE", leaf.certificate.to_vec()));
    let garbage = pem::encode(&Pem::new("CERTIFICATE", b"classified".to_vec()));
    let bad_key = pem::encode(&Pem::new("PRIVATE KEY", b"classified".to_vec()));
    for (certificates, keys, expected) in [
        (
            &certificate,
            &String::new(),
            "ca.crt holds 1 certificates and ca.key 0 keys, they must be as many",
        ),
        (
            &certificate,
            &other,
            "key 1 of ca.key does not belong to certificate 1 of ca.crt",
        ),
        (&leaf, &key, "certificate 1 of ca.crt is not one of an authority"),
        (&garbage, &key, "certificate 1 of ca.crt cannot be read"),
        (&certificate, &bad_key, "key 1 of ca.key cannot be read"),
        (
            &certificate.repeat(5),
            &key.repeat(5),
            "ca.crt holds 5 certificates, at most 4 are allowed",
        ),
    ] {
        let error = Authorities::from_pem(certificates.as_bytes(), keys.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let shown = format!("{:?}", begun(noon()));
    assert!(!shown.contains("PRIVATE") && !shown.contains("key"), "{shown}");
}

#[test]
fn a_clock_for_which_no_authority_is_valid_is_named() {
    let error = begun(noon()).issue(&names(), noon() - 2 * DAY).unwrap_err();
    let expected = "no authority is valid at 2026-11-21T12:00:00Z: check the clock of this node";
    assert_eq!(error.to_string(), expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Replicas whose clocks differ by less than an hour trust each other for years, though each of them may have read
    /// the Secret up to half a day ago, and one with a clock that is off by years also writes it.
    #[test]
    fn replicas_trust_each_other_at_all_times(
        skews in proptest::collection::vec(-1_700_i64..1_700, 3),
        off in -70_000_i64..70_000,
        stale in proptest::collection::vec(any::<bool>(), 3 * 90),
    ) {
        let step = SignedDuration::from_hours(12);
        let mut secret = begun(noon());
        let mut read = vec![secret.clone(); 3];
        let mut now = noon();
        // Each turn is twelve hours; between two of them that matter, many days in which nothing happens.
        for (turn, stale) in stale.chunks(3).enumerate() {
            now += if turn % 4 == 0 { step * 60 } else { step };
            if let Some(renewed) = secret.renewed(now + SignedDuration::from_hours(off)).unwrap() {
                secret = renewed;
            }
            for (replica, stale) in stale.iter().enumerate() {
                let clock = now + SignedDuration::from_secs(skews[replica]);
                if turn % 4 == 0 || !stale || read[replica] == secret {
                    if let Some(renewed) = secret.renewed(clock).unwrap() {
                        secret = renewed;
                    }
                    read[replica] = secret.clone();
                }
            }
            for (issuer, skew) in read.iter().zip(&skews) {
                let issued = issuer.issue(&names(), now + SignedDuration::from_secs(*skew)).unwrap();
                for (reader, skew) in read.iter().zip(&skews) {
                    prop_assert!(trusts(reader, &issued, now + SignedDuration::from_secs(*skew)), "turn {turn}");
                }
            }
        }
    }
}
