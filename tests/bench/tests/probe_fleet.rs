//! The smallest measurement, with the real programs: so that the benchmarks do not break unseen.

#![cfg(test)]

use std::process::Command;

use serde_json::Value;

#[test]
fn a_healthy_fleet_is_measured() {
    let output = Command::new(env!("CARGO_BIN_EXE_probe-fleet"))
        .args("healthy --shoots 3 --nodes 2 --interval 2 --window 2".split(' '))
        .output()
        .unwrap();
    let figures: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert!(output.status.success(), "{figures:#}");
    assert!(figures["probes"].as_u64().unwrap() > 0, "{figures:#}");
    // What the seed was asked is counted from the sandbox's record.
    assert!(figures["seedRequests"].is_object(), "{figures:#}");
}
