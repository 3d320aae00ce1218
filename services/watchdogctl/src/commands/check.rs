//! `check`

mod replica;

use futures::future::join_all;
use jiff::Timestamp;
use serde_json::json;
use watchdog_proto::scaling::v1::ListScalingRequest;

use super::WrittenAnswer;
use crate::connect::ProgramDialer;
use crate::connect::inspect::inspect;
use crate::error::{CommandResult, WRONG};
use crate::findings::{CheckFinding, Severity};
use crate::pods;
use crate::program::Program;
use crate::render::table::{Cell, TextTable};
use crate::render::{Frame, Style, text};

/// This program's own version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The check of which programs were asked.
const ASKED: &str = "asked";

/// The check of shoots that are held down, and the names of them that it shows at most.
const HELD_DOWN: &str = "shoots";
const MOST_NAMED: usize = 5;

pub(crate) async fn read(dialer: &ProgramDialer, frame: &Frame) -> CommandResult<WrittenAnswer> {
    let now = Timestamp::now();
    let mut findings = Vec::new();
    let (mut replicas, mut programs) = (Vec::new(), Vec::new());
    match dialer.pods().await {
        Ok(Some(pods)) => {
            findings.extend(pods::findings(&pods, now));
            // One that is not ready says why.
            let names = pods.iter().map(|program| (program.program, program.answering()));
            replicas.extend(names);
            // Of a program without a ready replica, the finding about replicas says all.
            let ready = pods.iter().filter(|program| program.ready() > 0);
            programs = ready.map(|program| program.program).collect();
        }
        Ok(None) => {
            programs = dialer.programs().collect();
            for program in Program::ALL {
                match dialer.replicas(program).await {
                    _ if !programs.contains(&program) => findings.push(not_asked(program)),
                    Ok(names) => replicas.push((program, names)),
                    Err(error) => findings.push(CheckFinding::failed(program.as_str(), "replicas", &error)),
                }
            }
        }
        Err(error) => findings.push(CheckFinding::failed("all", "replicas", &error)),
    }
    match dialer.certificate() {
        Err(error) => findings.push(CheckFinding::failed("your certificate", "certificate", error)),
        Ok(own) => {
            let replicas = replicas.iter();
            let replicas =
                replicas.flat_map(|(program, names)| names.iter().map(move |name| (*program, name)));
            let facts = join_all(replicas.map(|(program, name)| inspect(dialer, program, name))).await;
            let validity = own.and_then(|own| own.validity);
            findings.extend(replica::findings(&facts, VERSION, validity, now));
            let complete = programs.iter().map(|program| completeness(dialer, *program));
            findings.extend(join_all(complete).await);
            if programs.contains(&Program::ScalingCoordinator) {
                findings.extend(shoots(dialer).await);
            }
        }
    }
    written(&findings, frame)
}

/// Looks whether an answer for the whole seed has all replicas in it.
async fn completeness(dialer: &ProgramDialer, program: Program) -> CheckFinding {
    let (severity, text) = match dialer.summary(program).await {
        Ok(summary) if summary.missing.is_empty() => {
            (Severity::Fine, "answers for the whole seed".to_owned())
        }
        Ok(summary) => {
            let text = format!("{} not reached by the other replicas", summary.missing.join(", "));
            (Severity::Wrong, text)
        }
        Err(error) => (Severity::Wrong, error.to_string()),
    };
    CheckFinding::new(severity, program.as_str(), "completeness", text)
}

/// The shoots that are held down. A coordinator that does not answer is found by its completeness.
async fn shoots(dialer: &ProgramDialer) -> Option<CheckFinding> {
    let filter = ListScalingRequest {
        meltdown_protection_active: Some(true),
        ..ListScalingRequest::default()
    };
    let held = dialer.all_pages(Program::ScalingCoordinator, filter).await.ok()?;
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
    CheckFinding::new(Severity::Notice, program.as_str(), ASKED, text)
}

