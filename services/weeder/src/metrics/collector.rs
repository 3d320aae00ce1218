//! The series that are counted at the scrape.

use std::sync::Arc;

use watchdog_kube::leadership::Leadership;
use watchdog_runtime::metrics::{Collector, Exposition};

use crate::controller::shared::SharedState;
use crate::domain::weeder::Phase;
use crate::metrics::{self, ReadinessLabel, WeederPhase};

/// Reads the state of this replica.
pub(crate) struct StateCollector {
    pub(crate) leadership: Leadership,
    pub(crate) state: Arc<SharedState>,
}

impl Collector for StateCollector {
    fn collect(&self, out: &mut Exposition) {
        let services = self.state.services.snapshot();
        let ready = services.iter().filter(|(_, state)| state.endpoints.is_ready());
        let ready = ready.count();
        let services = [
            (ReadinessLabel::Ready, ready as f64),
            (
                ReadinessLabel::NotReady,
                services.len().saturating_sub(ready) as f64,
            ),
        ];
        out.family(&metrics::SERVICES, services);
        self.state.read(|state| {
            let weeders = [
                (WeederPhase::Queued, state.count(Phase::Queued) as f64),
                (WeederPhase::Active, state.count(Phase::Active) as f64),
            ];
            out.family(&metrics::WEEDERS, weeders);
            // A standby leaves all decisions to the leader.
            let pending = match self.leadership.is_leader() {
                true => state.pending_deletions(),
                false => 0,
            };
            out.family(&metrics::PENDING, [((), pending as f64)]);
            out.family(&metrics::CRASHING, [((), state.crashing_pods() as f64)]);
        });
    }
}

#[cfg(test)]
mod tests {
    use watchdog_runtime::clock::Clock;

    use super::*;
    use crate::domain::fixtures::{config, crashing, slice};
    use crate::domain::namespaced_name::NamespacedName;

    #[tokio::test]
    async fn counts_what_there_is() {
        let state = Arc::new(SharedState::new(&config(), Clock::start()));
        for (namespace, ready) in [("a", true), ("b", true), ("c", false)] {
            let mut slice = slice("etcd", ready, 0, 1);
            slice.key = NamespacedName::new(namespace, "etcd-1");
            state.update(|state, now| {
                state.slice_applied(slice, now);
                state.pod_applied(crashing("pod", "apiserver", 0, 1), now);
            });
        }
        let text = |leadership: Leadership| {
            let mut out = Exposition::default();
            let state = state.clone();
            StateCollector { leadership, state }.collect(&mut out);
            out.into_text()
        };
        let leader = text(Leadership::always("weeder-0"));
        for line in [
            "watchdog_weeder_services{readiness=\"ready\"} 2",
            "watchdog_weeder_services{readiness=\"not_ready\"} 1",
            "watchdog_weeders{state=\"queued\"} 0",
            "watchdog_weeders{state=\"active\"} 2",
            "watchdog_weeder_pending_deletions 1",
            "watchdog_weeder_crashing_pods 1",
        ] {
            assert!(leader.lines().any(|l| l == line), "{line} is not in\n{leader}");
        }
        let standby = text(Leadership::never("weeder-0"));
        assert!(
            standby.contains("watchdog_weeder_pending_deletions 0"),
            "{standby}"
        );
    }
}
