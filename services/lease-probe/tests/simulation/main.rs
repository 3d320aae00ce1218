//! Judges the real prober by a simulated kube-controller-manager, over many histories in virtual time.
//!
//! `HISTORIES` is their number, `CLASS` their class, `SEED` the first seed; `SHOOTS` how many share a prober where
//! several do; `SAFETY_PAGE` names the page with the table.

#![cfg(test)]

mod builder;
mod classes;
mod classes_of_failures;
mod classes_of_nodes;
mod classes_of_outages;
mod classes_of_small_shoots;
mod describe;
mod http_client;
mod judge;
mod kubelet;
mod leadership;
mod network;
mod node_lifecycle;
mod node_lifecycle_input;
mod node_lifecycle_tests;
mod objects;
mod random;
mod run;
mod script;
mod table;
mod timeline;
mod transport;
mod world;

use std::time::{Duration, Instant};

/// The seed of the histories that are the same every time.
const FIXED_SEED: u64 = 14;

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// No loss verdict that kube-controller-manager would not have confirmed, none after it marked the nodes.
#[test]
fn kube_controller_manager_confirms_every_loss_verdict() {
    let histories = setting("HISTORIES").map_or(2_000, |n| n.parse().unwrap());
    let class = setting("CLASS");
    let fresh = rand::random::<u64>() >> 16;
    let seeds = match setting("SEED") {
        Some(seed) => vec![seed.parse().unwrap()],
        None => vec![FIXED_SEED, fresh],
    };
    println!("seeds {seeds:?}");
    let began = Instant::now();
    let share = histories / seeds.len() as u64;
    let results: Vec<_> = seeds
        .iter()
        .map(|seed| run::run(share, *seed, class.as_deref()))
        .collect();
    let table = table::merge(results.iter().map(|result| result.table.clone()));
    let text = table::markdown(&table);
    println!(
        "{text}\n{histories} histories in {:.1} s",
        elapsed(began).as_secs_f64()
    );
    if let Some(page) = setting("SAFETY_PAGE") {
        write_table(&page, &format!("{text}\n{}", table::reasons()));
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

/// Replaces what stands between the marks.
fn write_table(page: &str, table: &str) {
    const MARKS: [&str; 2] = ["<!-- begin of the table -->\n", "<!-- end of the table -->\n"];
    let text = std::fs::read_to_string(page).unwrap();
    let (head, rest) = text.split_once(MARKS[0]).unwrap();
    let (_, tail) = rest.split_once(MARKS[1]).unwrap();
    let [begin, end] = MARKS;
    std::fs::write(page, format!("{head}{begin}\n{table}\n{end}{tail}")).unwrap();
}

fn elapsed(since: Instant) -> Duration {
    since.elapsed()
}
