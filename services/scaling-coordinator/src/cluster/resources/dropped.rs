//! The resources that are watched: those in the configuration file and, for a while, those that were dropped from it.
//!
//! A resource that leaves the file while it is held down must still come back up (S6): gardenlet keeps it at zero as
//! long as it carries meltdown-protection-active, and only the coordinator removes that annotation. The coordinator
//! therefore watches the resource, only to restore it, until no shoot holds it down.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use watchdog_api::prober::{DependentResource, ResourceRef};

use super::{Resources, WatchedResource};
use crate::domain::Direction;

/// The shortest time for which a dropped resource stays watched. Longer than an earlier write can still be under way
/// and the watch can take to deliver it, or to list the resource.
pub(crate) const LAST_WRITES: Duration = Duration::from_secs(15);

/// The maximum number of shoot names in one log line.
const NAMED: usize = 10;

/// A watch that must be started.
pub(crate) struct NewWatch {
    pub(crate) reference: ResourceRef,
    /// True if the resource was dropped from the configuration.
    pub(crate) is_dropped: bool,
    pub(crate) stop: CancellationToken,
}

impl Resources {
    /// Applies the resources of a configuration file.
    pub(crate) fn configure(&self, now: Instant, configured: &[DependentResource]) {
        let mut all = self.watched.write();
        let shown = |all: &[WatchedResource]| -> Vec<_> {
            let shown = all.iter();
            shown.map(|one| (one.config.clone(), one.is_dropped())).collect()
        };
        let shown_before = shown(&all);
        let mut before = std::mem::take(&mut *all);
        for config in configured {
            let known = before.iter().position(|known| known.is(&config.reference));
            let mut watched = match known {
                Some(known) => before.remove(known),
                None => WatchedResource::new(&self.signals, config),
            };
            watched.config = Arc::new(config.clone());
            watched.set_dropped_at(None);
            all.push(watched);
        }
        for mut dropped in before {
            if !dropped.is_dropped() {
                dropped.set_dropped_at(Some(now));
                report_dropped(&dropped.config.reference, &dropped.held_down_in());
            }
            all.push(dropped);
        }
        if shown(&all) != shown_before {
            self.served_changes.send_replace(());
            self.signals.work_queue.add_all();
        }
    }

    /// Returns the watches that the caller must start. They end with `stop`.
    pub(crate) fn new_watches(&self, stop: &CancellationToken) -> Vec<NewWatch> {
        let mut all = self.watched.write();
        let unwatched = all.iter_mut().filter(|watched| watched.watching.is_none());
        let start = |watched: &mut WatchedResource| {
            let stop = stop.child_token();
            watched.watching = Some(stop.clone().drop_guard());
            NewWatch {
                reference: watched.config.reference.clone(),
                is_dropped: watched.is_dropped(),
                stop,
            }
        };
        unwatched.map(start).collect()
    }

    /// Unwatches the dropped resources that no shoot holds down.
    pub(crate) fn unwatch(&self, now: Instant) {
        let mut all = self.watched.write();
        let unwatched = all.extract_if(.., |watched| {
            // With the resource its kind or the permission to list it may have gone.
            let is_known = watched.is_listed() || watched.objects.is_empty();
            watched.dropped_at.is_some_and(|at| now >= at + LAST_WRITES)
                && is_known
                && watched.held_down_in().is_empty()
        });
        for watched in unwatched {
            self.signals.work_queue.add_all();
            tracing::info!(
                resource = %watched.config.reference,
                "resource removed from the configuration is not scaled down in any shoot; no longer watching it"
            );
        }
    }

    /// Returns true if a resource may be written in a direction: never down if it was dropped.
    pub(crate) fn is_configured(&self, reference: &ResourceRef, direction: Direction) -> bool {
        let is_dropped = self.of(reference, WatchedResource::is_dropped);
        is_dropped.is_some_and(|dropped| direction != Direction::Down || !(dropped || self.restores_only))
    }
}

