//! The scaling-coordinator process.

use std::process::ExitCode;

use scaling_coordinator::app;
use scaling_coordinator::config::Args;

fn main() -> ExitCode {
    match watchdog_runtime::cli::parse_or_exit::<Args>() {
        Ok(config) => {
            let common = config.args.common.clone();
            match config.release.clone() {
                None => watchdog_runtime::process::run(&common, |process| app::build(config, process)),
                Some(options) => watchdog_runtime::process::run_to_end(&common, |_| {
                    app::release::run(config, options, std::io::stdout())
                }),
            }
        }
        Err(code) => code,
    }
}
