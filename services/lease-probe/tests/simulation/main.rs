//! Judges the real prober by a simulated kube-controller-manager, over many histories in virtual time.
//!
//! `HISTORIES` is their number, `CLASS` the beginnings of the names of their classes, with `|` between them (`list`
//! prints all names), `SEED` the first seed; `SHOOTS` how many share a prober where several do; `SAFETY_PAGE` names
//! the page with the tables.

#![cfg(test)]

mod absence;
mod builder;
mod classes;
mod classes_of_absence;
mod classes_of_faults;
mod classes_of_inputs;
mod classes_of_nodes;
mod classes_of_outages;
mod classes_of_pools;
mod classes_of_witnesses;
mod classes_of_writes;
mod describe;
mod http_client;
mod input_changes;
mod judge;
mod kubelet;
mod leadership;
mod network;
mod node_lifecycle;
mod node_lifecycle_input;
// Not declared in node_lifecycle.rs, which the end-to-end tests include too.
#[path = "node_lifecycle/tests.rs"]
mod node_lifecycle_tests;
mod objects;
mod other_writers;
mod random;
mod run;
mod script;
mod table;
mod timeline;
mod transport;
mod virtual_time;
mod witnesses;

use std::time::Instant;

use classes::HistoryClass;

/// The seed of the histories that are the same every time.
const FIXED_SEED: u64 = 14;

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn histories() -> u64 {
    setting("HISTORIES").map_or(2_000, |n| n.parse().unwrap())
}

/// The classes that `CLASS` names, which may be one of those with possible false verdicts, or else `classes`.
fn chosen(classes: Vec<HistoryClass>) -> Vec<HistoryClass> {
    let Some(only) = setting("CLASS") else {
        return classes;
    };
    let all = classes::all().into_iter().chain(classes::limits());
    let is_chosen = |class: &HistoryClass| only.split('|').any(|name| class.name.starts_with(name));
    let (chosen, others): (Vec<_>, Vec<_>) = all.partition(is_chosen);
    let others: Vec<_> = others.iter().map(|class| class.name).collect();
    assert!(
        !chosen.is_empty(),
        "no class begins with {only:?}; there are:\n{}",
        others.join("\n")
    );
    chosen
}

/// No loss verdict that kube-controller-manager would not have confirmed, none after it marked the nodes.
#[test]
fn kube_controller_manager_confirms_every_loss_verdict() {
    let histories = histories();
    let fresh = rand::random::<u64>() >> 16;
    let seeds = match (setting("SEED"), setting("HISTORIES")) {
        (Some(seed), _) => vec![seed.parse().unwrap()],
        (None, Some(_)) => vec![FIXED_SEED, fresh],
        // The same with every change: a campaign finds what is rare (make safety).
        (None, None) => vec![FIXED_SEED],
    };
    println!("seeds {seeds:?}");
    let (began, classes) = (Instant::now(), chosen(classes::all()));
    let share = histories / seeds.len() as u64;
    let results: Vec<_> = seeds
        .iter()
        .map(|seed| run::run(share, *seed, &classes))
        .collect();
    let table = table::merge(results.iter().map(|result| result.table.clone()));
    let text = table::markdown(&table);
    println!(
        "{text}\n{histories} histories in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    if let Some(page) = setting("SAFETY_PAGE") {
        write_table(&page, "the table", &table::page(&table, &classes));
    }
    let accounts: Vec<_> = results.iter().flat_map(|result| &result.accounts).collect();
    for account in &accounts {
        println!("{account}");
    }
    let defects: Vec<_> = results.iter().flat_map(|result| &result.defects).collect();
    assert!(
        defects.is_empty(),
        "{} shoots with a false verdict, or a late one where none may be late: {defects:#?}",
        defects.len()
    );
}

/// False verdicts that nobody outside can prevent stay as rare as docs/explanation/safety.md says.
#[test]
fn false_verdicts_that_nobody_can_prevent_are_rare() {
    let page = setting("SAFETY_PAGE");
    let classes = classes::limits();
    let each = if page.is_some() { histories() / 25 } else { 30 };
    let table = run::run(each * classes.len() as u64, FIXED_SEED, &classes).table;
    let text = table::limits(&table, &classes);
    println!("{text}");
    if let Some(page) = page {
        write_table(&page, "the limits", &text);
    }
    for ((place, name), judgements) in &table {
        let most = (classes[*place].most_false * judgements.len()).div_ceil(1_000);
        let falses = table::falses(judgements);
        assert!(falses <= most, "{name}: {falses} false verdicts");
    }
}

/// Replaces what stands between the marks with that name.
fn write_table(page: &str, name: &str, table: &str) {
    let [begin, end] = ["begin", "end"].map(|mark| format!("<!-- {mark} of {name} -->\n"));
    let text = std::fs::read_to_string(page).unwrap();
    let (head, rest) = text.split_once(&begin).unwrap();
    let (_, tail) = rest.split_once(&end).unwrap();
    std::fs::write(page, format!("{head}{begin}\n{table}\n{end}{tail}")).unwrap();
}
