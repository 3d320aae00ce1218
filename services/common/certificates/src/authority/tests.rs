use proptest::prelude::*;
use rcgen::{GeneralSubtree, NameConstraints, date_time_ymd};

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
    let (store, unreadable) = TrustStore::new(authorities.trusted(at).cloned());
    assert_eq!(unreadable, 0);
    let name = ServerName::try_from(names().remove(0)).unwrap();
    let at = unix_time(at);
    [Purpose::Server(&name), Purpose::Client]
        .into_iter()
        .all(|purpose| store.judge(&issued.certificate, &[], purpose, at).is_ok())
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
    assert_eq!(dns_names(&issued.certificate), Some(names()));
    assert!(authorities.renewed(noon()).unwrap().is_none(), "one is enough");
}

#[test]
fn the_next_authority_is_trusted_for_three_months_before_it_issues() {
    let first = begun(noon());
    let due = noon() + AUTHORITY_LIFE - AUTHORITY_RENEW_BEFORE;
    let second = SignedDuration::from_secs(1);
    assert!(first.renewed(due - second).unwrap().is_none());
    let both = first.renewed(due).unwrap().unwrap();
    assert_eq!(both.len(), 2);
    let at = noon() + AUTHORITY_LIFE - HAND_OVER_BEFORE;
    assert_eq!(at.duration_since(due), 90 * DAY);
    let before = both.issue(&names(), at - second).unwrap();
    let after = both.issue(&names(), at).unwrap();
    assert!(trusts(&first, &before, at), "a reader that knows the first only");
    assert!(!trusts(&first, &after, at));
    assert!(trusts(&both, &after, at));
}

#[test]
fn an_authority_that_was_made_late_issues_after_a_day() {
    let first = begun(noon());
    // The seed was switched off for months.
    let late = noon() + AUTHORITY_LIFE - 2 * DAY;
    let both = first.renewed(late).unwrap().unwrap();
    let issued_after = |time| both.issue(&names(), late + time).unwrap();
    let before = issued_after(TAKE_OVER_AFTER - SignedDuration::from_secs(1));
    let after = issued_after(TAKE_OVER_AFTER);
    assert!(trusts(&first, &before, late + TAKE_OVER_AFTER));
    assert!(!trusts(&first, &after, late + TAKE_OVER_AFTER));
}

/// A replica whose clock is a year ahead has added an authority before the one that is in use.
#[test]
fn an_authority_issues_only_while_the_clocks_of_all_find_it_valid() {
    let later = noon() + 50 * DAY;
    let [first, ahead, next] = [noon() - 400 * DAY, later, noon() - 30 * DAY].map(begun);
    let all = Authorities([first.0, ahead.0.clone(), next.0.clone()].concat());
    let begins = ahead.0[0].validity.not_before;
    let (second, hour) = (SignedDuration::from_secs(1), SignedDuration::from_hours(1));
    for at in [begins - second, begins, begins + hour - second] {
        let issued = all.issue(&names(), at).unwrap();
        assert!(trusts(&next, &issued, at));
    }
    let issued = all.issue(&names(), begins + hour).unwrap();
    assert!(trusts(&ahead, &issued, begins + second), "a clock that is behind");
    // Nor when it is about to end: a clock that is ahead refuses it.
    let at = next.0[0].validity.not_after - second;
    let both = next.renewed(at - DAY / 2).unwrap().unwrap();
    assert!(trusts(&both, &both.issue(&names(), at).unwrap(), at + 2 * second));
    // One of an operator's own that has just begun, alone.
    let own = begun(noon());
    assert!(own.issue(&names(), own.0[0].validity.not_before).is_ok());
}

#[test]
fn a_certificate_is_replaced_after_a_third_of_its_life() {
    let authorities = begun(noon());
    let issued = authorities.issue(&names(), noon()).unwrap();
    assert_eq!(issued.in_use, noon()..noon() + DAY / 3);
    // One that ends with its authority lives less.
    let late = noon() + AUTHORITY_LIFE - DAY / 8;
    let issued = authorities.issue(&names(), late).unwrap();
    assert_eq!(issued.in_use, late..late + DAY / 24);
}

