//! Keeps the watches open that the rules need, and hands to the state what they bring.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use watchdog_api::weeder::WeederConfig;
use watchdog_kube::events::EventSink;
use watchdog_runtime::readiness::Readiness;

use super::shared::SharedState;
use crate::cluster::discovery::EndpointsApi;
use crate::cluster::{ObjectUpdate, annotations, endpoints, namespaces, pods};
use crate::domain::declared::WatchedServices;
use crate::domain::dependants::{MAX_WATCHES, PodQuery};
use crate::domain::namespaces::Namespace;

/// How long changes of the names are gathered: each change takes a list of all slices, and extensions annotate one
/// Service after the other.
const GATHER: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct SeedWatches {
    pub(crate) client: kube::Client,
    pub(crate) state: Arc<SharedState>,
    pub(crate) readiness: Readiness,
    pub(crate) stop: CancellationToken,
}

impl SeedWatches {
    /// Takes up the configuration whenever it changes, until `stop` is cancelled.
    ///
    /// # Errors
    /// Never; the type is that of a critical task.
    pub(crate) async fn configuration(
        self,
        mut config: watch::Receiver<Arc<WeederConfig>>,
    ) -> anyhow::Result<()> {
        loop {
            let current = config.borrow_and_update().clone();
            self.state.update(|state, now| state.reconfigure(&current, now));
            tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                changed = config.changed() => if changed.is_err() {
                    // The process is stopping.
                    return Ok(());
                }
            }
        }
    }

    /// Watches the endpoints of the services that have dependants. All of them are listed again when the services
    /// change.
    ///
    /// # Errors
    /// When a watch ends.
    pub(crate) async fn endpoints(self, served: EndpointsApi) -> anyhow::Result<()> {
        let Self {
            client,
            state,
            readiness,
            stop,
        } = self;
        let mut watched = state.read(|state| state.watched_services.subscribe());
        loop {
            let services = watched.borrow_and_update().clone();
            state.update(|state, now| state.keep_services(|service| services.includes(service), now));
            let on_update = |service: Option<&str>, update| {
                state.update(|state, now| match update {
                    ObjectUpdate::Applied((slice, received_by)) => {
                        state.slice_applied(slice, received_by, now);
                    }
                    ObjectUpdate::Removed(slice) => state.slice_removed(&slice, now),
                    ObjectUpdate::Synced(live) => state.slices_synced(service, &live, now),
                });
            };
            let stop_watch = stop.child_token();
            let watch = endpoints::watch(
                client.clone(),
                served,
                &services,
                &readiness,
                stop_watch.clone(),
                on_update,
            );
            tokio::select! {
                result = watch => return result,
                () = replaced(&services, &mut watched) => {}
            }
            stop_watch.cancel();
            tracing::info!("services with dependants changed; watching the new ones");
        }
    }

    /// Watches the pods in a crash loop.
    ///
    /// One watch for each selector, over all namespaces and for as long as the weeder runs, so that these pods are
    /// known at the moment at which their service becomes ready. A list for each recovery would take 20,000 requests
    /// when a seed with 10,000 shoots recovers.
    ///
    /// # Errors
    /// When a watch ends or panics.
    pub(crate) async fn pods(self) -> anyhow::Result<()> {
        let mut needed = self.state.read(|state| state.pod_queries.subscribe());
        let mut open: BTreeMap<PodQuery, CancellationToken> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        loop {
            let queries = needed.borrow_and_update().clone();
            open.retain(|query, watch| {
                let keep = queries.contains(query);
                if !keep {
                    watch.cancel();
                    // What it saw, and no other watch, is no longer updated.
                    self.state
                        .update(|state, _| state.manager.pods_synced(query, &Default::default()));
                }
                keep
            });
            let all = PodQuery::default();
            if queries.contains(&all) && !open.contains_key(&all) {
                tracing::warn!(
                    limit = MAX_WATCHES,
                    "more selectors than watches on pods; watching all pods of the seed; use fewer selectors"
                );
            }
            for query in queries {
                open.entry(query).or_insert_with_key(|query| {
                    let stop = self.stop.child_token();
                    tasks.spawn(self.clone().pods_of(query.clone(), stop.clone()));
                    stop
                });
            }
            tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                // The state holds the sender.
                _ = needed.changed() => {}
                Some(ended) = tasks.join_next() => ended??,
            }
        }
    }

    async fn pods_of(self, query: PodQuery, stop: CancellationToken) -> anyhow::Result<()> {
        let readiness = self.readiness.part(&query.to_string());
        let (state, known) = (self.state, Arc::new(query.clone()));
        let on_update = move |update| {
            state.update(|state, now| match update {
                ObjectUpdate::Applied(pod) => state.manager.pod_applied(pod, &known, now),
                ObjectUpdate::Removed(pod) => state.manager.pod_gone(&pod, &known),
                ObjectUpdate::Synced(live) => state.manager.pods_synced(&known, &live),
            });
        };
        pods::watch(self.client, &query, readiness, stop, on_update).await
    }

    /// Watches the namespaces.
    ///
    /// # Errors
    /// When the watch ends.
    pub(crate) async fn namespaces(self) -> anyhow::Result<()> {
        let state = self.state;
        let on_update = move |update: ObjectUpdate<(String, Namespace)>| {
            state.update(|state, now| match update {
                ObjectUpdate::Applied((name, namespace)) => {
                    state.namespace_applied(&name, namespace, now);
                }
                ObjectUpdate::Removed(key) => state.namespace_removed(&key.name, now),
                ObjectUpdate::Synced(live) => {
                    let live = live.into_iter().map(|key| key.name).collect();
                    state.namespaces_synced(&live, now);
                }
            });
        };
        namespaces::watch(self.client, self.readiness, self.stop, on_update).await
    }

    /// Watches the dependants that Services declare.
    ///
    /// # Errors
    /// When the watch ends.
    pub(crate) async fn annotations(self, events: EventSink) -> anyhow::Result<()> {
        let state = self.state;
        let on_update = move |update| {
            state.update(|state, now| match update {
                ObjectUpdate::Applied((service, own)) => state.set_dependants(&service, own, now),
                ObjectUpdate::Removed(service) => state.set_dependants(&service, None, now),
                ObjectUpdate::Synced(live) => state.annotations_synced(&live, now),
            });
        };
        annotations::watch(self.client, events, self.readiness, self.stop, on_update).await
    }
}