/// The finding about shoots that are held down. That is no fault of the watchdog, and must still be shown.
fn held_down(shoots: &[String]) -> Option<CheckFinding> {
    let shown = shoots.get(..MOST_NAMED).unwrap_or(shoots);
    let more = match shoots.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let count = text::count(shoots.len(), "shoot is", "shoots are");
    let text = format!("{count} held down: {}{more}", shown.join(", "));
    (!shoots.is_empty()).then(|| CheckFinding::new(Severity::Notice, "all", HELD_DOWN, text))
}

/// The last line is never good news beside anything that is wrong, held down or was not asked.
fn conclusion(findings: &[CheckFinding]) -> (Style, String) {
    let about = |what| findings.iter().filter(move |finding| finding.what == what);
    let not_asked: Vec<&str> = about(ASKED).map(|finding| finding.subject.as_str()).collect();
    let held = about(HELD_DOWN).next().map(|finding| finding.text.as_str());
    match (wrong(findings), held) {
        (0, None) if !not_asked.is_empty() => {
            let not_asked = not_asked.join(", ");
            (
                Style::Warn,
                format!("No fault found, but not asked: {not_asked}."),
            )
        }
        (0, None) => (Style::Good, "Nothing is wrong.".to_owned()),
        (0, Some(held)) => {
            let text = format!("The watchdog works, and {held}; see watchdogctl status.");
            (Style::Warn, text)
        }
        (wrong, held) => {
            let held = held.map_or_else(String::new, |held| format!(", and {held}"));
            let wrong = text::count(wrong, "check", "checks");
            (Style::Bad, format!("{wrong} found something wrong{held}."))
        }
    }
}

/// The number of findings about something wrong.
fn wrong(findings: &[CheckFinding]) -> usize {
    let severities = findings.iter().map(|finding| finding.severity);
    severities.filter(|severity| *severity == Severity::Wrong).count()
}

fn written(findings: &[CheckFinding], frame: &Frame) -> CommandResult<WrittenAnswer> {
    let (style, conclusion) = conclusion(findings);
    let table = TextTable::of(findings)
        .column("RESULT", |finding| result(finding.severity))
        .column("REPLICA", |finding| finding.subject.clone())
        .column("CHECK", |finding| finding.what)
        .column("FOUND", |finding| finding.text.clone());
    let text = format!("{}\n{}\n", table.render(frame), frame.paint(style, &conclusion));
    let value = json!({"findings": findings, "conclusion": conclusion});
    Ok(WrittenAnswer {
        headline: conclusion,
        code: if wrong(findings) > 0 { WRONG } else { 0 },
        ..WrittenAnswer::of(frame, text, value)?
    })
}

fn result(severity: Severity) -> Cell {
    match severity {
        Severity::Fine => Cell::styled(Style::Good, "ok"),
        Severity::Notice => Cell::styled(Style::Warn, "notice"),
        Severity::Wrong => Cell::styled(Style::Bad, "WRONG"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    fn fine(subject: &str) -> CheckFinding {
        CheckFinding::new(Severity::Fine, subject, "readiness", "serving".to_owned())
    }

    fn wrong() -> CheckFinding {
        CheckFinding::new(Severity::Wrong, "weeder-0", "readiness", "not serving".to_owned())
    }

    fn shown(findings: &[CheckFinding]) -> String {
        written(findings, &testing::pipe()).unwrap().text().to_owned()
    }

    #[test]
    fn what_is_wrong_is_counted() {
        let findings = [fine("weeder-0"), wrong()];
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
            fine("probe-0"),
            not_asked(Program::ScalingCoordinator),
            not_asked(Program::Weeder),
        ];
        let end = "No fault found, but not asked: scaling-coordinator, weeder.";
        assert_eq!(conclusion(&findings), (Style::Warn, end.to_owned()));
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
        for (findings, end) in [
            (
                vec![fine("weeder-0"), held(1).unwrap()],
                "The watchdog works, and 1 shoot is held down: shoot--1; see watchdogctl status.",
            ),
            (
                vec![fine("weeder-0"), wrong(), held(7).unwrap()],
                "1 check found something wrong, and 7 shoots are held down: shoot--1, shoot--2, shoot--3, shoot--4, \
                 shoot--5 and 2 more.",
            ),
        ] {
            assert_eq!(written(&findings, &testing::pipe()).unwrap().headline, end);
        }
    }
}