#[test]
fn an_authority_that_has_ended_is_not_trusted() {
    let old = begun(noon());
    let at = noon() + AUTHORITY_LIFE + DAY;
    let both = old.renewed(at).unwrap().unwrap();
    assert_eq!(both.len(), 2);
    // A thief of the old key writes any dates into a certificate.
    assert!(both.trusted(at).eq([&both.0[1].certificate]));
    assert!(trusts(&both, &both.issue(&names(), at).unwrap(), at));
}

#[test]
fn an_authority_that_is_added_by_hand_issues_nothing_before_all_have_read_it() {
    let own = begun(noon() - 30 * DAY);
    let other = begun(noon() - 10 * DAY);
    for (added, now) in [
        (begun(noon() - 200 * DAY), noon()),
        (begun(noon() - 5 * DAY), noon()),
    ] {
        let both = Authorities([own.0.clone(), added.0, other.0.clone()].concat());
        assert!(trusts(&own, &both.issue(&names(), now).unwrap(), now));
    }
}

/// An authority of somebody else, with its key.
fn foreign(change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = date_time_ymd(2090, 1, 1);
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// Found by the damage below: the program ended when it issued.
#[test]
fn an_identifier_that_cannot_be_written_is_refused() {
    let (certificate, key) = foreign(|params| {
        params
            .distinguished_name
            .push(DnType::OrganizationName, "somebody else");
    });
    let mut der = pem::parse(&certificate).unwrap().into_contents();
    let organization = [0x55, 4, 10];
    let places: Vec<_> = (0..der.len())
        .filter(|at| der[*at..].starts_with(&organization))
        .collect();
    assert!(!places.is_empty());
    for at in places {
        der[at] = 5 * 40;
    }
    let damaged = pem::encode(&Pem::new("CERTIFICATE", der));
    let error = Authorities::from_pem(damaged.as_bytes(), key.as_bytes()).unwrap_err();
    assert_eq!(error.to_string(), "certificate 1 of ca.crt cannot be read");
}

#[test]
fn an_authority_that_issues_nothing_valid_is_named() {
    let (certificate, key) = foreign(|params| {
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::DnsName("elsewhere.test".to_owned())],
            excluded_subtrees: Vec::new(),
        });
    });
    let authorities = Authorities::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
    let error = authorities.issue(&names(), noon()).unwrap_err().to_string();
    let expected =
        "certificates that are issued from certificate 1 of ca.crt are not valid: the server's certificate ";
    assert!(error.starts_with(expected), "{error}");
    assert!(error.contains("name constraint violation"), "{error}");
}

