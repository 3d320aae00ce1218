//! S6 as a promise: from every state, once faults have ended and the verdict is healthy, everything is
//! restored to its recorded count and nothing stays marked. Of a shoot that is no longer protected nothing stays
//! marked either.

use std::collections::HashSet;

use crate::rules::Rules;
use crate::search::fingerprint;
use crate::state::{CombinedVerdict, ModelState};

/// More rounds than any path without faults needs: four writes, their waits and a failed level's pause.
const ROUNDS: usize = 80;

/// Remembers from which states everything was restored.
#[derive(Default)]
pub struct RestoreChecker {
    good: HashSet<u64>,
}

impl RestoreChecker {
    /// Checks that everything is restored from here.
    pub fn check(&mut self, from: &ModelState, rules: Rules) -> anyhow::Result<()> {
        let mut state = from.clone();
        state.list_all();
        state.end_faults(CombinedVerdict::Healthy, rules)?;
        let mut path = Vec::new();
        for _ in 0..ROUNDS {
            let now = fingerprint(&state);
            // A path that joins an earlier one ends as that one did.
            if state.is_settled() || self.good.contains(&now) {
                self.good.extend(path);
                return Ok(());
            }
            path.push(now);
            state.faultless_round(rules)?;
        }
        anyhow::bail!("S6: it is not restored or released although faults have ended")
    }
}

/// Checks that from here everything goes down while the observers report a loss, also what is not listed.
pub fn goes_down(from: &ModelState, rules: Rules) -> anyhow::Result<()> {
    let mut state = from.clone();
    state.end_faults(CombinedVerdict::LeasesExpired, rules)?;
    if state.lacks_news() {
        return Ok(());
    }
    for _ in 0..ROUNDS {
        if state.is_settled() {
            return Ok(());
        }
        state.faultless_round(rules)?;
    }
    anyhow::bail!("it does not go down although faults have ended")
}
