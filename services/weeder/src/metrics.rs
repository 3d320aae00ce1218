//! The metrics of the weeder.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use watchdog_runtime::metrics::{Collector, Exposition, Metric, describe};

use crate::controller::shared::SharedState;
use crate::domain::pods::CrashLoop;
use crate::domain::readiness::ServiceReadiness;
use crate::domain::weeder::Phase;

pub(crate) const SERVICES: Metric = Metric::gauge(
    "watchdog_weeder_services",
    "Services in the namespaces of this replica, by readiness: ready or not_ready.",
);

pub(crate) const WEEDERS: Metric = Metric::gauge(
    "watchdog_weeders",
    "Weeders that live on this replica, by state: queued (the service has not been ready for long enough) or active.",
);

pub(crate) const STARTED: Metric = Metric::counter(
    "watchdog_weeders_started_total",
    "Weeders that started because a service became ready.",
);

pub(crate) const ENDED: Metric = Metric::counter(
    "watchdog_weeders_ended_total",
    "Weeders that ended, by how: ended (lived out their time) or cancelled (their namespace ended, moved to another \
     replica or is not configured any more). A weeder that a new one replaces is not counted.",
);

pub(crate) const DELETIONS: Metric = Metric::counter(
    "watchdog_weeder_deletions_total",
    "Attempts to delete a crash-looping pod, by result: deleted; gone or changed (left alone); forbidden, throttled \
     or failed (tried again); observed (not sent, because the mode is observe).",
);

pub(crate) const DELETION_DELAY: Metric = Metric::histogram(
    "watchdog_weeder_deletion_delay_seconds",
    "Time until a crash-looping pod was deleted, by discovered: at_start (since its service became ready) or later (since \
     it was seen to crash while the weeder lived).",
);

pub(crate) const SAVED: Metric = Metric::counter(
    "watchdog_weeder_recovery_seconds_saved_total",
    "Crash back-off that was left when a pod was deleted, estimated from its restarts: the time by which it starts \
     sooner.",
);

pub(crate) const PENDING: Metric = Metric::gauge(
    "watchdog_weeder_pending_deletions",
    "Crash-looping pods that wait to be deleted or are being deleted.",
);

pub(crate) const OUTCOMES: Metric = Metric::counter(
    "watchdog_weeder_deletion_outcomes_total",
    "Deletions that were judged, once for each container of a controller, by outcome: useful (no successor crashed \
     within a minute) or useless.",
);

pub(crate) const DELETED_PODS: Metric = Metric::counter(
    "watchdog_weeder_deleted_pods_total",
    "Deleted pods, by service, container, exit_code and reason of the last run of the container; beyond 200 \
     combinations other.",
);

pub(crate) const LEFT_ALONE: Metric = Metric::counter(
    "watchdog_weeder_left_alone_total",
    "Containers that kept crashing although their service was ready, and whose pods are left alone after three \
     deletions.",
);

pub(crate) const FLAPPING: Metric = Metric::counter(
    "watchdog_weeder_flapping_services_total",
    "Times that a service became ready for the fourth time in a minute; its dependants are deleted once it has been \
     ready for 30 s.",
);

pub(crate) const CRASHING: Metric = Metric::gauge(
    "watchdog_weeder_crashing_pods",
    "Dependants in CrashLoopBackOff that this replica sees, whether or not a weeder is responsible for them.",
);

pub(crate) const ENDPOINT_READS: Metric = Metric::counter(
    "watchdog_weeder_endpoint_reads_total",
    "Times that the pods behind the endpoints of a service were read to learn since when it is ready, by result: ok, \
     forbidden, throttled or failed.",
);

pub(crate) const REQUESTS: Metric = Metric::gauge(
    "watchdog_weeder_requests_in_flight",
    "Deletions of pods and reads of endpoint pods under way; never more than 32.",
);

pub(crate) const POD_WATCHES: Metric = Metric::gauge(
    "watchdog_weeder_pod_watches",
    "SeedWatches on pods, by scope: namespace, selector, or all when there are more than eight selectors.",
);

