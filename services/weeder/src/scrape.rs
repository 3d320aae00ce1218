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

#[cfg(test)]
mod tests {
    use watchdog_runtime::clock::Clock;

    use super::*;
    use crate::domain::fixtures::config;
    use crate::domain::readiness::{Endpoints, Slice, SliceKey};

    #[tokio::test]
    async fn counts_what_there_is() {
        let state = Arc::new(State::new(&config(), Clock::start(), |_| true));
        for (namespace, ready) in [("a", 1), ("b", 1), ("c", 0)] {
            let slice = Slice {
                key: SliceKey {
                    namespace: namespace.into(),
                    name: "etcd-1".into(),
                },
                service: Some("etcd".into()),
                endpoints: Endpoints { ready, total: 3 },
            };
            state.update(|model, owns, now| model.slice_applied(slice, owns, now));
        }
        state.plan(|model, now| assert!(model.weeding.next(now).is_some()));
        let mut out = Exposition::default();
        Scrape { state }.collect(&mut out);
        let text = out.into_text();
        for line in [
            "watchdog_weeder_services{readiness=\"ready\"} 2",
            "watchdog_weeder_services{readiness=\"not_ready\"} 1",
            "watchdog_weeders{state=\"queued\"} 1",
            "watchdog_weeders{state=\"active\"} 1",
            "watchdog_weeder_pending_deletions 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
