//! The findings about a replica, by its own reports.

use std::collections::BTreeSet;

use jiff::Timestamp;
use watchdog_certificates::ValidityPeriod;

use crate::connect::inspect::ReplicaFacts;
use crate::findings::{CheckFinding, Severity};
use crate::render::text;

/// A certificate that ends within this time is worth a look: cert-manager renews 30 days before the end.
const SOON_SECONDS: i64 = 14 * 86_400;

/// Clocks that differ by this from the median of all replicas are wrong. The Date header is exact to a second.
const MAX_SKEW_SECONDS: i64 = 3;

/// The check of a certificate.
const CERTIFICATE: &str = "certificate";

/// The findings that follow from the facts.
pub(crate) fn findings(
    replicas: &[ReplicaFacts],
    own_version: &str,
    own_validity: Option<ValidityPeriod>,
    now: Timestamp,
) -> Vec<CheckFinding> {
    let mut findings = Vec::new();
    let mut add = |subject: &str, what, (severity, text)| {
        findings.push(CheckFinding::new(severity, subject, what, text));
    };
    let median = median(replicas);
    for facts in replicas {
        let subject = match &facts.replica {
            Some(replica) if *replica != facts.name => format!("{replica} ({})", facts.name),
            _ => format!("{} {}", facts.program, facts.name),
        };
        if let Some(error) = &facts.error {
            add(&subject, "answer", (Severity::Wrong, error.clone()));
            continue;
        }
        add(&subject, "readiness", readiness(facts));
        if facts.is_encrypted {
            add(&subject, CERTIFICATE, certificate(facts.validity, now));
        } else {
            let text = "plaintext: everything that reaches the port can read and forge verdicts";
            add(&subject, CERTIFICATE, (Severity::Notice, text.to_owned()));
        }
        if let Some(ahead) = facts.ahead_seconds {
            add(&subject, "clock", clock(ahead - median));
        }
    }
    let found: BTreeSet<&str> = replicas
        .iter()
        .filter_map(|facts| facts.version.as_deref())
        .collect();
    if !found.is_empty() {
        let found: Vec<&str> = found.into_iter().collect();
        add("all", "version", version(&found, own_version));
    }
    if own_validity.is_some() {
        add("your certificate", CERTIFICATE, certificate(own_validity, now));
    }
    findings
}

/// A missing permission is among the blockers.
fn readiness(facts: &ReplicaFacts) -> (Severity, String) {
    if facts.is_serving {
        return (Severity::Fine, "ready, with all permissions".to_owned());
    }
    let why = match facts.blockers.as_slice() {
        [] => "its log and /readyz say why".to_owned(),
        blockers => blockers.join("; "),
    };
    (Severity::Wrong, format!("not ready: {why}"))
}

fn certificate(validity: Option<ValidityPeriod>, now: Timestamp) -> (Severity, String) {
    let Some(validity) = validity else {
        return (Severity::Notice, "its expiry time could not be read".to_owned());
    };
    let end = validity.not_after.as_second();
    let (left, life) = (end - now.as_second(), end - validity.not_before.as_second());
    let ends = format!("ends {}", text::day_and_clock(validity.not_after));
    // What is issued for a day is renewed when two thirds of it are left.
    let soon = SOON_SECONDS.min(life / 3);
    if left < 0 {
        return (Severity::Wrong, format!("{ends}: it has expired; renew it"));
    }
    if left >= soon {
        return (Severity::Fine, ends);
    }
    let left = match left {
        ..86_400 => format!("{} hours", left / 3600),
        _ => format!("{} days", left / 86_400),
    };
    (Severity::Notice, format!("{ends}: in {left}; renew it"))
}

fn clock(off: i64) -> (Severity, String) {
    if off.abs() < MAX_SKEW_SECONDS {
        return (Severity::Fine, "within 3 s of the other replicas".to_owned());
    }
    let text = format!("{off} s off the other replicas: check the time service of its node");
    (Severity::Wrong, text)
}

/// The clock in the middle; 0 if there is none.
fn median(replicas: &[ReplicaFacts]) -> i64 {
    let ahead = replicas.iter().filter_map(|facts| facts.ahead_seconds);
    let mut ahead: Vec<i64> = ahead.collect();
    ahead.sort_unstable();
    ahead.get(ahead.len() / 2).copied().unwrap_or_default()
}

