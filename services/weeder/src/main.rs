//! The weeder process.

use std::process::ExitCode;

use weeder::{app, config::Config};

fn main() -> ExitCode {
    match Config::from_command_line() {
        Ok(config) => {
            watchdog_runtime::process::run(&config.common.clone(), |process| app::build(config, process))
        }
        Err(code) => code,
    }
}
