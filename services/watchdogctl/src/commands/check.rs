//! `check`

use futures::future::join_all;

use super::{CommandAnswer, Shape};
use crate::connect::inspect::inspect;
use crate::connect::{ProgramDialer, ReplicaEndpoint};
use crate::error::{CommandError, WRONG};
use crate::fetch;
use crate::program::Program;
use crate::render::check::{self, CheckFinding, Severity};
use crate::render::pods::{self, ProgramPods, ReplicaPod};

/// This program's own version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) async fn run(dialer: &ProgramDialer, shape: Shape) -> Result<CommandAnswer, CommandError> {
    let mut findings = Vec::new();
    let pods = match dialer.pods().await {
        Ok(pods) => pods,
        Err(error) => {
            findings.push(CheckFinding::wrong("all", "replicas", error.to_string()));
            Some(Vec::new())
        }
    };
    let (endpoints, programs) = match pods {
        None => (
            of_addresses(dialer, &mut findings).await,
            dialer.programs().collect(),
        ),
        Some(mut pods) => {
            dialer.read_logs(&mut pods).await;
            findings.extend(pods::findings(&pods, shape.frame.now));
            (running(&pods), ready(&pods))
        }
    };
    match dialer.certificate_error() {
        Some(error) => findings.push(CheckFinding::wrong(
            "your certificate",
            "certificate",
            error.to_string(),
        )),
        None => findings.extend(of_programs(dialer, &endpoints, &programs, shape).await),
    }
    let is_wrong = findings.iter().any(|finding| finding.severity == Severity::Wrong);
    let answer = shape.answer(
        || {
            let (_, conclusion) = check::conclusion(&findings);
            Ok(serde_json::json!({"findings": check::value(&findings), "conclusion": conclusion}))
        },
        |frame| check::render(&findings, frame),
    )?;
    let (_, headline) = check::conclusion(&findings);
    let code = if is_wrong { WRONG } else { 0 };
    Ok(answer.with_headline(headline).with_code(code))
}

/// All replicas behind the addresses.
async fn of_addresses(dialer: &ProgramDialer, findings: &mut Vec<CheckFinding>) -> Vec<ReplicaEndpoint> {
    let mut endpoints = Vec::new();
    let asked: Vec<Program> = dialer.programs().collect();
    let others = Program::ALL
        .into_iter()
        .filter(|program| !asked.contains(program));
    findings.extend(others.map(check::not_asked));
    for program in asked {
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
        let (pods, program) = (program.pods.clone(), program.program);
        let answering = pods.into_iter().filter(ReplicaPod::is_answering);
        answering.map(move |pod| ReplicaEndpoint {
            name: pod.name,
            program,
        })
    };
    programs.iter().flat_map(of_program).collect()
}

/// The programs of which a replica is ready. Of the others, the finding about replicas says all.
fn ready(programs: &[ProgramPods]) -> Vec<Program> {
    let ready = programs.iter().filter(|program| program.ready() > 0);
    ready.map(|program| program.program).collect()
}

/// The findings from what the programs say about themselves and about shoots.
async fn of_programs(
    dialer: &ProgramDialer,
    endpoints: &[ReplicaEndpoint],
    programs: &[Program],
    shape: Shape,
) -> Vec<CheckFinding> {
    let facts = join_all(endpoints.iter().map(|endpoint| inspect(dialer, endpoint))).await;
    let mut findings = check::findings(&facts, VERSION, dialer.validity(), shape.frame.now);
    findings.extend(join_all(programs.iter().map(|program| completeness(dialer, *program))).await);
    if programs.contains(&Program::ScalingCoordinator) {
        findings.extend(held_down(dialer).await);
    }
    findings
}

/// Looks whether an answer for the whole seed has all replicas in it.
async fn completeness(dialer: &ProgramDialer, program: Program) -> CheckFinding {
    match fetch::missing_of(dialer, program).await {
        Ok(missing) if missing.is_empty() => {
            CheckFinding::fine(program.as_str(), "completeness", "answers for the whole seed")
        }
        Ok(missing) => {
            let text = format!("{} not reached by the other replicas", missing.join(", "));
            CheckFinding::wrong(program.as_str(), "completeness", text)
        }
        Err(error) => CheckFinding::wrong(program.as_str(), "completeness", error.to_string()),
    }
}

/// The shoots that are held down. A coordinator that does not answer is found by its completeness.
async fn held_down(dialer: &ProgramDialer) -> Option<CheckFinding> {
    let coordinator = dialer.coordinator().await.ok()?;
    let held = fetch::held_down(&coordinator).await.ok()?;
    let shoots: Vec<String> = held.into_iter().map(|scaling| scaling.shoot).collect();
    check::held_down(&shoots)
}
