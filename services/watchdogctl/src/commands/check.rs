//! `check`

use std::process::ExitCode;

use futures::future::join_all;

use crate::connect::ProgramDialer;
use crate::connect::inspect::inspect;
use crate::error::{CommandError, WRONG};
use crate::fetch;
use crate::output::Output;
use crate::program::Program;
use crate::render::check::{self, CheckFinding, Severity};

/// This program's own version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) async fn run(dialer: &ProgramDialer, output: &Output) -> Result<ExitCode, CommandError> {
    let (mut endpoints, mut findings) = (Vec::new(), Vec::new());
    for program in dialer.programs() {
        match dialer.replicas(program).await {
            Ok(found) => endpoints.extend(found),
            Err(error) => findings.push(CheckFinding::wrong(
                program.as_str(),
                "replicas",
                error.to_string(),
            )),
        }
    }
    let facts = join_all(endpoints.iter().map(|endpoint| inspect(dialer, endpoint))).await;
    let frame = output.frame();
    findings.extend(check::findings(&facts, VERSION, dialer.validity(), frame.now));
    for program in dialer.programs() {
        findings.push(completeness(dialer, program).await);
    }
    output.print(&check::render(&findings, &frame));
    let is_wrong = findings.iter().any(|finding| finding.severity == Severity::Wrong);
    Ok(if is_wrong {
        ExitCode::from(WRONG)
    } else {
        ExitCode::SUCCESS
    })
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
