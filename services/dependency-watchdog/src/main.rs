//! The dependency-watchdog process.

use std::process::ExitCode;

use dependency_watchdog::args::{DropInOptions, StartError};
use dependency_watchdog::roles;
use watchdog_runtime::process::{self, usage_error};

fn main() -> ExitCode {
    let options = match DropInOptions::parse(std::env::args_os()) {
        Ok(options) => options,
        Err(StartError::Usage(error)) => {
            // Nothing can be done when the output is closed.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(process::EXIT_USAGE));
        }
        Err(StartError::Invalid(error)) => return usage_error(&format!("{error:#}")),
    };
    if options.check_config {
        return ExitCode::SUCCESS;
    }
    let common = options.services.common().clone();
    process::run(&common, |process| roles::build(options, process))
}
