//! scaling-coordinator: scales the dependants of shoots down and up, level by level.

use std::process::ExitCode;

use scaling_coordinator::app;
use scaling_coordinator::config::Config;
use watchdog_runtime::process;

fn main() -> ExitCode {
    match Config::from_command_line() {
        Ok(config) => {
            let common = config.common.clone();
            process::run(&common, |process| app::build(config, process))
        }
        Err(code) => code,
    }
}
