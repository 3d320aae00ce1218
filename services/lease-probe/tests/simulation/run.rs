//! Plays histories, on all cores.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::classes::HistoryClass;
use crate::describe::Account;
use crate::judge::{Judgement, judge, unprotected};
use crate::other_writers::Writes;
use crate::script::History;
use crate::table::{self, Table};
use crate::virtual_time::{PlayedShoot, probe};

/// The results of many histories.
pub(crate) struct RunResult {
    pub(crate) table: Table,
    /// Of each class, one history with a false verdict and one with another defect, if there are any.
    pub(crate) accounts: Vec<String>,
    /// All histories with a defect, a line each.
    pub(crate) defects: Vec<String>,
}

/// A loss verdict that is false or came late where there is no excuse.
fn is_defect(class: &HistoryClass, judgement: &Judgement) -> bool {
    (judgement.is_false() && class.may_be_false.is_none())
        || (!judgement.late.is_empty() && class.may_be_late.is_none())
        || judgement.stuck
        || !judgement.unfounded.is_empty()
}

/// Plays one history of a class; its shoots' judgements, and accounts of those that `wants` one.
pub(crate) fn play(history: &History, wants: impl Fn(&Judgement) -> bool) -> (Vec<Judgement>, Vec<String>) {
    let played = history.shoots.iter().enumerate().map(|(i, script)| {
        let happened = unprotected(script, history.length);
        Arc::new(PlayedShoot {
            name: format!("shoot-{i}").into(),
            script: script.clone(),
            writes: Writes::new(script, &happened, history.length),
            history: happened,
        })
    });
    let shoots: Vec<_> = played.collect();
    let probed = probe(history, &shoots);
    let (mut judgements, mut accounts) = (Vec::new(), Vec::new());
    for (shoot, probed) in shoots.iter().zip(&probed) {
        let judgement = judge(&shoot.script, &shoot.history, &probed.verdicts, history.length);
        if wants(&judgement) {
            let account = Account {
                history,
                script: &shoot.script,
                happened: &shoot.history,
                probed,
                judgement: &judgement,
            };
            accounts.push(account.text());
        }
        judgements.push(judgement);
    }
    (judgements, accounts)
}

/// Plays about `histories` histories over these classes; the seeds follow from `seed`.
pub(crate) fn run(histories: u64, seed: u64, classes: &[HistoryClass]) -> RunResult {
    let next = AtomicU64::new(0);
    let (accounts, defects) = (Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    let work = || {
        let mut table = Table::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= histories {
                return table;
            }
            let count = classes.len() as u64;
            let place = (i % count) as usize;
            let class = &classes[place];
            if !(i / count).is_multiple_of(class.rarity) {
                continue;
            }
            let history = class.generate(seed.wrapping_add(i / count));
            let defect = |judgement: &Judgement| is_defect(class, judgement);
            let (judgements, texts) = play(&history, |judgement| histories == 1 || defect(judgement));
            if judgements.iter().any(defect) {
                let lines = texts.iter().filter_map(|text| text.lines().next());
                defects.lock().extend(lines.map(str::to_owned));
            }
            for text in texts.into_iter().take(1) {
                let is_false = judgements.iter().any(Judgement::is_false);
                accounts.lock().entry((class.name, is_false)).or_insert(text);
            }
            table.entry((place, class.name)).or_default().extend(judgements);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let tables: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    RunResult {
        table: table::merge(tables),
        accounts: accounts.into_inner().into_values().collect(),
        defects: defects.into_inner(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::class;
    use crate::classes_of_faults::anything;

    /// A printed seed is worth nothing otherwise.
    #[test]
    fn the_same_seed_makes_the_same_history() {
        let anything = class("anything", &[anything]);
        let accounts = |seed| play(&anything.generate(seed), |_| true).1;
        for seed in 0..20 {
            assert_eq!(accounts(seed), accounts(seed), "seed {seed}");
        }
    }
}
