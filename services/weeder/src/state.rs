//! The model with a clock and its audience: every change is published in the order in which it came about.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, futures::Notified, watch};
use tokio::time::Instant;
use watchdog_api::weeder::WeederConfig;
use watchdog_feed::server::Feed;
use watchdog_runtime::clock::Clock;

use crate::domain::dependants::Query;
use crate::domain::model::{Model, News, Owns};
use crate::domain::moment::Moment;
use crate::domain::readiness::{Readiness, ServiceState};
use crate::domain::service::ServiceKey;
use crate::domain::weeder::{State as Life, Weeder};
use crate::metrics;

/// The readiness of services.
pub type Services = Feed<ServiceKey, ServiceState>;

/// The weeders.
pub type Weeders = Feed<ServiceKey, Weeder>;

/// What all parts share. Nobody waits while holding it.
pub struct State {
    model: Mutex<Model>,
    clock: Clock,
    owns: Box<dyn Fn(&str) -> bool + Send + Sync>,
    services: Services,
    weeders: Weeders,
    watches: watch::Sender<BTreeSet<Query>>,
    // The names of services that are annotated.
    annotated: watch::Sender<BTreeSet<Arc<str>>>,
    work: Notify,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

impl State {
    /// Knows nothing yet. `owns` says whether this replica owns a namespace.
    pub fn new(
        config: &WeederConfig,
        clock: Clock,
        owns: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            model: Mutex::new(Model::new(config)),
            clock,
            owns: Box::new(owns),
            services: Feed::new(),
            weeders: Feed::new(),
            watches: watch::Sender::default(),
            annotated: watch::Sender::default(),
            work: Notify::new(),
        }
    }

    /// The readiness of the services in the namespaces of this replica.
    #[must_use]
    pub const fn services(&self) -> &Services {
        &self.services
    }

    /// The weeders of this replica.
    #[must_use]
    pub const fn weeders(&self) -> &Weeders {
        &self.weeders
    }

    /// Follows which watches on pods are wanted.
    #[must_use]
    pub fn watches(&self) -> watch::Receiver<BTreeSet<Query>> {
        self.watches.subscribe()
    }

    /// Follows the names of the services that declare their dependants by an annotation.
    #[must_use]
    pub fn annotated(&self) -> watch::Receiver<BTreeSet<Arc<str>>> {
        self.annotated.subscribe()
    }

    /// Tells who follows them which services are annotated now.
    pub fn follow_annotated(&self) {
        let names = self.read(Model::annotated_names);
        self.annotated.send_if_modified(|known| {
            let differs = *known != names;
            *known = names;
            differs
        });
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment(self.clock.now_micros())
    }

    /// When the clock will show `moment`.
    #[must_use]
    pub fn instant(&self, moment: Moment) -> Instant {
        self.clock.instant_at(moment.0)
    }

    /// Changes the model and wakes whoever runs its tasks.
    pub fn update<T>(&self, change: impl FnOnce(&mut Model, Owns<'_>, Moment) -> T) -> T {
        let result = self.change(change);
        self.work.notify_one();
        result
    }

    /// Changes the model on behalf of the one who runs its tasks.
    pub fn plan<T>(&self, change: impl FnOnce(&mut Model, Moment) -> T) -> T {
        self.change(|model, _, now| change(model, now))
    }

    /// Reads the model.
    pub fn read<T>(&self, read: impl FnOnce(&Model) -> T) -> T {
        read(&self.model.lock())
    }

    /// Ends when the model has changed since the last time. Safe to cancel.
    pub fn changed(&self) -> Notified<'_> {
        self.work.notified()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Model, Owns<'_>, Moment) -> T) -> T {
        let mut model = self.model.lock();
        let result = change(&mut model, &*self.owns, self.now());
        // Under the lock, so that two changes cannot be published in the wrong order.
        self.publish(model.take_news());
        let watches = model.weeding.watches();
        self.watches.send_if_modified(|wanted| {
            let differs = *wanted != watches;
            *wanted = watches;
            differs
        });
        result
    }

    fn publish(&self, news: News) {
        for (key, state) in news.services {
            match state {
                Some(state) => {
                    let ready = state.readiness() == Readiness::Ready;
                    let (namespace, service) = (&*key.namespace, &*key.service);
                    tracing::debug!(namespace, service, ready, endpoints = ?state.endpoints, "service seen");
                    self.services.upsert(key, state);
                }
                None => self.services.remove(&key),
            }
        }
        for (key, weeder) in news.weeders {
            match weeder {
                Some(weeder) => {
                    self.tell(&weeder);
                    self.weeders.upsert(key, weeder);
                }
                None => self.weeders.remove(&key),
            }
        }
    }

    /// Says in the log and the metrics when a weeder starts or ends.
    fn tell(&self, weeder: &Weeder) {
        let (namespace, service) = (&*weeder.key.namespace, &*weeder.key.service);
        let before = self.weeders.get(&weeder.key);
        let before = before.filter(|before| before.started_at == weeder.started_at);
        if before.is_none() {
            metrics::STARTED.inc(&[]);
            tracing::info!(namespace, service, "service became ready, weeding its dependants");
        }
        if !weeder.is_live() && before.is_none_or(|before| before.is_live()) {
            let how = if weeder.state == Life::Ended {
                "ended"
            } else {
                "cancelled"
            };
            metrics::ENDED.inc(&[("how", how.to_owned())]);
            tracing::info!(
                namespace,
                service,
                how,
                deleted = weeder.deleted,
                why = weeder.message,
                "weeder ended"
            );
        }
    }
}
