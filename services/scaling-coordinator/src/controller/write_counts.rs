//! How many writes were made for each shoot, and with what result: read at the scrape, gone with the shoot.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::domain::Direction;
use crate::domain::flow::Outcome;
use crate::metrics::WRITES;

/// The result of a write, as a label value.
#[must_use]
pub const fn result(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "applied",
        Outcome::Conflict => "conflict",
        Outcome::Refused { .. } => "refused",
        Outcome::Unknown { .. } => "unknown",
        Outcome::Cancelled => "cancelled",
    }
}

/// Writes of one shoot by direction and result.
pub type Counts = BTreeMap<(Direction, &'static str), u64>;

/// Writes by shoot.
#[derive(Debug, Default)]
pub struct WriteCounts {
    by_shoot: Mutex<HashMap<Arc<str>, Counts>>,
}

impl WriteCounts {
    /// Counts a write.
    pub fn count(&self, shoot: &Arc<str>, direction: Direction, outcome: &Outcome) {
        let result = result(outcome);
        WRITES.inc(&[
            ("direction", direction.as_str().to_owned()),
            ("result", result.to_owned()),
        ]);
        let mut by_shoot = self.by_shoot.lock();
        *by_shoot
            .entry(shoot.clone())
            .or_default()
            .entry((direction, result))
            .or_default() += 1;
    }

    /// Forgets a shoot.
    pub fn forget(&self, shoot: &str) {
        self.by_shoot.lock().remove(shoot);
    }

    /// All counts.
    #[must_use]
    pub fn all(&self) -> Vec<(Arc<str>, Counts)> {
        self.by_shoot
            .lock()
            .iter()
            .map(|(shoot, counts)| (shoot.clone(), counts.clone()))
            .collect()
    }
}
