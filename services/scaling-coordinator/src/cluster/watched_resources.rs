//! The watched resources: those in the configuration file and, for a while, those that were dropped from it.
//!
//! A resource that leaves the file while it is held down must still come back up (S6): gardenlet keeps it at zero as
//! long as it carries meltdown-protection-active, and only the coordinator removes that annotation. The coordinator
//! therefore watches the resource, only to restore it, until no shoot holds it down.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use watchdog_api::prober::{DependentResource, ProberConfig, ResourceRef};

use super::resources::Resources;

/// The shortest time for which a dropped resource stays watched. Longer than an earlier write can still be under way
/// and the watch can take to deliver it.
pub(crate) const LAST_WRITES: Duration = Duration::from_secs(15);

/// The maximum number of shoot names in one log line.
const NAMED: usize = 10;

#[derive(Debug, Default)]
pub(crate) struct WatchedResources(BTreeMap<ResourceRef, WatchedResource>);

#[derive(Debug)]
struct WatchedResource {
    stop: CancellationToken,
    /// As it was configured last.
    dependent: DependentResource,
    dropped_at: Option<Instant>,
}

impl WatchedResources {
    /// Applies a configuration file. Returns the resources whose watches the caller must start, each with the token
    /// that stops it.
    pub(crate) fn configure(
        &mut self,
        now: Instant,
        file: &ProberConfig,
        resources: &Resources,
        stop: &CancellationToken,
    ) -> Vec<(ResourceRef, CancellationToken)> {
        let wanted = &file.dependent_resource_infos;
        self.0.retain(|reference, one| {
            let dropped = one.dropped_at.is_none() && !wanted.iter().any(|new| new.reference == *reference);
            if !dropped {
                return true;
            }
            one.dropped_at = Some(now);
            let listed = resources.drop_from_configuration(reference);
            let held = resources.held_down_in(reference);
            if !held.is_empty() {
                let (held_down, shoots) = (held.len(), held.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", "));
                tracing::warn!(
                    resource = %reference,
                    held_down,
                    shoots,
                    "resource removed from the configuration while scaled down; watching it until it is restored"
                );
            }
            if !listed {
                one.forget(reference, resources);
            }
            listed
        });
        let mut new = Vec::new();
        for dependent in wanted {
            let reference = &dependent.reference;
            resources.add(reference);
            if let Some(one) = self.0.get_mut(reference) {
                (one.dropped_at, one.dependent) = (None, dependent.clone());
                continue;
            }
            let one = WatchedResource {
                stop: stop.child_token(),
                dependent: dependent.clone(),
                dropped_at: None,
            };
            new.push((reference.clone(), one.stop.clone()));
            self.0.insert(reference.clone(), one);
        }
        new
    }

    /// Unwatches the dropped resources that no shoot holds down.
    pub(crate) fn unwatch(&mut self, now: Instant, resources: &Resources) {
        self.0.retain(|reference, one| {
            let over = one.dropped_at.is_some_and(|at| now >= at + LAST_WRITES);
            if !over || !resources.is_listed(reference) || !resources.held_down_in(reference).is_empty() {
                return true;
            }
            tracing::info!(
                resource = %reference,
                "resource removed from the configuration is not scaled down in any shoot; no longer watching it"
            );
            one.forget(reference, resources);
            false
        });
    }

    /// Returns true if any watched resource was dropped from the configuration.
    pub(crate) fn has_dropped(&self) -> bool {
        self.0.values().any(|one| one.dropped_at.is_some())
    }

    /// The configuration in force: the file, followed by the dropped resources that are still watched.
    pub(crate) fn in_force(&self, file: &ProberConfig) -> Arc<ProberConfig> {
        let mut config = file.clone();
        let dropped = self.0.values().filter(|one| one.dropped_at.is_some());
        config
            .dependent_resource_infos
            .extend(dropped.map(|one| one.dependent.clone()));
        Arc::new(config)
    }
}

impl WatchedResource {
    fn forget(&self, reference: &ResourceRef, resources: &Resources) {
        self.stop.cancel();
        resources.remove(reference);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use watchdog_api::config::UnknownFields;
    use watchdog_runtime::work_queue::WorkQueue;

    use super::*;

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
        watched: WatchedResources,
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
                watched: WatchedResources::default(),
                resources: Resources::new(Arc::new(WorkQueue::default())),
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
            let stop = CancellationToken::new();
            self.watched
                .configure(self.now, file, &self.resources, &stop)
                .len()
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
            self.resources.applied(&self.mcm, &object);
            let exist = ["shoot--a".to_owned()].into();
            self.resources.synced(&self.mcm, &exist);
        }

        /// Returns true if mcm is still watched.
        fn is_watched_after(&mut self, pause: Duration) -> bool {
            self.now += pause;
            self.watched.unwatch(self.now, &self.resources);
            self.watched.0.contains_key(&self.mcm)
        }
    }

    #[test]
    fn what_is_held_down_is_followed_until_it_is_restored() {
        let mut bench = Bench::new();
        bench.see(1, true);
        bench.configure(false);
        assert!(bench.is_watched_after(100 * LAST_WRITES));
        assert!(bench.watched.has_dropped() && bench.resources.is_dropped(&bench.mcm));
        let in_force = bench.watched.in_force(&bench.only_kcm);
        assert_eq!(in_force.dependent_resource_infos.len(), 2);
        bench.configure(false);
        assert!(
            bench.is_watched_after(Duration::ZERO),
            "another change of the file drops nothing more"
        );
        bench.see(2, false);
        let served = bench.resources.served_changes();
        assert!(!bench.is_watched_after(Duration::ZERO));
        assert!(
            served.has_changed().unwrap(),
            "its permissions are not asked for any more"
        );
        assert_eq!(*bench.watched.in_force(&bench.only_kcm), bench.only_kcm);
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
        assert_eq!(bench.configure(true), 0, "its watch still runs");
        assert!(!bench.resources.is_dropped(&bench.mcm));
        assert!(bench.is_watched_after(100 * LAST_WRITES));
    }

    #[test]
    fn what_was_never_listed_is_let_go_at_once() {
        let mut bench = Bench::new();
        bench.configure(false);
        assert!(!bench.is_watched_after(Duration::ZERO));
    }
}
