//! `check`

mod replica;

use futures::future::join_all;
use jiff::Timestamp;
use serde::Serialize;
use watchdog_certificates::ValidityPeriod;
use watchdog_proto::scaling::v1::ListScalingRequest;

use super::CommandAnswer;
use crate::connect::inspect::inspect;
use crate::connect::{ProgramDialer, ReplicaEndpoint};
use crate::error::WRONG;
use crate::fetch;
use crate::findings::{CheckFinding, Severity};
use crate::pods::{self, ProgramPods};
use crate::program::Program;
use crate::render::table::{Cell, Style, TextTable};
use crate::render::{Frame, text};

/// This program's own version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The check of which programs were asked.
const ASKED: &str = "asked";

/// The check of shoots that are held down, and the names of them that it shows at most.
const HELD_DOWN: &str = "shoots";
const MOST_NAMED: usize = 5;

/// All that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct CheckReport {
    findings: Vec<CheckFinding>,
    /// The last line.
    conclusion: String,
    #[serde(skip)]
    style: Style,
}

pub(crate) async fn read(dialer: &ProgramDialer) -> CheckReport {
    let now = Timestamp::now();
    let mut findings = Vec::new();
    let pods = match dialer.pods().await {
        Ok(pods) => pods,
        Err(error) => {
            findings.push(CheckFinding::wrong("all", "replicas", error.to_string()));
            Some(Vec::new())
        }
    };
    let (endpoints, programs): (_, Vec<Program>) = match pods {
        None => (
            of_addresses(dialer, &mut findings).await,
            dialer.programs().collect(),
        ),
        Some(mut pods) => {
            dialer.read_logs(&mut pods).await;
            findings.extend(pods::findings(&pods, now));
            // Of a program without a ready replica, the finding about replicas says all.
            let ready = pods.iter().filter(|program| program.ready() > 0);
            (running(&pods), ready.map(|program| program.program).collect())
        }
    };
    match dialer.certificate() {
        Err(error) => {
            let text = error.to_string();
            findings.push(CheckFinding::wrong("your certificate", "certificate", text));
        }
        Ok(own) => {
            let validity = own.and_then(|own| own.validity);
            findings.extend(of_programs(dialer, &endpoints, &programs, validity, now).await);
        }
    }
    CheckReport::new(findings)
}

/// All replicas behind the addresses.
async fn of_addresses(dialer: &ProgramDialer, findings: &mut Vec<CheckFinding>) -> Vec<ReplicaEndpoint> {
    let mut endpoints = Vec::new();
    for program in Program::ALL {
        if !dialer.programs().any(|asked| asked == program) {
            findings.push(not_asked(program));
            continue;
        }
        match dialer.replicas(program).await {
            Ok(found) => endpoints.extend(found),
            Err(error) => {
                let finding = CheckFinding::wrong(program.as_str(), "replicas", error.to_string());
                findings.push(finding);
            }
        }
    }
    endpoints
}

/// The Pods that can answer, ready or not: one that is not ready says why.
fn running(programs: &[ProgramPods]) -> Vec<ReplicaEndpoint> {
    let of_program = |program: &ProgramPods| {
        let answering = { program.pods.iter() }.filter(|pod| pods::is_answering(pod));
        let endpoint = |name| ReplicaEndpoint {
            name,
            program: program.program,
        };
        answering.map(pods::name).map(endpoint).collect::<Vec<_>>()
    };
    programs.iter().flat_map(of_program).collect()
}

/// The findings from what the programs say about themselves and about shoots.
async fn of_programs(
    dialer: &ProgramDialer,
    endpoints: &[ReplicaEndpoint],
    programs: &[Program],
    own_validity: Option<ValidityPeriod>,
    now: Timestamp,
) -> Vec<CheckFinding> {
    let facts = join_all(endpoints.iter().map(|endpoint| inspect(dialer, endpoint))).await;
    let mut findings = replica::findings(&facts, VERSION, own_validity, now);
    findings.extend(join_all(programs.iter().map(|program| completeness(dialer, *program))).await);
    if programs.contains(&Program::ScalingCoordinator) {
        findings.extend(shoots(dialer).await);
    }
    findings
}

