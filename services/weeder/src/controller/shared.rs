//! The state that all parts share, behind a lock, with a clock and the streams that show the state.

use std::sync::Arc;

use futures::future::OptionFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, futures::Notified};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use watchdog_api::weeder::WeederConfig;
use watchdog_runtime::clock::Clock;
use watchdog_watch_stream::server::StateStore;

use super::state::WeederState;
use super::weeder_span;
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::readiness::ServiceState;
use crate::domain::weeder::{Phase, Weeder};
use crate::metrics::{self, WeederEnd};
use watchdog_api::unix_time::UnixTime;

/// The lock is never held across an await.
pub(crate) struct SharedState {
    state: Mutex<WeederState>,
    clock: Clock,
    /// The readiness of the configured services.
    pub(crate) services: StateStore<NamespacedName, ServiceState>,
    pub(crate) weeders: StateStore<NamespacedName, Weeder>,
    work: Notify,
    phases: Notify,
}

impl SharedState {
    pub(crate) fn new(config: &WeederConfig, clock: Clock) -> Self {
        Self {
            state: Mutex::new(WeederState::new(config)),
            clock,
            services: StateStore::new(),
            weeders: StateStore::new(),
            work: Notify::new(),
            phases: Notify::new(),
        }
    }

    pub(crate) fn now(&self) -> UnixTime {
        UnixTime(self.clock.now_micros())
    }

    /// When the clock will show `moment`.
    pub(crate) fn instant(&self, moment: UnixTime) -> Instant {
        self.clock.instant_at(moment.0)
    }

    /// Changes the state and notifies the worker, and the task that advances the weeders.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut WeederState, UnixTime) -> T) -> T {
        let result = self.plan(change);
        self.work.notify_one();
        self.phases.notify_one();
        result
    }

    /// Changes the state on behalf of the worker.
    pub(crate) fn plan<T>(&self, change: impl FnOnce(&mut WeederState, UnixTime) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state, self.now());
        // Under the lock, so that two changes cannot be published in the wrong order.
        self.publish(&mut state);
        result
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&WeederState) -> T) -> T {
        read(&self.state.lock())
    }

    /// Ends when the state has changed since the last time. Safe to cancel.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.work.notified()
    }

    /// Starts, ends and forgets weeders when it is time, until `stop` is cancelled.
    pub(crate) async fn advance(self: Arc<Self>, stop: CancellationToken) -> anyhow::Result<()> {
        loop {
            let due = self.plan(|state, now| {
                state.advance(now);
                state.next_weeder_due()
            });
            self.work.notify_one();
            let due = due.map(|due| tokio::time::sleep_until(self.instant(due)));
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = self.phases.notified() => {}
                Some(()) = OptionFuture::from(due) => {}
            }
        }
    }

    fn publish(&self, state: &mut WeederState) {
        for (key, service) in state.take_changed_services() {
            match service {
                Some(service) => {
                    let (ready, endpoints) = (service.endpoints.is_ready(), service.endpoints);
                    let _span = weeder_span(&key).entered();
                    tracing::debug!(ready, ?endpoints, "readiness of the service changed");
                    self.services.upsert(key, service);
                }
                None => self.services.remove(&key),
            }
        }
        for (key, weeder) in state.take_changed_weeders() {
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
        let before = before.filter(|before| before.recovery == weeder.recovery || !weeder.is_live());
        let was = before.map_or(Phase::Queued, |before| before.phase);
        if was == Phase::Queued && weeder.phase == Phase::Active {
            metrics::STARTED.inc(());
            if weeder.recovery.first_sight {
                let since = weeder.recovery.at;
                tracing::info!(%since, "service recovered a short while ago; weeder started");
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
            tracing::info!(how, deleted, why, "weeder ended");
        }
    }
}
