//! The series that are counted at the scrape.

use std::sync::Arc;

use watchdog_runtime::metrics::{Collector, Exposition};

use crate::domain::readiness::Readiness;
use crate::domain::weeder::State as Life;
use crate::metrics;
use crate::state::State;

/// Counts what the model holds.
#[derive(Debug)]
pub struct Scrape {
    /// The model.
    pub state: Arc<State>,
}

impl Collector for Scrape {
    fn collect(&self, out: &mut Exposition) {
        let services = self.state.services().snapshot();
        let ready = services
            .iter()
            .filter(|(_, state)| state.readiness() == Readiness::Ready)
            .count();
        let not_ready = services.len().saturating_sub(ready);
        let (queued, active, pending) = self.state.read(|model| {
            let weeding = &model.weeding;
            (
                weeding.count(Life::Queued),
                weeding.count(Life::Active),
                weeding.pending_deletions(),
            )
        });
        let series = |label: &'static str, counts: [(&'static str, usize); 2]| {
            counts.map(|(value, count)| ([(label, value)], count as f64))
        };
        out.family(
            &metrics::SERVICES,
            series("readiness", [("ready", ready), ("not_ready", not_ready)]),
        );
        out.family(
            &metrics::WEEDERS,
            series("state", [("queued", queued), ("active", active)]),
        );
        let none: [(&str, &str); 0] = [];
        out.family(&metrics::PENDING, [(none, pending as f64)]);
    }
}
