//! The scaling-coordinator process.

use std::process::ExitCode;

use scaling_coordinator::{app, config::Args};

fn main() -> ExitCode {
    match watchdog_runtime::command_line::configure::<Args>() {
        Ok(config) => {
            watchdog_runtime::process::run(&config.common.clone(), |process| app::build(config, process))
        }
        Err(code) => code,
    }
}