fn version(found: &[&str], own: &str) -> (Severity, String) {
    let text = match found {
        [one] if *one == own => return (Severity::Fine, own.to_owned()),
        [one] => format!("{one}, and watchdogctl is {own}: use the watchdogctl of that release"),
        several => format!("{} run side by side: finish the rollout", several.join(" and ")),
    };
    (Severity::Notice, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    fn validity(left: i64) -> Option<ValidityPeriod> {
        Some(ValidityPeriod {
            not_before: Timestamp::from_second(testing::NOW - 100 * 86_400).ok()?,
            not_after: Timestamp::from_second(testing::NOW + left).ok()?,
        })
    }

    fn facts(name: &str) -> ReplicaFacts {
        ReplicaFacts {
            program: "weeder",
            name: name.to_owned(),
            is_serving: true,
            version: Some("1.0.0".to_owned()),
            ahead_seconds: Some(100),
            is_encrypted: true,
            validity: validity(100 * 86_400),
            ..ReplicaFacts::default()
        }
    }

    fn worst(replicas: &[ReplicaFacts]) -> (Severity, String) {
        let end = replicas.first().and_then(|facts| facts.validity);
        let found = findings(replicas, "1.0.0", end, testing::pipe().now);
        let worst = found.into_iter().max_by_key(|finding| finding.severity).unwrap();
        (
            worst.severity,
            format!("{} {}: {}", worst.subject, worst.what, worst.text),
        )
    }

    #[test]
    fn replicas_that_agree_are_fine_whatever_the_clock_of_this_machine() {
        assert_eq!(worst(&[facts("a"), facts("b")]).0, Severity::Fine);
    }

    #[test]
    fn each_thing_that_is_wrong_is_found() {
        let permissions = ReplicaFacts {
            is_serving: false,
            blockers: vec!["permissions: missing: list leases".to_owned()],
            ..facts("b")
        };
        let expired = ReplicaFacts {
            validity: validity(-1),
            ..facts("b")
        };
        let clock = ReplicaFacts {
            ahead_seconds: Some(96),
            ..facts("b")
        };
        let silent = ReplicaFacts {
            error: Some("no answer within 10 s".to_owned()),
            ..facts("b")
        };
        for (replica, part) in [
            (permissions, "missing: list leases"),
            (expired, "it has expired"),
            (clock, "-4 s off"),
            (silent, "no answer"),
        ] {
            let (severity, text) = worst(&[facts("a"), replica, facts("c")]);
            assert_eq!(severity, Severity::Wrong, "{part}");
            assert!(text.contains("weeder b ") && text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_certificate_that_a_program_renews_itself_is_fine_while_it_does() {
        let issued = |hours_ago: i64| ReplicaFacts {
            validity: Some(ValidityPeriod {
                not_before: Timestamp::from_second(testing::NOW - (hours_ago + 1) * 3600).unwrap(),
                not_after: Timestamp::from_second(testing::NOW + (24 - hours_ago) * 3600).unwrap(),
            }),
            ..facts("b")
        };
        assert_eq!(worst(&[facts("a"), issued(8)]).0, Severity::Fine);
        let (severity, text) = worst(&[facts("a"), issued(20)]);
        assert!(
            severity == Severity::Notice && text.contains("in 4 hours"),
            "{text}"
        );
    }

    #[test]
    fn other_versions_certificates_that_end_soon_and_plaintext_are_noticed() {
        let version = ReplicaFacts {
            version: Some("1.1.0".to_owned()),
            ..facts("b")
        };
        let soon = ReplicaFacts {
            validity: validity(86_400),
            ..facts("b")
        };
        let plaintext = ReplicaFacts {
            is_encrypted: false,
            ..facts("b")
        };
        for (replica, part) in [
            (version, "1.0.0 and 1.1.0 run side by side"),
            (soon, "in 1 days"),
            (plaintext, "plaintext"),
        ] {
            let (severity, text) = worst(&[facts("a"), replica]);
            assert_eq!(severity, Severity::Notice, "{part}");
            assert!(text.contains(part), "{text}");
        }
    }
}