/// Looks whether an answer for the whole seed has all replicas in it.
async fn completeness(dialer: &ProgramDialer, program: Program) -> CheckFinding {
    let (subject, what) = (program.as_str(), "completeness");
    match fetch::summary(dialer, program)
        .await
        .map(|summary| summary.missing)
    {
        Ok(missing) if missing.is_empty() => CheckFinding::fine(subject, what, "answers for the whole seed"),
        Ok(missing) => {
            let text = format!("{} not reached by the other replicas", missing.join(", "));
            CheckFinding::wrong(subject, what, text)
        }
        Err(error) => CheckFinding::wrong(subject, what, error.to_string()),
    }
}

/// The shoots that are held down. A coordinator that does not answer is found by its completeness.
async fn shoots(dialer: &ProgramDialer) -> Option<CheckFinding> {
    let coordinator = dialer.coordinator().await.ok()?;
    let filter = ListScalingRequest {
        meltdown_protection_active: Some(true),
        ..ListScalingRequest::default()
    };
    let held = fetch::scalings(&coordinator, filter).await.ok()?;
    let shoots: Vec<String> = held.scalings.into_iter().map(|scaling| scaling.shoot).collect();
    held_down(&shoots)
}

/// The finding about a program whose address is not given, where addresses are.
fn not_asked(program: Program) -> CheckFinding {
    let unknown = match program {
        Program::LeaseProbe => "which shoots are cut off",
        Program::ScalingCoordinator => "which shoots are held down",
        Program::Weeder => "which pods are deleted",
    };
    let text = format!("not asked, so {unknown} is not known: add --{program}");
    CheckFinding::notice(program.as_str(), ASKED, text)
}

/// The finding about shoots that are held down. That is no fault of the watchdog, and must still be shown.
fn held_down(shoots: &[String]) -> Option<CheckFinding> {
    let shown = shoots.get(..MOST_NAMED).unwrap_or(shoots);
    let more = match shoots.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let text = format!(
        "{} held down: {}{more}",
        text::count(shoots.len(), "shoot is", "shoots are"),
        shown.join(", ")
    );
    (!shoots.is_empty()).then(|| CheckFinding::notice("all", HELD_DOWN, text))
}

/// The last line: never good news beside anything that is wrong, held down or was not asked.
fn conclusion(findings: &[CheckFinding]) -> (Style, String) {
    let notices = |what| { findings.iter() }.filter(move |finding| finding.what == what);
    let not_asked: Vec<&str> = notices(ASKED).map(|finding| finding.subject.as_str()).collect();
    let wrong = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Wrong);
    match (wrong.count(), notices(HELD_DOWN).next()) {
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
            let wrong = text::count(wrong, "check", "checks");
            (Style::Bad, format!("{wrong} found something wrong{held}."))
        }
    }
}

impl CheckReport {
    fn new(findings: Vec<CheckFinding>) -> Self {
        let (style, conclusion) = conclusion(&findings);
        Self {
            findings,
            conclusion,
            style,
        }
    }
}

impl CommandAnswer for CheckReport {
    fn text(&self, frame: &Frame) -> String {
        let table = TextTable::of(&self.findings)
            .column("RESULT", |finding| result(finding.severity))
            .column("REPLICA", |finding| finding.subject.clone())
            .column("CHECK", |finding| finding.what)
            .column("FOUND", |finding| finding.text.clone());
        let conclusion = frame.paint(self.style, &self.conclusion);
        format!("{}\n{conclusion}\n", table.render(frame))
    }

    fn headline(&self, _: &Frame) -> String {
        self.conclusion.clone()
    }

    fn code(&self) -> u8 {
        let mut findings = self.findings.iter();
        let is_wrong = findings.any(|finding| finding.severity == Severity::Wrong);
        if is_wrong { WRONG } else { 0 }
    }
}

fn result(severity: Severity) -> Cell {
    let style = match severity {
        Severity::Fine => Style::Good,
        Severity::Notice => Style::Warn,
        Severity::Wrong => Style::Bad,
    };
    Cell::styled(style, severity.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    fn shown(findings: &[CheckFinding]) -> String {
        CheckReport::new(findings.to_vec()).text(&testing::pipe())
    }

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
        assert_eq!(shown(&findings), expected);
        assert!(shown(&findings[..1]).ends_with("Nothing is wrong.\n"));
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
        let shown = shown(&findings);
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
}
