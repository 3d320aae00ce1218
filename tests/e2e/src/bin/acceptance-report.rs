//! Writes docs/contributing/acceptance.md from what the last runs left behind.

use std::path::Path;

use watchdog_e2e::acceptance::report::{Runs, render};
use watchdog_e2e::acceptance::results::Results;

fn main() -> anyhow::Result<()> {
    let runs = Runs {
        scenarios: Results::load("scenarios")?,
        faults: Results::load("faults")?,
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/contributing/acceptance.md");
    std::fs::write(path, render(&runs))?;
    Ok(())
}
