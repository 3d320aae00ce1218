//! The series that are counted at the scrape.

use std::sync::Arc;

use watchdog_kube::leadership::Leadership;
use watchdog_runtime::metrics::{Collector, Exposition};

use super::state::SharedState;
use crate::domain::weeder::Phase;
use crate::metrics::{self, ReadinessLabel};

/// Reads the state of this replica.
pub(crate) struct StateCollector {
    pub(crate) leadership: Leadership,
    pub(crate) state: Arc<SharedState>,
}

impl Collector for StateCollector {
    fn collect(&self, out: &mut Exposition) {
        let (state, now) = (self.state.lock(), self.state.now());
        let services = state.services.snapshot();
        let ready = services.iter().filter(|(_, state)| state.endpoints.is_ready());
        let ready = ready.count();
        let counted = [
            (ReadinessLabel::Ready, ready as f64),
            (ReadinessLabel::NotReady, (services.len() - ready) as f64),
        ];
        out.family(&metrics::SERVICES, counted);
        let weeders = state.weeders.snapshot();
        let counted = [Phase::Queued, Phase::Active].map(|phase| {
            let of_phase = weeders.iter().filter(|(_, weeder)| weeder.phase == phase);
            (phase, of_phase.count() as f64)
        });
        out.family(&metrics::WEEDERS, counted);
        // A standby leaves all decisions to the leader.
        let pending = match self.leadership.is_leader() {
            true => state.pending_deletions(now),
            false => 0,
        };
        out.family(&metrics::PENDING, [((), pending as f64)]);
        out.family(&metrics::CRASHING, [((), state.crashing_pods() as f64)]);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::cluster::watches::WatchUpdate;
    use crate::domain::fixtures::{config, crashing, slice};
    use crate::domain::namespaced_name::NamespacedName;

    #[tokio::test]
    async fn counts_what_there_is() {
        let state = Arc::new(SharedState::new(Arc::new(config())));
        let now = state.now().0 / 1_000_000;
        for (namespace, ready) in [("shoot", true), ("b", true), ("c", false)] {
            let mut slice = slice("etcd", ready, now, 2);
            slice.key = NamespacedName::new(namespace, "etcd-1");
            state
                .lock()
                .slices_updated(None, WatchUpdate::Applied(slice), state.now());
        }
        let selector = &config().services["etcd"][0];
        for pod in [
            crashing("old", "apiserver", 0, 1),
            crashing("new", "apiserver", now + 5, 3),
        ] {
            let crashes = WatchUpdate::Applied(pod);
            state.lock().pods_updated(selector, crashes, state.now());
        }
        let text = |leadership: Leadership| {
            let mut out = Exposition::default();
            let state = state.clone();
            StateCollector { leadership, state }.collect(&mut out);
            out.text
        };
        let (setter, leading) = Leadership::channel("weeder-0", None);
        setter.lead(Some(Instant::now() + Duration::from_secs(60)));
        let leader = text(leading);
        for line in [
            "watchdog_weeder_services{readiness=\"ready\"} 2",
            "watchdog_weeder_services{readiness=\"not_ready\"} 1",
            "watchdog_weeders{state=\"queued\"} 0",
            "watchdog_weeders{state=\"active\"} 2",
            "watchdog_weeder_pending_deletions 1",
            "watchdog_weeder_crashing_pods 2",
        ] {
            assert!(leader.lines().any(|l| l == line), "{line} is not in\n{leader}");
        }
        let (_, standby) = Leadership::channel("weeder-0", None);
        let standby = text(standby);
        assert!(
            standby.contains("watchdog_weeder_pending_deletions 0"),
            "{standby}"
        );
    }
}
