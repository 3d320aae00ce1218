//! From the command line to an exit code.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::args::{Cli, ConnectArgs, CtlCommand};
use crate::commands::seeds::{SeedAnswers, ask_each};
use crate::commands::{self, WrittenAnswer};
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::output::Output;
use crate::render::{Format, Frame};

/// Runs the command. Errors go to standard error.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let output = Output::of_process();
    let ended = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(dispatch(cli, &output)),
        Err(error) => Err(CommandError::unreachable(
            format!("cannot start: {error}"),
            "free memory or processes on this machine",
        )),
    };
    match ended {
        Ok(code) => code,
        Err(error) => {
            use std::io::Write as _;
            // Nothing can be done when standard error is closed.
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::from(error.code)
        }
    }
}

pub(crate) async fn dispatch(cli: Cli, output: &Output) -> Result<ExitCode, CommandError> {
    let Cli {
        connect,
        format,
        command,
    } = cli;
    let frame = output.frame(format.output);
    check(&command, &connect, frame.format)?;
    let answer = match &command {
        CtlCommand::Completion { shell } => {
            output.print(&commands::shell::completion(*shell, &called_as()));
            return Ok(ExitCode::SUCCESS);
        }
        CtlCommand::Man => {
            output.print(&commands::shell::man(&called_as())?);
            return Ok(ExitCode::SUCCESS);
        }
        CtlCommand::Ui(args) => {
            Box::pin(commands::ui::run(&connect, args, frame.format, output)).await?;
            return Ok(ExitCode::SUCCESS);
        }
        CtlCommand::Status(args) if args.watch => {
            Box::pin(commands::status::watch(&connect, args, frame.format, output)).await?;
            return Ok(ExitCode::SUCCESS);
        }
        CtlCommand::Release(args) => {
            let report = Box::pin(commands::release::run(&connect, args)).await?;
            WrittenAnswer::new(&report, &frame)?
        }
        CtlCommand::Incidents => {
            let incidents = Box::pin(commands::incidents::read(&connect)).await?;
            WrittenAnswer::new(&incidents, &frame)?
        }
        command => {
            let ask = async |dialer| Box::pin(ask_one(dialer, command, &frame)).await;
            let mut seeds = Box::pin(ask_each(&connect, ask)).await?;
            match seeds.pop() {
                Some(only) if !connect.has_contexts() => only.result?,
                last => {
                    seeds.extend(last);
                    WrittenAnswer::new(&SeedAnswers { seeds }, &frame)?
                }
            }
        }
    };
    output.print(&answer.printed(frame.format)?);
    Ok(ExitCode::from(answer.code))
}

/// # Errors
/// When the command does not write this format, or works on one seed and several are named.
fn check(command: &CtlCommand, connect: &ConnectArgs, format: Format) -> Result<(), CommandError> {
    let writer = match command {
        CtlCommand::Completion { .. } | CtlCommand::Man if format != Format::Table => {
            let what = "completion and man write only what a shell and man read";
            return Err(CommandError::usage(what, "omit -o"));
        }
        CtlCommand::Report(_) => None,
        _ if format == Format::Markdown => {
            let what_to_do = "use -o json, or watchdogctl report SHOOT -o markdown";
            return Err(CommandError::usage("only report writes Markdown", what_to_do));
        }
        CtlCommand::Release(_) => Some("release"),
        CtlCommand::Certificate { .. } => Some("certificate"),
        _ => None,
    };
    match writer {
        Some(command) if connect.has_contexts() => Err(CommandError::usage(
            format!("{command} writes, so it works on one seed at a time"),
            format!("run watchdogctl --context NAME {command} for one seed, look, then for the next"),
        )),
        _ => Ok(()),
    }
}

/// The answer of one seed.
async fn ask_one(
    dialer: ProgramDialer,
    command: &CtlCommand,
    frame: &Frame,
) -> Result<WrittenAnswer, CommandError> {
    use commands::{certificate, check, plan, replicas, report, scaling, shoot, status, verdicts, weeders};
    let dialer = &dialer;
    match command {
        CtlCommand::Status(args) => {
            let mut reader = status::StatusReader::new(dialer.clone(), args);
            WrittenAnswer::new(&Box::pin(reader.read()).await, frame)
        }
        CtlCommand::Check => WrittenAnswer::new(&check::read(dialer).await, frame),
        CtlCommand::Shoot(shoot) => WrittenAnswer::new(&shoot::read(dialer, &shoot.name).await?, frame),
        CtlCommand::Plan { shoot, direction } => {
            WrittenAnswer::new(&plan::read(dialer, &shoot.name, *direction).await?, frame)
        }
        CtlCommand::Report(shoot) => WrittenAnswer::new(&report::read(dialer, &shoot.name).await?, frame),
        CtlCommand::Weeders(filter) => WrittenAnswer::new(&weeders::weeders(dialer, filter).await?, frame),
        CtlCommand::Services(filter) => WrittenAnswer::new(&weeders::services(dialer, filter).await?, frame),
        CtlCommand::Replicas => WrittenAnswer::new(&replicas::read(dialer).await?, frame),
        CtlCommand::Verdicts(args) => WrittenAnswer::new(&verdicts::read(dialer, args).await?, frame),
        CtlCommand::Scaling(args) => WrittenAnswer::new(&scaling::read(dialer, args).await?, frame),
        CtlCommand::Certificate { folder } => WrittenAnswer::new(&certificate::write(dialer, folder)?, frame),
        CtlCommand::Incidents
        | CtlCommand::Release(_)
        | CtlCommand::Ui(_)
        | CtlCommand::Completion { .. }
        | CtlCommand::Man => Err(CommandError::unexpected("the command does not ask one seed")),
    }
}

/// The file as which this program was started.
fn called_as() -> PathBuf {
    let first = std::env::args_os().next();
    first.map_or_else(|| Path::new("watchdogctl").to_owned(), Into::into)
}

#[cfg(test)]
mod tests;
