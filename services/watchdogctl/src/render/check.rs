//! Findings of `check`.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};
use watchdog_certificates::ValidityPeriod;

use super::table::{Cell, Style, TextTable};
use super::{Frame, text};
use crate::program::Program;

/// A certificate that ends within this time is worth a look: cert-manager renews 30 days before the end.
const SOON_SECONDS: i64 = 14 * 86_400;

/// Clocks that differ by this from the median of all replicas are wrong. The Date header is exact to a second.
const MAX_SKEW_SECONDS: i64 = 3;

/// The check of which programs were asked.
const ASKED: &str = "asked";

/// The check of shoots that are held down, and the names of them that it shows at most.
const HELD_DOWN: &str = "shoots";
const MOST_NAMED: usize = 5;

/// The facts about one replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReplicaFacts {
    pub(crate) program: &'static str,
    /// The name of its pod, or its address.
    pub(crate) name: String,
    /// Why it did not answer.
    pub(crate) error: Option<String>,
    pub(crate) is_serving: bool,
    /// The blockers that keep it from being ready.
    pub(crate) blockers: Vec<String>,
    /// Its own name for itself.
    pub(crate) replica: Option<String>,
    pub(crate) version: Option<String>,
    /// By how much its clock is ahead of this machine's.
    pub(crate) ahead_seconds: Option<i64>,
    pub(crate) is_encrypted: bool,
    /// From when to when its certificate is valid, if that could be read.
    pub(crate) validity: Option<ValidityPeriod>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    Fine,
    /// Worth a look; not wrong.
    Notice,
    Wrong,
}

impl Severity {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Notice => "notice",
            Self::Wrong => "WRONG",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckFinding {
    pub(crate) severity: Severity,
    /// The replica or program.
    pub(crate) subject: String,
    /// The thing that was looked at, for example `certificate`.
    pub(crate) what: &'static str,
    /// The result, and what to do.
    pub(crate) text: String,
}

impl CheckFinding {
    pub(crate) fn new(
        severity: Severity,
        subject: &str,
        what: &'static str,
        text: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            subject: subject.to_owned(),
            what,
            text: text.into(),
        }
    }

    pub(crate) fn fine(subject: &str, what: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::Fine, subject, what, text)
    }

    pub(crate) fn wrong(subject: &str, what: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::Wrong, subject, what, text)
    }
}

/// The findings that follow from the facts.
pub(crate) fn findings(
    replicas: &[ReplicaFacts],
    own_version: &str,
    own_validity: Option<ValidityPeriod>,
    now: Timestamp,
) -> Vec<CheckFinding> {
    let median = median(replicas.iter().filter_map(|facts| facts.ahead_seconds));
    let mut findings = Vec::new();
    for facts in replicas {
        let subject = match &facts.replica {
            Some(replica) if *replica != facts.name => format!("{replica} ({})", facts.name),
            _ => format!("{} {}", facts.program, facts.name),
        };
        if let Some(error) = &facts.error {
            findings.push(CheckFinding::wrong(&subject, "answer", error));
            continue;
        }
        findings.push(readiness(&subject, facts));
        if facts.is_encrypted {
            findings.push(certificate(&subject, facts.validity, now));
        } else {
            let text = "plaintext: everything that reaches the port can read and forge verdicts";
            findings.push(CheckFinding::new(Severity::Notice, &subject, "certificate", text));
        }
        findings.extend(clock(&subject, facts.ahead_seconds, median));
    }
    findings.extend(versions(replicas, own_version));
    if own_validity.is_some() {
        findings.push(certificate("your certificate", own_validity, now));
    }
    findings
}

/// The finding about a program whose address is not given, where addresses are.
pub(crate) fn not_asked(program: Program) -> CheckFinding {
    let unknown = match program {
        Program::LeaseProbe => "which shoots are cut off",
        Program::ScalingCoordinator => "which shoots are held down",
        Program::Weeder => "which pods are deleted",
    };
    let text = format!("not asked, so {unknown} is not known: add --{program}");
    CheckFinding::new(Severity::Notice, program.as_str(), ASKED, text)
}

