//! `watchdogctl`, also found by kubectl as `kubectl watchdog` if its file is named `kubectl-watchdog`.

use std::process::ExitCode;

mod api_message;
mod app;
mod args;
mod commands;
mod connect;
mod error;
mod fetch;
mod findings;
mod output;
mod pods;
mod program;
mod render;
mod seed;
#[cfg(test)]
mod testing;

fn main() -> ExitCode {
    match args::parse(std::env::args_os()) {
        Ok(args) => app::run(args),
        Err(error) => {
            // Nothing can be done when the output is closed.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(error::USAGE))
        }
    }
}
