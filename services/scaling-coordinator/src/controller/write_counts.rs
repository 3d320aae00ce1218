//! How many writes were made for each shoot, and with what result: read at the scrape, gone with the shoot.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::domain::Direction;
use crate::domain::attempts::RequestOutcome;
use crate::domain::status::WriteResult;
use crate::metrics::WRITES;

/// Writes of one shoot by direction and result.
pub(crate) type WritesByResult = BTreeMap<(Direction, WriteResult), u64>;

#[derive(Debug, Default)]
pub(crate) struct WriteCounts {
    by_shoot: Mutex<HashMap<Arc<str>, WritesByResult>>,
}

impl WriteCounts {
    pub(crate) fn count(&self, shoot: &Arc<str>, direction: Direction, outcome: &RequestOutcome) {
        let labels = (direction, outcome.write_result());
        WRITES.inc(labels);
        let mut by_shoot = self.by_shoot.lock();
        *by_shoot
            .entry(shoot.clone())
            .or_default()
            .entry(labels)
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
