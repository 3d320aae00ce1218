//! The state that all parts share, behind a lock, with a clock and the streams that show the state.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::{Notify, futures::Notified, watch};
use tokio::time::Instant;
use watchdog_api::weeder::WeederConfig;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::publish::publish_if_changed;
use watchdog_watch_stream::server::StateStore;

use super::state::{Changes, OwnsNamespace, WeederState};
use super::weeder_span;
use crate::domain::declared::WatchedServices;
use crate::domain::dependants::PodQuery;
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::readiness::{ServiceReadiness, ServiceState};
use crate::domain::weeder::{Phase, Weeder};
use crate::metrics::{self, WeederEnd};
use watchdog_api::unix_time::UnixTime;

/// The lock is never held across an await.
pub(crate) struct SharedState {
    state: Mutex<WeederState>,
    clock: Clock,
    owns: Box<dyn Fn(&str) -> bool + Send + Sync>,
    /// The readiness of the services in the namespaces of this replica.
    pub(crate) services: StateStore<NamespacedName, ServiceState>,
    pub(crate) weeders: StateStore<NamespacedName, Weeder>,
    pod_queries: watch::Sender<BTreeSet<PodQuery>>,
    watched_services: watch::Sender<WatchedServices>,
    work: Notify,
}

impl std::fmt::Debug for SharedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedState").finish_non_exhaustive()
    }
}

impl SharedState {
    /// `owns` says whether this replica owns a namespace.
    pub(crate) fn new(
        config: &WeederConfig,
        clock: Clock,
        owns: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self {
        let state = WeederState::new(config);
        Self {
            pod_queries: watch::Sender::new(state.pod_queries().clone()),
            watched_services: watch::Sender::new(state.watched_services().clone()),
            state: Mutex::new(state),
            clock,
            owns: Box::new(owns),
            services: StateStore::new(),
            weeders: StateStore::new(),
            work: Notify::new(),
        }
    }

    pub(crate) fn pod_queries(&self) -> watch::Receiver<BTreeSet<PodQuery>> {
        self.pod_queries.subscribe()
    }

    pub(crate) fn watched_services(&self) -> watch::Receiver<WatchedServices> {
        self.watched_services.subscribe()
    }

    pub(crate) fn now(&self) -> UnixTime {
        UnixTime(self.clock.now_micros())
    }

    /// When the clock will show `moment`.
    pub(crate) fn instant(&self, moment: UnixTime) -> Instant {
        self.clock.instant_at(moment.0)
    }

    /// Changes the state and notifies the worker.
    pub(crate) fn update<T>(
        &self,
        change: impl FnOnce(&mut WeederState, OwnsNamespace<'_>, UnixTime) -> T,
    ) -> T {
        let result = self.change(change);
        self.work.notify_one();
        result
    }

    /// Changes the state on behalf of the worker.
    pub(crate) fn plan<T>(&self, change: impl FnOnce(&mut WeederState, UnixTime) -> T) -> T {
        self.change(|state, _, now| change(state, now))
    }

    /// Returns true if a service of this name has slices and dependants, in a namespace of any replica.
    pub(crate) fn has_service(&self, key: &NamespacedName) -> bool {
        self.read(|state| state.has_service(key))
    }

    /// Returns true if the state counts exactly the namespaces as owned that this replica owns now.
    pub(crate) fn follows_ownership(&self) -> bool {
        self.read(|state| state.follows_ownership(&*self.owns))
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&WeederState) -> T) -> T {
        read(&self.state.lock())
    }

    /// Ends when the state has changed since the last time. Safe to cancel.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.work.notified()
    }

    fn change<T>(&self, change: impl FnOnce(&mut WeederState, OwnsNamespace<'_>, UnixTime) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state, &*self.owns, self.now());
        // Under the lock, so that two changes cannot be published in the wrong order.
        self.publish(state.take_changes());
        publish_if_changed(&self.pod_queries, state.pod_queries());
        publish_if_changed(&self.watched_services, state.watched_services());
        result
    }

    fn publish(&self, changes: Changes) {
        for (key, state) in changes.services {
            match state {
                Some(state) => {
                    let ready = state.readiness() == ServiceReadiness::Ready;
                    let _span = weeder_span(&key).entered();
                    tracing::debug!(ready, endpoints = ?state.endpoints, "readiness of the service changed");
                    self.services.upsert(key, state);
                }
                None => self.services.remove(&key),
            }
        }
        for (key, weeder) in changes.weeders {
            match weeder {
                Some(weeder) => {
                    self.report(&weeder);
                    self.weeders.upsert(key, weeder);
                }
                None => self.weeders.remove(&key),
            }
        }
    }

    /// Logs and counts the start and the end of a weeder.
    fn report(&self, weeder: &Weeder) {
        let _span = weeder_span(&weeder.key).entered();
        let before = self.weeders.get(&weeder.key);
        let before = before.filter(|before| before.started_at == weeder.started_at);
        let was = before.map_or(Phase::Queued, |before| before.phase);
        if was == Phase::Queued && weeder.phase == Phase::Active {
            metrics::STARTED.inc(());
            if weeder.first_sight {
                // Thousands at a start.
                tracing::debug!("service was ready already; weeder started");
            } else {
                tracing::info!("service became ready; weeder started");
            }
        }
        if !weeder.is_live() && matches!(was, Phase::Queued | Phase::Active) {
            let how = match weeder.phase {
                Phase::Ended => WeederEnd::Ended,
                _ => WeederEnd::Cancelled,
            };
            metrics::ENDED.inc(how);
            let (how, deleted, why) = (how.as_str(), weeder.deleted, &*weeder.message);
            if weeder.first_sight && deleted == 0 {
                tracing::debug!(how, why, "weeder ended");
            } else {
                tracing::info!(how, deleted, why, "weeder ended");
            }
        }
    }
}
