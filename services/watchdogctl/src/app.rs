//! From the command line to an exit code.

use std::path::Path;
use std::process::ExitCode;

use crate::args::{Cli, ConnectArgs, CtlCommand, Format};
use crate::commands::seeds::{SeedAnswer, ask_each, side_by_side};
use crate::commands::{self, CommandAnswer, Shape};
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::output::Output;

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
    let shape = Shape {
        format: format.output,
        frame: output.frame(),
    };
    if shape.format == Format::Markdown && !matches!(command, CtlCommand::Report { .. }) {
        let what_to_do = "use -o json, or watchdogctl report SHOOT -o markdown";
        return Err(CommandError::usage("only report writes Markdown", what_to_do));
    }
    let answer = match &command {
        CtlCommand::Completion { shell } => {
            CommandAnswer::of_text(commands::shell::completion(*shell, &called_as()))
        }
        CtlCommand::Man => CommandAnswer::of_text(commands::shell::man(&called_as())?),
        CtlCommand::Certificate { folder } => {
            one_seed(&connect)?;
            CommandAnswer::of_text(Box::pin(commands::certificate::run(&connect, folder)).await?)
        }
        CtlCommand::Release(args) => {
            one_seed(&connect)?;
            return Box::pin(commands::release::run(&connect, args, shape.format, output)).await;
        }
        CtlCommand::Ui(args) => {
            one_seed(&connect)?;
            return Box::pin(commands::ui::run(&connect, args, output)).await;
        }
        CtlCommand::Status(args) if args.watch => {
            one_seed(&connect)?;
            let dialer = Box::pin(ProgramDialer::open(&connect)).await?;
            Box::pin(commands::status::watch(&dialer, args, output)).await;
            return Ok(ExitCode::SUCCESS);
        }
        CtlCommand::Incidents => Box::pin(commands::incidents::run(&connect, shape)).await?,
        command => {
            let ask = async |dialer| Box::pin(read(&dialer, command, shape)).await;
            let mut answers = Box::pin(ask_each(&connect, ask)).await?;
            match answers.pop() {
                Some(SeedAnswer { result, .. }) if !connect.has_contexts() => result?,
                last => {
                    answers.extend(last);
                    side_by_side(answers, shape)
                }
            }
        }
    };
    let code = ExitCode::from(answer.code);
    output.print(&shape.written(answer)?);
    Ok(code)
}

/// Commands that only read, on one seed.
async fn read(
    dialer: &ProgramDialer,
    command: &CtlCommand,
    shape: Shape,
) -> Result<CommandAnswer, CommandError> {
    match command {
        CtlCommand::Status(args) => commands::status::run(dialer, args, shape).await,
        CtlCommand::Check => commands::check::run(dialer, shape).await,
        CtlCommand::Shoot { shoot } => commands::shoot::run(dialer, &shoot.name, shape).await,
        CtlCommand::Plan { shoot, direction } => {
            commands::plan::run(dialer, &shoot.name, *direction, shape).await
        }
        CtlCommand::Report { shoot } => commands::report::run(dialer, &shoot.name, shape).await,
        CtlCommand::Weeders(filter) => commands::weeders::weeders(dialer, filter, shape).await,
        CtlCommand::Services(filter) => commands::weeders::services(dialer, filter, shape).await,
        CtlCommand::Replicas => commands::replicas::run(dialer, shape).await,
        CtlCommand::Verdicts(args) => commands::verdicts::run(dialer, args, shape).await,
        CtlCommand::Scaling(args) => commands::scaling::run(dialer, args, shape).await,
        CtlCommand::Incidents
        | CtlCommand::Release(_)
        | CtlCommand::Ui(_)
        | CtlCommand::Certificate { .. }
        | CtlCommand::Completion { .. }
        | CtlCommand::Man => Err(CommandError::unexpected("the command does not read one seed")),
    }
}

/// # Errors
/// When several seeds are named.
fn one_seed(connect: &ConnectArgs) -> Result<(), CommandError> {
    if connect.has_contexts() {
        let what = "this command works on one seed, and --contexts or --all-contexts names several";
        return Err(CommandError::usage(what, "use --context"));
    }
    Ok(())
}

/// The file as which this program was started.
fn called_as() -> std::path::PathBuf {
    let first = std::env::args_os().next();
    first.map_or_else(|| Path::new("watchdogctl").to_owned(), Into::into)
}

#[cfg(test)]
mod tests;