fn report_dropped(resource: &ResourceRef, held: &[Arc<str>]) {
    if held.is_empty() {
        return;
    }
    let held_down = held.len();
    let shoots = held.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    tracing::warn!(
        %resource,
        held_down,
        shoots,
        "resource removed from the configuration while scaled down; watching it until it is restored"
    );
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use watchdog_api::config::UnknownFields;
    use watchdog_api::prober::ProberConfig;
    use watchdog_kube::key::ObjectKey;
    use watchdog_kube::watch::Change;

    use super::*;
    use crate::cluster::object_index::IndexSignals;

    const FILE: &str = "
kubeConfigSecretName: probe
dependentResourceInfos:
- ref: {kind: Deployment, name: kcm, apiVersion: apps/v1}
  scaleUp: {level: 0}
  scaleDown: {level: 1}
- ref: {kind: Deployment, name: mcm, apiVersion: apps/v1}
  scaleUp: {level: 1}
  scaleDown: {level: 0}
";

    struct Bench {
        resources: Resources,
        both: ProberConfig,
        only_kcm: ProberConfig,
        mcm: ResourceRef,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let parsed = watchdog_api::prober::parse(FILE.as_bytes(), UnknownFields::Refused);
            let both = parsed.unwrap().config;
            let mut only_kcm = both.clone();
            let mcm = only_kcm.dependent_resource_infos.pop().unwrap().reference;
            let mut bench = Self {
                resources: Resources::new(IndexSignals::default(), &both.dependent_resource_infos),
                both,
                only_kcm,
                mcm,
                now: Instant::now(),
            };
            assert_eq!(bench.configure(true), 2);
            bench
        }

        /// Returns how many watches start.
        fn configure(&mut self, both: bool) -> usize {
            let file = if both { &self.both } else { &self.only_kcm };
            self.resources.configure(self.now, &file.dependent_resource_infos);
            self.resources.new_watches(&CancellationToken::new()).len()
        }

        /// The watch brings mcm, held down or not.
        fn see(&self, version: u32, held: bool) {
            let mut object = json!({
                "metadata": { "name": "mcm", "namespace": "shoot--a", "resourceVersion": version.to_string() },
                "spec": { "replicas": 0 },
            });
            if held {
                object["metadata"]["annotations"][watchdog_api::names::MELTDOWN_PROTECTION_ANNOTATION] =
                    "".into();
            }
            let object = serde_json::from_value(object).unwrap();
            self.resources.applied(&self.mcm, &object, None);
            let exists = ObjectKey {
                namespace: "shoot--a".to_owned(),
                name: "mcm".to_owned(),
            };
            self.resources.take_in(&self.mcm, Change::Synced([exists].into()));
        }

        /// The resources that are watched, and whether they were dropped.
        fn configured(&self) -> Vec<(String, bool)> {
            let dependents = self.resources.dependents("shoot--a").into_iter();
            let shown = dependents.map(|one| (one.config.reference.name.clone(), one.dropped));
            shown.collect()
        }

        /// Returns true if mcm is still watched.
        fn is_watched_after(&mut self, pause: Duration) -> bool {
            self.now += pause;
            self.resources.unwatch(self.now);
            self.resources.kind(&self.mcm).is_some()
        }
    }

    #[test]
    fn what_is_held_down_is_followed_until_it_is_restored() {
        let mut bench = Bench::new();
        bench.see(1, true);
        bench.configure(false);
        assert!(bench.is_watched_after(100 * LAST_WRITES));
        assert_eq!(
            bench.configured(),
            [("kcm".to_owned(), false), ("mcm".to_owned(), true)]
        );
        let may_write = |direction| bench.resources.is_configured(&bench.mcm, direction);
        assert!(may_write(Direction::Up) && !may_write(Direction::Down));
        bench.configure(false);
        assert!(
            bench.is_watched_after(Duration::ZERO),
            "another change of the file drops nothing more"
        );
        bench.see(2, false);
        assert!(!bench.is_watched_after(Duration::ZERO));
        assert_eq!(bench.configured(), [("kcm".to_owned(), false)]);
        assert_eq!(bench.configure(true), 1, "it is watched anew when it comes back");
    }

    #[test]
    fn a_write_that_was_under_way_is_waited_for() {
        let mut bench = Bench::new();
        bench.see(1, false);
        bench.configure(false);
        assert!(bench.is_watched_after(LAST_WRITES / 2));
        bench.see(2, true);
        assert!(bench.is_watched_after(LAST_WRITES));
        bench.see(3, false);
        assert!(!bench.is_watched_after(Duration::ZERO));
    }

    #[test]
    fn what_comes_back_is_as_it_was() {
        let mut bench = Bench::new();
        bench.see(1, true);
        bench.configure(false);
        assert_eq!(bench.configure(true), 1, "its watch blocks readiness again");
        assert_eq!(
            bench.configured(),
            [("kcm".to_owned(), false), ("mcm".to_owned(), false)]
        );
        assert!(bench.is_watched_after(100 * LAST_WRITES));
    }

    /// The process before this one may have scaled it down.
    #[test]
    fn what_is_not_listed_yet_when_it_is_dropped_is_listed() {
        let mut bench = Bench::new();
        bench.configure(false);
        assert!(bench.is_watched_after(LAST_WRITES / 2));
        bench.see(1, true);
        assert!(bench.is_watched_after(100 * LAST_WRITES));
    }

    #[test]
    fn what_cannot_be_listed_is_let_go() {
        let mut bench = Bench::new();
        bench.configure(false);
        assert!(!bench.is_watched_after(LAST_WRITES));
    }
}
