//! docs/contributing/acceptance.md: what the suite plays, and how the last run went.

use std::fmt::Write;

use super::accounting::OutageCost;
use super::results::{Results, Row};
use super::scenarios;

/// The content of the tables.
pub struct Runs {
    pub scenarios: Results,
    pub faults: Results,
}

const HEAD: &str = "\
# Acceptance

Scenarios of the field and faults, with the programs as processes on real kube-apiservers with etcd. A scenario links to
its file, which begins with what happens and what must be. `make acceptance` plays everything and writes this page;
`make test` plays everything too. After each one, the recorded history of the shoot is checked for the
[safety invariants](testing.md#the-safety-invariants) S1 to S4 and S6.

A grace period of 40 s is 16 s here. Durations include the preparation, on two cores that play many scenarios at once.
";

const ACCOUNTING: &str = "\
With the watchdog, and in a twin without it: nodes that a real kube-controller-manager marked Unknown, machines that
were replaced (after half a grace period instead of ten minutes), and scaled time from the end of the outage until all
nodes, machines and dependants were back.
";

const FAULTS: &str = "\
Each fault strikes while one shoot is being lost, another one recovers, a third one is healthy, and crashed pods wait
for their Service; the shoots take turns. It lasts for a grace period unless it ends by itself. Afterwards the
invariants hold, everything is down or up as it should be, and no program has more tasks, file descriptors or memory
than before.
";

/// The whole page.
#[must_use]
pub fn render(runs: &Runs) -> String {
    let mut page = HEAD.to_owned();
    // Writing to a String cannot fail.
    let _ = write!(page, "\nLast run: {}.\n\n## Scenarios\n\n", date(&runs.scenarios));
    page.push_str("| | scenario | result |\n| --- | --- | --- |\n");
    for scenario in scenarios::ALL {
        let number = scenario.number();
        let _ = writeln!(
            page,
            "| {number} | [{}](../../tests/e2e/scenarios/{}) | {} |",
            scenario.title(),
            scenario.file,
            cell(&runs.scenarios, number),
        );
    }
    let _ = write!(page, "\n## What is prevented\n\n{ACCOUNTING}\n");
    page.push_str(
        "| | scenario | nodes Unknown | machines replaced | restored after |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    for row in &runs.scenarios.rows {
        account(&mut page, row);
    }
    let _ = write!(page, "\n## Faults\n\n{FAULTS}\n");
    page.push_str("| fault | result |\n| --- | --- |\n");
    for row in &runs.faults.rows {
        let _ = writeln!(page, "| {} | {} |", row.title, outcome(row));
    }
    page
}

fn date(results: &Results) -> String {
    results.at.strftime("%Y-%m-%d").to_string()
}

fn cell(results: &Results, number: u8) -> String {
    let row = results.rows.iter().find(|row| row.number == number);
    row.map_or_else(|| "not played".to_owned(), outcome)
}

fn outcome(row: &Row) -> String {
    let result = if row.failure.is_none() {
        "good"
    } else {
        "**failed**"
    };
    format!("{result}, {:.0} s", row.seconds)
}

fn account(page: &mut String, row: &Row) {
    let Some(account) = &row.account else { return };
    let unprotected = account.unprotected.as_ref();
    let pair = |show: &dyn Fn(&OutageCost) -> String| match unprotected {
        Some(toll) => format!("{}, without {}", show(&account.protected), show(toll)),
        None => show(&account.protected),
    };
    let restored = |toll: &OutageCost| {
        let restored = toll.restored;
        restored.map_or_else(
            || "never".to_owned(),
            |restored| format!("{:.1} s", restored.as_secs_f64()),
        )
    };
    let _ = writeln!(
        page,
        "| {} | {} | {} | {} | {} |",
        row.number,
        row.title,
        pair(&|toll| toll.nodes_unknown.to_string()),
        pair(&|toll| toll.machines_replaced.to_string()),
        pair(&restored),
    );
}
