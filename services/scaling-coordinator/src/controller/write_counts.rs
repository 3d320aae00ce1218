//! How many writes were made for each shoot, and with what result: read at the scrape, gone with the shoot.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::domain::Direction;
use crate::domain::flow::ActionOutcome;
use crate::metrics::WRITES;

pub(crate) const fn result(outcome: &ActionOutcome) -> &'static str {
    match outcome {
        ActionOutcome::Done => "applied",
        ActionOutcome::Conflict => "conflict",
        ActionOutcome::Refused { .. } => "refused",
        ActionOutcome::Unknown { .. } => "unknown",
        ActionOutcome::Cancelled => "cancelled",
        ActionOutcome::Observed => "observed",
    }
}

/// Writes of one shoot by direction and result.
pub(crate) type WritesByResult = BTreeMap<(Direction, &'static str), u64>;

#[derive(Debug, Default)]
pub(crate) struct WriteCounts {
    by_shoot: Mutex<HashMap<Arc<str>, WritesByResult>>,
}

impl WriteCounts {
    pub(crate) fn count(&self, shoot: &Arc<str>, direction: Direction, outcome: &ActionOutcome) {
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

    pub(crate) fn forget(&self, shoot: &str) {
        self.by_shoot.lock().remove(shoot);
    }

    pub(crate) fn all(&self) -> Vec<(Arc<str>, WritesByResult)> {
        self.by_shoot
            .lock()
            .iter()
            .map(|(shoot, counts)| (shoot.clone(), counts.clone()))
            .collect()
    }
}