/// Ends when other services must be watched, and have had to for [`GATHER`].
async fn replaced(services: &WatchedServices, watched: &mut watch::Receiver<WatchedServices>) {
    loop {
        // The state holds the sender.
        let _ = watched.wait_for(|now| now != services).await;
        tokio::time::sleep(GATHER).await;
        if *watched.borrow() != *services {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokio::time::Instant;

    use super::*;

    fn named(names: &[&str]) -> WatchedServices {
        WatchedServices::Named(names.iter().map(|name| Arc::from(*name)).collect::<BTreeSet<_>>())
    }

    #[tokio::test(start_paused = true)]
    async fn names_are_gathered_before_all_slices_are_listed_anew() {
        let (change, mut watched) = watch::channel(named(&["etcd"]));
        let begun = Instant::now();
        let story = async {
            // A name that comes and goes does not count.
            for names in [&["etcd", "queue"][..], &["etcd"], &["etcd"]] {
                change.send(named(names)).unwrap();
                tokio::time::sleep(GATHER * 3 / 4).await;
            }
            for names in [&["a"][..], &["a", "b"], &["a", "b", "c"]] {
                change.send(named(names)).unwrap();
                tokio::time::sleep(GATHER / 4).await;
            }
            std::future::pending().await
        };
        let services = named(&["etcd"]);
        tokio::select! {
            () = replaced(&services, &mut watched) => {}
            () = story => {}
        }
        assert_eq!(begun.elapsed(), GATHER * 9 / 4 + GATHER);
        assert_eq!(*watched.borrow_and_update(), named(&["a", "b", "c"]));
    }
}
