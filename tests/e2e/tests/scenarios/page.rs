//! docs/contributing/acceptance.md: what the suite plays, and how the last run went. `make acceptance` writes it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;

use crate::fault::FaultKind;
use crate::scenarios;

/// Names the page to write.
const PAGE: &str = "ACCEPTANCE_PAGE";

/// How one scenario, or one fault, went.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// 0 for a fault.
    pub(crate) number: u8,
    pub(crate) title: &'static str,
    /// How long it took, its preparation included.
    pub(crate) seconds: f64,
    /// The error, if any.
    pub(crate) failure: Option<String>,
    /// The cost of the outage, where it was counted.
    pub(crate) account: Option<Account>,
}

/// The price of an outage that one shoot paid.
#[derive(Clone, Debug)]
pub(crate) struct OutageCost {
    /// Nodes that were ever Unknown.
    pub(crate) nodes_unknown: usize,
    /// Machines that were given up and replaced.
    pub(crate) machines_replaced: u64,
    /// From the end of the outage until all nodes were ready, all machines ran and all dependants were as before; none
    /// when that did not come in time.
    pub(crate) restored: Option<Duration>,
}

/// With the watchdog, and without it.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    /// A shoot that is watched over.
    pub(crate) protected: OutageCost,
    /// Its twin, to which the same happened, where it has one.
    pub(crate) unprotected: Option<OutageCost>,
}

/// Headings of the page, each before one table.
const SCENARIOS: &str = "\n## Scenarios\n\n";
const PREVENTED: &str = "\n## What is prevented\n\n";
const FAULTS: &str = "\n## Faults\n\n";

// === impl Row ===

impl Row {
    /// Shows it as soon as it is known.
    pub(crate) fn print(&self) {
        let why = self.failure.as_deref().map(|why| format!("\n   FAILED: {why}"));
        let number = match self.number {
            0 => String::new(),
            number => number.to_string(),
        };
        let (seconds, title) = (self.seconds, self.title);
        eprintln!("{number:2} {seconds:6.1} s  {title}{}", why.unwrap_or_default());
    }

    fn outcome(&self) -> String {
        let result = match self.failure {
            None => "good",
            Some(_) => "**failed**",
        };
        format!("{result}, {:.0} s", self.seconds)
    }

    /// Its line of the table of what is prevented.
    fn cost(&self) -> Option<String> {
        let account = self.account.as_ref()?;
        let pair = |show: fn(&OutageCost) -> String| match &account.unprotected {
            Some(cost) => format!("{}, without {}", show(&account.protected), show(cost)),
            None => show(&account.protected),
        };
        let restored = |cost: &OutageCost| match cost.restored {
            Some(restored) => format!("{:.1} s", restored.as_secs_f64()),
            None => "never".to_owned(),
        };
        let (number, title) = (self.number, self.title);
        let unknown = pair(|cost| cost.nodes_unknown.to_string());
        let replaced = pair(|cost| cost.machines_replaced.to_string());
        Some(format!(
            "| {number} | {title} | {unknown} | {replaced} | {} |",
            pair(restored)
        ))
    }
}

/// Replaces the tables of the scenarios.
pub(crate) fn write_scenarios(rows: &[Row]) {
    let mut played = String::new();
    for scenario in scenarios::ALL {
        let row = rows.iter().find(|row| row.number == scenario.number());
        let outcome = row.map_or_else(|| "not played".to_owned(), Row::outcome);
        let _ = writeln!(played, "{} {outcome} |", scenario.link());
    }
    let prevented: Vec<_> = rows.iter().filter_map(Row::cost).collect();
    let today = Timestamp::now().strftime("%Y-%m-%d");
    rewrite(|page| {
        replace_table(page, SCENARIOS, played.trim_end());
        replace_table(page, PREVENTED, &prevented.join("\n"));
        let (before, rest) = page.split_once("\nLast run: ").unwrap();
        let (_, after) = rest.split_once('\n').unwrap();
        *page = format!("{before}\nLast run: {today}.\n{after}");
    });
}

/// Replaces the table of the faults.
pub(crate) fn write_faults(rows: &[Row]) {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| format!("{} {} |", first_cell(row.title), row.outcome()))
        .collect();
    rewrite(|page| replace_table(page, FAULTS, &rows.join("\n")));
}

fn first_cell(title: &str) -> String {
    format!("| {title} |")
}

/// Changes the page that was named, if one was.
fn rewrite(change: impl FnOnce(&mut String)) {
    let Some(path) = std::env::var_os(PAGE).map(PathBuf::from) else {
        return;
    };
    // The other test may write it, too, from a process of its own.
    let lock = std::fs::File::open(&path).unwrap();
    lock.lock().unwrap();
    let mut page = std::fs::read_to_string(&path).unwrap();
    change(&mut page);
    std::fs::write(&path, page).unwrap();
}

/// Replaces the lines of the first table after a heading; its own heading has two.
fn replace_table(page: &mut String, heading: &str, rows: &str) {
    const RULE: &str = " --- |\n";
    let section = page.find(heading).unwrap();
    let table = section + page[section..].find(RULE).unwrap() + RULE.len();
    let end = page[table..]
        .find("\n\n")
        .map_or(page.len(), |end| table + end + 1);
    page.replace_range(table..end, &format!("{rows}\n"));
}

fn read() -> String {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    std::fs::read_to_string(root.join("docs/contributing/acceptance.md")).unwrap()
}

#[test]
fn every_scenario_is_played_and_has_a_row() {
    let page = read();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "mod.rs")
        .collect();
    files.sort();
    let played: Vec<_> = scenarios::ALL.iter().map(|scenario| scenario.file).collect();
    assert_eq!(files, played);
    for scenario in scenarios::ALL {
        let row = scenario.link();
        assert!(page.contains(&row), "make acceptance: the page lacks {row}");
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
    let page = read();
    for fault in FaultKind::ALL {
        let row = first_cell(fault.title());
        assert!(page.contains(&row), "make acceptance: the page lacks {row}");
    }
}

/// A page that is written from itself is as before.
#[test]
fn a_table_is_replaced_and_nothing_else() {
    let page = read();
    let mut written = page.clone();
    replace_table(&mut written, FAULTS, "| a fault | good, 1 s |");
    assert!(written.ends_with("| --- | --- |\n| a fault | good, 1 s |\n"));
    replace_table(&mut written, PREVENTED, "| 8 | x | 0 | 0 | 1.0 s |");
    let (kept, _) = page.split_once("| 7 |").unwrap();
    assert!(written.starts_with(kept), "{written}");
    assert!(
        written.contains("| 8 | x | 0 | 0 | 1.0 s |\n\n## Faults\n\n"),
        "{written}"
    );
}