/// The finding about shoots that are held down. It is no fault of the watchdog, and no news to leave out.
pub(crate) fn held_down(shoots: &[String]) -> Option<CheckFinding> {
    let shown: Vec<&str> = shoots.iter().take(MOST_NAMED).map(String::as_str).collect();
    let more = match shoots.len().saturating_sub(shown.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let text = format!(
        "{} held down: {}{more}",
        count(shoots.len(), "shoot is", "shoots are"),
        shown.join(", ")
    );
    (!shoots.is_empty()).then(|| CheckFinding::new(Severity::Notice, "all", HELD_DOWN, text))
}

/// The last line: never good news beside anything that is wrong, held down or was not asked.
pub(crate) fn conclusion(findings: &[CheckFinding]) -> (Style, String) {
    let of = |severity| {
        findings
            .iter()
            .filter(move |finding| finding.severity == severity)
    };
    let held = of(Severity::Notice).find(|finding| finding.what == HELD_DOWN);
    let not_asked = of(Severity::Notice).filter(|finding| finding.what == ASKED);
    let not_asked: Vec<&str> = not_asked.map(|finding| finding.subject.as_str()).collect();
    match (of(Severity::Wrong).count(), held) {
        (0, None) if !not_asked.is_empty() => (
            Style::Warn,
            format!("No fault found, but not asked: {}.", not_asked.join(", ")),
        ),
        (0, None) => (Style::Good, "Nothing is wrong.".to_owned()),
        (0, Some(held)) => (
            Style::Warn,
            format!("The watchdog works, and {}; see watchdogctl status.", held.text),
        ),
        (wrong, held) => {
            let held = held
                .map(|held| format!(", and {}", held.text))
                .unwrap_or_default();
            let wrong = count(wrong, "check", "checks");
            (Style::Bad, format!("{wrong} found something wrong{held}."))
        }
    }
}

pub(crate) fn count(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// The findings for programs.
pub(crate) fn value(findings: &[CheckFinding]) -> Value {
    let findings = findings.iter().map(|finding| {
        json!({
            "result": finding.severity.as_str(),
            "subject": finding.subject,
            "check": finding.what,
            "found": finding.text,
        })
    });
    findings.collect()
}

/// A missing permission is among the blockers.
fn readiness(subject: &str, facts: &ReplicaFacts) -> CheckFinding {
    match (facts.is_serving, facts.blockers.as_slice()) {
        (true, _) => CheckFinding::fine(subject, "readiness", "ready, with all permissions"),
        (false, []) => CheckFinding::wrong(subject, "readiness", "not ready: its log and /readyz say why"),
        (false, blockers) => CheckFinding::wrong(
            subject,
            "readiness",
            format!("not ready: {}", blockers.join("; ")),
        ),
    }
}

fn certificate(subject: &str, validity: Option<ValidityPeriod>, now: Timestamp) -> CheckFinding {
    let Some(ValidityPeriod {
        not_before,
        not_after,
    }) = validity
    else {
        return CheckFinding::new(
            Severity::Notice,
            subject,
            "certificate",
            "its expiry time could not be read",
        );
    };
    let left = not_after.as_second() - now.as_second();
    let life = not_after.as_second() - not_before.as_second();
    let ends = format!("ends {}", text::day_and_clock(not_after));
    // What is issued for a day is renewed when two thirds of it are left.
    let soon = SOON_SECONDS.min(life / 3);
    match left {
        ..0 => CheckFinding::wrong(
            subject,
            "certificate",
            format!("{ends}: it has expired; renew it"),
        ),
        left if left < soon => {
            let left = if left < 86_400 {
                format!("{} hours", left / 3600)
            } else {
                format!("{} days", left / 86_400)
            };
            let text = format!("{ends}: in {left}; renew it");
            CheckFinding::new(Severity::Notice, subject, "certificate", text)
        }
        _ => CheckFinding::fine(subject, "certificate", ends),
    }
}

fn clock(subject: &str, ahead: Option<i64>, median: i64) -> Option<CheckFinding> {
    let off = ahead? - median;
    Some(if off.abs() >= MAX_SKEW_SECONDS {
        let text = format!("{off} s off the other replicas: check the time service of its node");
        CheckFinding::wrong(subject, "clock", text)
    } else {
        CheckFinding::fine(subject, "clock", "within 3 s of the other replicas")
    })
}

/// The value in the middle; 0 if there is none.
fn median(values: impl Iterator<Item = i64>) -> i64 {
    let mut values: Vec<i64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn versions(replicas: &[ReplicaFacts], own: &str) -> Option<CheckFinding> {
    let found: BTreeSet<&str> = replicas
        .iter()
        .filter_map(|facts| facts.version.as_deref())
        .collect();
    let all: Vec<&str> = found.iter().copied().collect();
    let finding = match all.as_slice() {
        [] => return None,
        [one] if *one == own => CheckFinding::fine("all", "version", *one),
        [one] => {
            let text = format!("{one}, and watchdogctl is {own}: use the watchdogctl of that release");
            CheckFinding::new(Severity::Notice, "all", "version", text)
        }
        several => {
            let text = format!("{} run side by side: finish the rollout", several.join(" and "));
            CheckFinding::new(Severity::Notice, "all", "version", text)
        }
    };
    Some(finding)
}

pub(crate) fn render(findings: &[CheckFinding], frame: &Frame) -> String {
    let mut table = TextTable::new(["RESULT", "REPLICA", "CHECK", "FOUND"]);
    for finding in findings {
        let style = match finding.severity {
            Severity::Fine => Style::Good,
            Severity::Notice => Style::Warn,
            Severity::Wrong => Style::Bad,
        };
        table.row([
            Cell::styled(style, finding.severity.as_str()),
            finding.subject.as_str().into(),
            finding.what.into(),
            finding.text.as_str().into(),
        ]);
    }
    let (style, end) = conclusion(findings);
    format!("{}\n{}\n", table.render(frame), frame.paint(style, &end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    #[test]
    fn what_is_wrong_is_counted() {
        let findings = [
            CheckFinding::fine("weeder-0", "readiness", "serving"),
            CheckFinding::wrong("weeder-0", "readiness", "not serving"),
        ];
        let expected = "\
RESULT  REPLICA   CHECK      FOUND
ok      weeder-0  readiness  serving
WRONG   weeder-0  readiness  not serving

1 check found something wrong.
";
        assert_eq!(render(&findings, &testing::pipe()), expected);
        assert!(render(&findings[..1], &testing::pipe()).ends_with("Nothing is wrong.\n"));
    }

    #[test]
    fn nothing_is_fine_beside_a_program_that_was_not_asked() {
        let findings = [
            CheckFinding::fine("probe-0", "readiness", "serving"),
            not_asked(Program::ScalingCoordinator),
            not_asked(Program::Weeder),
        ];
        let (style, end) = conclusion(&findings);
        assert_eq!(end, "No fault found, but not asked: scaling-coordinator, weeder.");
        assert!(style != Style::Good);
        let shown = render(&findings, &testing::pipe());
        assert!(
            shown
                .contains("not asked, so which shoots are held down is not known: add --scaling-coordinator"),
            "{shown}"
        );
    }

    #[test]
    fn nothing_is_fine_beside_a_shoot_that_is_held_down() {
        let names: Vec<String> = (1..=7).map(|n| format!("shoot--{n}")).collect();
        let held = |count: usize| held_down(&names[..count]);
        assert_eq!(held(0), None);
        let fine = CheckFinding::fine("weeder-0", "readiness", "serving");
        let wrong = CheckFinding::wrong("weeder-0", "readiness", "not serving");
        for (findings, end) in [
            (
                vec![fine.clone(), held(1).unwrap()],
                "The watchdog works, and 1 shoot is held down: shoot--1; see watchdogctl status.",
            ),
            (
                vec![fine, wrong, held(7).unwrap()],
                "1 check found something wrong, and 7 shoots are held down: shoot--1, shoot--2, shoot--3, shoot--4, \
                 shoot--5 and 2 more.",
            ),
        ] {
            assert_eq!(conclusion(&findings).1, end);
        }
    }

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
