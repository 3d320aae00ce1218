//! `make demo`: a meltdown prevented and a crash loop cut short, live.

use std::process::ExitCode;

fn main() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return watchdog_runtime::process::usage_error(&format!("cannot start: {error}")),
    };
    let keep = std::env::var_os("KEEP").is_some_and(|value| !value.is_empty() && value != "0");
    match runtime.block_on(watchdog_e2e::demo::run(keep)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = watchdog_runtime::process::usage_error(&format!("the demo failed: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
