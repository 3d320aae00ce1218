//! The lease-probe process.

use std::process::ExitCode;

use lease_probe::{app, config::Config};

fn main() -> ExitCode {
    match Config::from_command_line() {
        Ok(config) => {
            watchdog_runtime::process::run(&config.common.clone(), |process| app::build(config, process))
        }
        Err(code) => code,
    }
}
