//! From the command line to an exit code.

use std::path::Path;
use std::process::ExitCode;

use crate::args::{Cli, CtlCommand};
use crate::commands;
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
    let connect = &cli.connect;
    let open = || ProgramDialer::open(connect);
    let text = match &cli.command {
        CtlCommand::Status(args) => return commands::status::run(&open().await?, args, output).await,
        CtlCommand::Release(args) => return commands::release::run(connect, args, output).await,
        CtlCommand::Ui(args) => return commands::ui::run(connect, args, output).await,
        CtlCommand::Check => return commands::check::run(&open().await?, output).await,
        CtlCommand::Shoot { shoot } => {
            commands::shoot::run(&open().await?, &shoot.name, &output.frame()).await?
        }
        CtlCommand::Plan { shoot, direction } => {
            commands::plan::run(&open().await?, &shoot.name, *direction, &output.frame()).await?
        }
        CtlCommand::History { shoot } => {
            commands::history::run(&open().await?, &shoot.name, &output.frame()).await?
        }
        CtlCommand::Weeders(filter) => {
            commands::weeders::weeders(&open().await?, filter, &output.frame()).await?
        }
        CtlCommand::Services(filter) => {
            commands::weeders::services(&open().await?, filter, &output.frame()).await?
        }
        CtlCommand::Replicas => commands::replicas::run(&open().await?, &output.frame()).await?,
        CtlCommand::Verdicts(args) => commands::verdicts::run(&open().await?, args, &output.frame()).await?,
        CtlCommand::Scaling(args) => commands::scaling::run(&open().await?, args, &output.frame()).await?,
        CtlCommand::Certificate { folder, dns_name } => {
            commands::certificate::run(connect, folder, dns_name).await?
        }
        CtlCommand::Completion { shell } => commands::shell::completion(*shell, &called_as()),
        CtlCommand::Man => commands::shell::man(&called_as())?,
    };
    output.print(&text);
    Ok(ExitCode::SUCCESS)
}

/// The file as which this program was started.
fn called_as() -> std::path::PathBuf {
    let first = std::env::args_os().next();
    first.map_or_else(|| Path::new("watchdogctl").to_owned(), Into::into)
}

#[cfg(test)]
mod tests;
