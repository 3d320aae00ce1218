//! docs/contributing/acceptance.md names every scenario there is, and the suite plays every file there is.

use std::path::Path;

use watchdog_e2e::acceptance::fault::FaultKind;
use watchdog_e2e::acceptance::scenarios;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn every_scenario_is_played_and_has_a_row() {
    let page = std::fs::read_to_string(root().join("docs/contributing/acceptance.md")).unwrap();
    let mut files: Vec<String> = std::fs::read_dir(root().join("tests/e2e/scenarios"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "mod.rs")
        .collect();
    files.sort();
    let played: Vec<_> = scenarios::ALL.iter().map(|scenario| scenario.file).collect();
    assert_eq!(files, played);
    for scenario in scenarios::ALL {
        let row = format!(
            "| {} | [{}](../../tests/e2e/scenarios/{}) |",
            scenario.number(),
            scenario.title(),
            scenario.file
        );
        assert!(
            page.contains(&row),
            "make acceptance: docs/contributing/acceptance.md lacks {row}"
        );
    }
    let numbers = scenarios::ALL
        .iter()
        .map(|scenario| usize::from(scenario.number()));
    assert!(
        numbers.eq(1..=scenarios::ALL.len()),
        "the numbers of the files have a gap"
    );
}

#[test]
fn every_fault_has_a_row() {
    let page = std::fs::read_to_string(root().join("docs/contributing/acceptance.md")).unwrap();
    for fault in FaultKind::ALL {
        let row = format!("| {} |", fault.title());
        assert!(
            page.contains(&row),
            "make acceptance: docs/contributing/acceptance.md lacks {row}"
        );
    }
}