#[test]
fn no_clock_makes_it_panic() {
    for now in [Timestamp::MIN, Timestamp::UNIX_EPOCH, Timestamp::MAX] {
        for authorities in [Authorities::default(), begun(noon())] {
            let renewed = authorities.renewed(now);
            let issued = authorities.issue(&names(), now);
            assert!(issued.is_err());
            if let Ok(Some(renewed)) = renewed {
                let _ = renewed.issue(&names(), now);
                assert_eq!(renewed.len(), authorities.len() + 1);
            }
        }
    }
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
            "ca.crt holds 1 certificates and ca.key holds 0 keys: every certificate needs its key",
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
            &certificate.repeat(9),
            &key.repeat(9),
            "ca.crt holds 9 certificates, at most 8 are allowed",
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
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Replicas whose clocks differ by less than an hour trust each other for years, though some of them have not read
    /// the Secret for months, and one with a clock that is off by years also writes it.
    #[test]
    fn replicas_trust_each_other_at_all_times(
        skews in proptest::collection::vec(-1_700_i64..1_700, 3),
        off in prop_oneof![-9_000_i64..9_000, -70_000_i64..70_000],
        stale in proptest::collection::vec(any::<bool>(), 3 * 120),
    ) {
        let mut secret = begun(noon());
        let mut read = vec![(noon(), secret.clone()); 3];
        let mut now = noon();
        for (turn, stale) in stale.chunks(3).enumerate() {
            now += if turn < 12 { SignedDuration::from_hours(1) } else { 8 * DAY };
            if let Some(renewed) = secret.renewed(now + SignedDuration::from_hours(off)).unwrap() {
                secret = renewed;
            }
            for (replica, stale) in stale.iter().enumerate() {
                // One of them always reads, so that the authorities are renewed in time.
                let (last, known) = &mut read[replica];
                if replica == 0 || !stale || now.duration_since(*last) > 75 * DAY {
                    let clock = now + SignedDuration::from_secs(skews[replica]);
                    if let Some(renewed) = secret.renewed(clock).unwrap() {
                        secret = renewed;
                    }
                    (*last, *known) = (now, secret.clone());
                }
            }
            for ((_, issuer), skew) in read.iter().zip(&skews) {
                let issued = issuer.issue(&names(), now + SignedDuration::from_secs(*skew)).unwrap();
                for ((_, reader), skew) in read.iter().zip(&skews) {
                    prop_assert!(trusts(reader, &issued, now + SignedDuration::from_secs(*skew)), "turn {turn}");
                }
            }
        }
    }

    /// Bytes of the Secret that somebody has damaged are refused or used, and never end the process.
    #[test]
    fn a_damaged_authority_is_refused_or_used(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let (certificate, key) = foreign(|params| {
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            params.distinguished_name.push(DnType::OrganizationName, "somebody else");
        });
        let mut der = pem::parse(&certificate).unwrap().into_contents();
        for (at, byte) in damage {
            *at.get_mut(&mut der) = byte;
        }
        let damaged = pem::encode(&Pem::new("CERTIFICATE", der));
        if let Ok(authorities) = Authorities::from_pem(damaged.as_bytes(), key.as_bytes()) {
            let _ = authorities.issue(&names(), noon()).map_err(|error| error.to_string());
            let _ = authorities.renewed(noon()).unwrap();
        }
    }
}

#[test]
fn a_certificate_for_a_client_serves_nobody_and_is_replaced_in_time() {
    const NAME: &str = "watchdog-observer.garden.svc";
    let now = noon();
    let authorities = begun(now);
    let issued = authorities.issue_for_client(NAME, now).unwrap();
    let (ca, (certificate, key)) = (authorities.trusted_pem(now), issued.to_pem());
    assert!(!ca.contains("KEY"), "{ca}");

    let checked = |purpose| verify(&issued.certificate, &authorities.0[0].certificate, purpose, now);
    assert_eq!(checked(Purpose::Client), Ok(()));
    let name = ServerName::try_from(NAME).unwrap();
    let refusal = checked(Purpose::Server(&name)).unwrap_err().to_string();
    assert!(refusal.contains("lack serverAuth"), "{refusal}");

    let is_current = |authorities: &Authorities, [ca, certificate, key, name]: [&str; 4], now| {
        let client = ClientPem {
            ca: ca.as_bytes(),
            certificate: certificate.as_bytes(),
            key: key.as_bytes(),
        };
        authorities.is_client_current(&client, name, now)
    };
    let hours = |hours| shifted(now, SignedDuration::from_hours(hours));
    let good = [ca.as_str(), &certificate, &key, NAME];
    for (hour, expected) in [(0, true), (7, true), (8, false), (-1, false)] {
        assert_eq!(is_current(&authorities, good, hours(hour)), expected, "{hour}");
    }
    let (foreign, foreign_key) = authorities.issue_for_client(NAME, now).unwrap().to_pem();
    for bad in [
        [&ca, &certificate, &key, "other.garden.svc"],
        ["", &certificate, &key, NAME],
        [&ca, "", &key, NAME],
        [&ca, &certificate, &foreign_key, NAME],
        [&ca, &foreign, &key, NAME],
    ] {
        assert!(!is_current(&authorities, bad, now), "{bad:?}");
    }
    let other = begun(now);
    let by_another = [&other.trusted_pem(now), &certificate, &key, NAME];
    assert!(!is_current(&other, by_another, now));
}
