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

One suite says whether the product does its job: the field's scenarios and the faults that it fears, played on real
kube-apiservers with etcd, with the three services started as their users start them. `make acceptance` plays everything
and writes this page; `make test` plays everything too.

Each scenario is a file under [tests/e2e/scenarios](../../tests/e2e/scenarios) that says in a few lines what happens and
what must be. After each of them, and after each fault, the recorded history of the shoot is judged by the safety
invariants S1 to S4 and S6 ([tests/support/src/history](../../tests/support/src/history)). S5 is about several
coordinators, which the tests of [replicas](../../tests/e2e/tests/replicas) and chaos have.

Time is scaled: a grace period of 40 s is 16 s here. Durations below are those of the run, on a machine with two cores,
preparation included; many scenarios are played at once.
";

const ACCOUNTING: &str = "\
What an outage cost with the watchdog, and what the same outage cost a twin without it: nodes that turned Unknown,
machines that were given up and replaced, and seconds (of scaled time) from the end of the outage until all nodes were
ready, all machines ran and all dependants were at their counts. Machines are given up after half a grace period here,
not after ten minutes, so that an outage need not last that long. Nodes are judged by a real kube-controller-manager.
";

const FAULTS: &str = "\
Each fault strikes while one shoot is being lost, another one recovers, a third one is calm, and crashed pods wait for
their Service; it lasts for a grace period where it does not end by itself. Afterwards the invariants hold, all is down
that should be and up that should be, and no service has more tasks, file descriptors or memory than before. Services
that are killed at random times: [tests/e2e/tests/nightly/chaos.rs](../../tests/e2e/tests/nightly/chaos.rs).
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
            "| {number} | [{}](../../tests/e2e/scenarios/{}). {} | {} |",
            scenario.title(),
            scenario.file,
            scenario.text(),
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