pub(crate) const MALFORMED: Metric = Metric::counter(
    "watchdog_weeder_malformed_objects_total",
    "Objects that could not be read, each time they were seen, by kind. They count as having no endpoint, no crash loop \
     and no annotation.",
);

/// Combinations of labels of [`DELETED_PODS`] at most: names of containers are not a closed set.
const MAX_DELETED_LABELS: usize = 200;

pub(crate) fn register() {
    describe(&[
        STARTED,
        ENDED,
        DELETIONS,
        DELETED_PODS,
        DELETION_DELAY,
        SAVED,
        OUTCOMES,
        LEFT_ALONE,
        FLAPPING,
        ENDPOINT_READS,
        REQUESTS,
        MALFORMED,
    ]);
    for counter in [STARTED, SAVED, LEFT_ALONE, FLAPPING] {
        counter.begin(&[]);
    }
    ENDED.begin_by("how", &["ended", "cancelled"]);
    ENDPOINT_READS.begin_by("result", &["ok", "forbidden", "throttled", "failed"]);
    OUTCOMES.begin_by("outcome", &["useful", "useless"]);
    DELETIONS.begin_by(
        "result",
        &[
            "deleted",
            "gone",
            "changed",
            "forbidden",
            "throttled",
            "failed",
            "observed",
        ],
    );
    DELETION_DELAY.begin_by("discovered", &["at_start", "later"]);
}

/// Counts a deleted pod by how its container ended.
pub(crate) fn count_deleted_pod(service: &str, crash: &CrashLoop) {
    static KNOWN: Mutex<BTreeSet<[String; 4]>> = Mutex::new(BTreeSet::new());
    let exit_code = crash
        .exit_code
        .map_or_else(|| "unknown".to_owned(), |code| code.to_string());
    let mut values = [
        service.to_owned(),
        crash.container.clone(),
        exit_code,
        crash.reason.clone(),
    ];
    let mut known = KNOWN.lock();
    if !known.contains(&values) {
        if known.len() < MAX_DELETED_LABELS {
            known.insert(values.clone());
        } else {
            values = std::array::from_fn(|_| "other".to_owned());
        }
    }
    drop(known);
    let [service, container, exit_code, reason] = values;
    let labels = [
        ("service", service),
        ("container", container),
        ("exit_code", exit_code),
        ("reason", reason),
    ];
    DELETED_PODS.inc(&labels);
}

/// The series that are counted at the scrape.
#[derive(Debug)]
pub(crate) struct StateCollector {
    pub(crate) state: Arc<SharedState>,
}

impl Collector for StateCollector {
    fn collect(&self, out: &mut Exposition) {
        let services = self.state.services.snapshot();
        let ready = services
            .iter()
            .filter(|(_, state)| state.readiness() == ServiceReadiness::Ready)
            .count();
        let not_ready = services.len().saturating_sub(ready);
        let (queries, queued, active, pending, crashing) = self.state.read(|state| {
            let manager = &state.manager;
            (
                state.pod_queries().clone(),
                manager.count(Phase::Queued),
                manager.count(Phase::Active),
                manager.pending_deletions(),
                manager.crashing_pods(),
            )
        });
        let series = |label: &'static str, counts: &[(&'static str, usize)]| {
            let series = counts
                .iter()
                .map(|(value, count)| ([(label, *value)], *count as f64));
            series.collect::<Vec<_>>()
        };
        out.family(
            &SERVICES,
            series("readiness", &[("ready", ready), ("not_ready", not_ready)]),
        );
        out.family(
            &WEEDERS,
            series("state", &[("queued", queued), ("active", active)]),
        );
        let scopes = ["namespace", "selector", "all"].map(|scope| {
            let of_scope = queries.iter().filter(|query| query.scope() == scope);
            (scope, of_scope.count())
        });
        out.family(&POD_WATCHES, series("scope", &scopes));
        let none: [(&str, &str); 0] = [];
        out.family(&PENDING, [(none, pending as f64)]);
        out.family(&CRASHING, [(none, crashing as f64)]);
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
            state.update(|state, owns, now| state.slice_applied(slice, ReceivedBy::Watch, owns, now));
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
