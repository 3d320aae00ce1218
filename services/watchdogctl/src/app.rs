//! From the command line to an exit code.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::args::{Cli, ConnectArgs, CtlCommand};
use crate::commands::seeds::ask_each;
use crate::commands::shell::{completion, man};
use crate::commands::{
    WrittenAnswer, certificate, check, incidents, lists, plan, release, replicas, report, shoot, status, ui,
};
use crate::connect::ProgramDialer;
use crate::error::{CommandError, CommandResult};
use crate::output::{Output, note};
use crate::render::{Format, Frame};

/// Runs the command. Errors go to standard error.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let output = Output::of_process();
    let ended = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => {
            let ended = runtime.block_on(dispatch(cli, &output));
            // A plugin of a kubeconfig that hangs must not keep the program from ending.
            runtime.shutdown_background();
            ended
        }
        Err(error) => Err(CommandError::unreachable(
            format!("cannot start: {error}"),
            "free memory or processes on this machine",
        )),
    };
    match ended {
        Ok(code) => code,
        Err(error) => {
            note(&error);
            ExitCode::from(error.code)
        }
    }
}

pub(crate) async fn dispatch(cli: Cli, output: &Output) -> CommandResult<ExitCode> {
    let Cli {
        connect,
        output: format,
        command,
    } = cli;
    let frame = output.frame(format);
    refuse(&command, &connect, frame.format)?;
    let answer = match &command {
        CtlCommand::Completion { shell } => WrittenAnswer::of(&frame, completion(*shell, &called_as()), ())?,
        CtlCommand::Man => WrittenAnswer::of(&frame, man(&called_as())?, ())?,
        CtlCommand::Ui { port } => {
            let served = Box::pin(ui::run(&connect, *port, frame.format, output)).await;
            return served.map(|()| ExitCode::SUCCESS);
        }
        CtlCommand::Status(args) if args.watch => {
            let watched = Box::pin(status::watch(&connect, args, frame.format, output)).await;
            return watched.map(|()| ExitCode::SUCCESS);
        }
        CtlCommand::Release(args) => Box::pin(release::run(&connect, args, &frame)).await?,
        command => {
            let ask = async |dialer| Box::pin(ask_one(&dialer, command, &frame)).await;
            Box::pin(ask_each(&connect, &frame, ask)).await?
        }
    };
    output.print(&answer.printed(frame.format)?);
    Ok(ExitCode::from(answer.code))
}

/// # Errors
/// When the command does not write this format, or works on one seed and several are named.
fn refuse(command: &CtlCommand, connect: &ConnectArgs, format: Format) -> CommandResult<()> {
    let is_script = matches!(command, CtlCommand::Completion { .. } | CtlCommand::Man);
    if is_script && format != Format::Table {
        let what = "completion and man write only what a shell and man read";
        return Err(CommandError::usage(what, "omit -o"));
    }
    if format == Format::Markdown && !matches!(command, CtlCommand::Report(_)) {
        let what_to_do = "use -o json, or watchdogctl report SHOOT -o markdown";
        return Err(CommandError::usage("only report writes Markdown", what_to_do));
    }
    let writer = match command {
        CtlCommand::Release(_) => "release",
        CtlCommand::Certificate { .. } => "certificate",
        _ => return Ok(()),
    };
    if connect.has_contexts() {
        return Err(CommandError::usage(
            format!("{writer} writes, so it works on one seed at a time"),
            format!("run watchdogctl --context NAME {writer} for one seed, look, then for the next"),
        ));
    }
    Ok(())
}

/// The answer of one seed.
async fn ask_one(
    dialer: &ProgramDialer,
    command: &CtlCommand,
    frame: &Frame,
) -> CommandResult<WrittenAnswer> {
    match command {
        CtlCommand::Status(args) => {
            let mut reader = status::StatusReader::new(dialer.clone(), args);
            Box::pin(reader.read()).await.written(frame)
        }
        CtlCommand::Check => check::read(dialer, frame).await,
        CtlCommand::Shoot(shoot) => shoot::read(dialer, &shoot.name, frame).await,
        CtlCommand::Plan { shoot, direction } => plan::read(dialer, &shoot.name, *direction, frame).await,
        CtlCommand::Report(shoot) => report::read(dialer, &shoot.name, frame).await,
        CtlCommand::Weeders(filter) => lists::weeders(dialer, filter, frame).await,
        CtlCommand::Services(filter) => lists::services(dialer, filter, frame).await,
        CtlCommand::Incidents => incidents::read(dialer, frame).await,
        CtlCommand::Replicas => replicas::read(dialer, frame).await,
        CtlCommand::Verdicts(args) => lists::verdicts(dialer, args, frame).await,
        CtlCommand::Scaling(args) => lists::scaling(dialer, args, frame).await,
        CtlCommand::Certificate { folder } => certificate::write(dialer, folder, frame),
        CtlCommand::Release(_) | CtlCommand::Ui { .. } | CtlCommand::Completion { .. } | CtlCommand::Man => {
            Err(CommandError::unexpected("the command does not ask one seed"))
        }
    }
}

/// The file as which this program was started.
fn called_as() -> PathBuf {
    let first = std::env::args_os().next();
    first.map_or_else(|| Path::new("watchdogctl").to_owned(), Into::into)
}

#[cfg(test)]
mod tests;
