//! From the command line to an exit code.

use std::path::Path;
use std::process::ExitCode;

use crate::args::{Cli, Command};
use crate::commands;
use crate::connect::Connector;
use crate::error::CommandError;
use crate::fetch::Clients;
use crate::output::Output;

/// Runs the command. Errors go to standard error.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let output = Output::of_process();
    let ended = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(dispatch(cli, output)),
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

async fn dispatch(cli: Cli, output: Output) -> Result<ExitCode, CommandError> {
    match cli.command {
        Command::Completion { shell } => {
            commands::shell::completion(shell, &called_as(), &output);
            return Ok(ExitCode::SUCCESS);
        }
        Command::Man => {
            commands::shell::man(&called_as(), &output)?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let connector = Connector::open(&cli.connect).await?;
    let clients = Clients(&connector);
    let text = match cli.command {
        Command::Status(args) => return commands::status::run(&clients, &args, output).await,
        Command::Check => return commands::check::run(&connector, output).await,
        Command::Shoot { shoot } => commands::shoot::run(&clients, &shoot.name, &output.frame()).await?,
        Command::Plan { shoot, direction } => {
            commands::plan::run(&clients, &shoot.name, direction.direction(), &output.frame()).await?
        }
        Command::History { shoot } => commands::history::run(&clients, &shoot.name, &output.frame()).await?,
        Command::Weeders(filter) => commands::weeders::run(&clients, &filter, &output.frame()).await?,
        Command::Services(filter) => commands::services::run(&clients, &filter, &output.frame()).await?,
        Command::Replicas => commands::replicas::run(&connector, &output.frame()).await?,
        Command::Verdicts(args) => commands::verdicts::run(&clients, &args, &output.frame()).await?,
        Command::Scaling(args) => commands::scaling::run(&clients, &args, &output.frame()).await?,
        Command::Completion { .. } | Command::Man => String::new(),
    };
    output.print(&text);
    Ok(ExitCode::SUCCESS)
}

/// The file as which this program was started.
fn called_as() -> std::path::PathBuf {
    let first = std::env::args_os().next();
    first.map_or_else(|| Path::new("watchdogctl").to_owned(), Into::into)
}
