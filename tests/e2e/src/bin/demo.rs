//! `make demo`: a meltdown prevented and a crash loop cut short, live.

use std::process::ExitCode;

use anyhow::Context as _;

fn main() -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("the demo cannot start")?;
    let keep = std::env::var_os("KEEP").is_some_and(|value| !value.is_empty() && value != "0");
    let is_all_right = runtime.block_on(watchdog_e2e::demo::run(keep));
    Ok(match is_all_right.context("the demo failed")? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
