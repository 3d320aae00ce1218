//! The dependency-watchdog process.

use std::process::ExitCode;

use dependency_watchdog::args::DropInOptions;
use dependency_watchdog::roles;
use watchdog_runtime::process::{self, usage_error};

fn main() -> ExitCode {
    let options = match DropInOptions::parse(std::env::args_os()) {
        Ok(options) => options,
        Err(error) => return usage_error(&error),
    };
    let common = options.services.common().clone();
    if common.check_config {
        return ExitCode::SUCCESS;
    }
    process::run(&common, |process| roles::build(options, process))
}
