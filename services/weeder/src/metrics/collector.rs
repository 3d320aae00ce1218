//! The series that are counted at the scrape.

use std::sync::Arc;

use watchdog_runtime::metrics::{Collector, Exposition};

use crate::controller::shared::SharedState;
use crate::domain::weeder::Phase;
use crate::metrics::{self, ReadinessLabel, WatchScope, WeederPhase};

/// Reads the state of this replica.
pub(crate) struct StateCollector {
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
            let manager = &state.manager;
            let weeders = [
                (WeederPhase::Queued, manager.count(Phase::Queued) as f64),
                (WeederPhase::Active, manager.count(Phase::Active) as f64),
            ];
            out.family(&metrics::WEEDERS, weeders);
            let queries = state.pod_queries.borrow();
            let scopes = ["namespace", "selector", "all"].map(|scope| {
                let of_scope = queries.iter().filter(|query| query.scope() == scope);
                (WatchScope(scope), of_scope.count() as f64)
            });
            out.family(&metrics::POD_WATCHES, scopes);
            out.family(&metrics::PENDING, [((), manager.pending_deletions() as f64)]);
            out.family(&metrics::CRASHING, [((), manager.crashing_pods() as f64)]);
        });
    }
}

#[cfg(test)]
mod tests {
    use watchdog_runtime::clock::Clock;

    use super::*;
    use crate::domain::fixtures::config;
    use crate::domain::namespaced_name::NamespacedName;
    use crate::domain::readiness::{Endpoints, ReceivedBy, Slice};

    #[tokio::test]
    async fn counts_what_there_is() {
        let state = Arc::new(SharedState::new(&config(), Clock::start(), |_| true));
        for (namespace, ready) in [("a", 1), ("b", 1), ("c", 0)] {
            let slice = Slice {
                key: NamespacedName {
                    namespace: namespace.into(),
                    name: "etcd-1".into(),
                },
                service: Some("etcd".into()),
                endpoints: Endpoints { ready, total: 3 },
                pods: None,
            };
            state.update(|state, now| state.slice_applied(slice, ReceivedBy::Watch, now));
        }
        let mut out = Exposition::default();
        StateCollector { state }.collect(&mut out);
        let text = out.into_text();
        for line in [
            "watchdog_weeder_services{readiness=\"ready\"} 2",
            "watchdog_weeder_services{readiness=\"not_ready\"} 1",
            "watchdog_weeders{state=\"queued\"} 0",
            "watchdog_weeders{state=\"active\"} 2",
            "watchdog_weeder_pending_deletions 0",
            "watchdog_weeder_crashing_pods 0",
            "watchdog_weeder_pod_watches{scope=\"selector\"} 2",
            "watchdog_weeder_pod_watches{scope=\"all\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
