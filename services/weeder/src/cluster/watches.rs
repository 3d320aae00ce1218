//! The watches on the seed that the rules need: what they bring goes to a [`SeedUpdates`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use watchdog_kube::events::EventSink;
use watchdog_runtime::readiness::Readiness;

use super::annotations::Declaration;
use super::discovery::EndpointsApi;
use super::{ObjectUpdate, annotations, endpoints, namespaces, pods};
use crate::domain::declared::WatchedServices;
use crate::domain::dependants::{MAX_WATCHES, PodQuery};
use crate::domain::namespaces::Namespace;
use crate::domain::pods::Pod;
use crate::domain::readiness::{ReceivedBy, Slice};

/// How long changes of the names are gathered: each change takes a list of all slices, and extensions annotate one
/// Service after the other.
const GATHER: Duration = Duration::from_secs(1);

/// Says what must be watched, and receives the changes that the watches bring.
pub(crate) trait SeedUpdates: Clone + Send + Sync + 'static {
    /// The services whose endpoints must be watched. Its sender lives as long as this handler.
    fn watched_services(&self) -> watch::Receiver<WatchedServices>;

    /// The pods that must be watched. Its sender lives as long as this handler.
    fn pod_queries(&self) -> watch::Receiver<BTreeSet<PodQuery>>;

    /// The endpoints of these services are watched from now on, and of no others.
    fn services_watched(&self, services: &WatchedServices);

    /// The watch on this service brought an update; none stands for a watch on all services.
    fn slice_updated(&self, service: Option<&str>, update: ObjectUpdate<(Slice, ReceivedBy)>);

    /// The watch on these pods brought an update.
    fn pod_updated(&self, query: &Arc<PodQuery>, update: ObjectUpdate<Pod>);

    /// An update of a namespace, with its name.
    fn namespace_updated(&self, update: ObjectUpdate<(String, Namespace)>);

    /// An update of the dependants that a Service declares.
    fn declaration_updated(&self, update: ObjectUpdate<Declaration>);
}

#[derive(Clone)]
pub(crate) struct SeedWatches<H> {
    pub(crate) client: kube::Client,
    pub(crate) handler: H,
    pub(crate) readiness: Readiness,
    pub(crate) stop: CancellationToken,
}

impl<H: SeedUpdates> SeedWatches<H> {
    /// Watches the endpoints of the services that have dependants. All of them are listed again when the services
    /// change.
    ///
    /// # Errors
    /// When a watch ends.
    pub(crate) async fn endpoints(self, served: EndpointsApi) -> anyhow::Result<()> {
        let Self {
            client,
            handler,
            readiness,
            stop,
        } = self;
        let mut watched = handler.watched_services();
        loop {
            let services = watched.borrow_and_update().clone();
            handler.services_watched(&services);
            let on_update = |service: Option<&str>, update| handler.slice_updated(service, update);
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
        let mut needed = self.handler.pod_queries();
        let mut open: BTreeMap<Arc<PodQuery>, CancellationToken> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        loop {
            let queries = needed.borrow_and_update().clone();
            open.retain(|query, watch| {
                let keep = queries.contains(&**query);
                if !keep {
                    watch.cancel();
                    // What it saw, and no other watch, is no longer updated.
                    self.handler
                        .pod_updated(query, ObjectUpdate::Synced(BTreeSet::new()));
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
                open.entry(Arc::new(query)).or_insert_with_key(|query| {
                    let stop = self.stop.child_token();
                    tasks.spawn(self.clone().pods_of(query.clone(), stop.clone()));
                    stop
                });
            }
            tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                // The handler holds the sender.
                _ = needed.changed() => {}
                Some(ended) = tasks.join_next() => ended??,
            }
        }
    }

    async fn pods_of(self, query: Arc<PodQuery>, stop: CancellationToken) -> anyhow::Result<()> {
        let readiness = self.readiness.part(&query.to_string());
        let on_update = |update| self.handler.pod_updated(&query, update);
        pods::watch(self.client.clone(), &query, readiness, stop, on_update).await
    }

    /// Watches the namespaces.
    ///
    /// # Errors
    /// When the watch ends.
    pub(crate) async fn namespaces(self) -> anyhow::Result<()> {
        let handler = self.handler;
        let on_update = move |update| handler.namespace_updated(update);
        namespaces::watch(self.client, self.readiness, self.stop, on_update).await
    }

    /// Watches the dependants that Services declare.
    ///
    /// # Errors
    /// When the watch ends.
    pub(crate) async fn annotations(self, events: EventSink) -> anyhow::Result<()> {
        let handler = self.handler;
        let on_update = move |update| handler.declaration_updated(update);
        annotations::watch(self.client, events, self.readiness, self.stop, on_update).await
    }
}

/// Ends when other services must be watched, and have had to for [`GATHER`].
async fn replaced(services: &WatchedServices, watched: &mut watch::Receiver<WatchedServices>) {
    loop {
        // The handler holds the sender.
        let _ = watched.wait_for(|now| now != services).await;
        tokio::time::sleep(GATHER).await;
        if *watched.borrow() != *services {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
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
