//! The weeder process.

use std::process::ExitCode;

use weeder::{app, config::Args};

fn main() -> ExitCode {
    match watchdog_runtime::cli::parse_or_exit::<Args>() {
        Ok(config) => {
            watchdog_runtime::process::run(&config.args.common.clone(), |process| app::build(config, process))
        }
        Err(code) => code,
    }
}
