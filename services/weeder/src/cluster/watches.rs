//! The watches on the seed that the rule needs: what they bring goes to a [`SeedUpdates`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::try_join_all;
use kube::runtime::watcher::Config;
use kube::{Api, Resource};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use watchdog_api::names::SERVICE_NAME_LABEL;
use watchdog_kube::key::ObjectKey;
use watchdog_kube::watch::{Change, LIST_PAGE, Watch};
use watchdog_runtime::readiness::Readiness;

use super::discovery::EndpointsApi;
use super::objects::{EndpointsObject, PodObject, SliceObject};
use crate::domain::dependants::{MAX_WATCHES, PodQuery};
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::pods::Pod;
use crate::domain::readiness::Slice;

/// An update of a watch on slices.
#[derive(Debug)]
pub(crate) enum SliceUpdate {
    Applied(Slice),
    Removed(NamespacedName),
    /// These exist and no others.
    Listed(Vec<Slice>),
}

/// An update of a watch on pods.
#[derive(Debug)]
pub(crate) enum PodUpdate {
    Applied(Box<Pod>),
    Removed(NamespacedName),
    /// These exist and no others.
    Synced(BTreeSet<NamespacedName>),
}

/// Says what must be watched, and receives the changes that the watches bring.
pub(crate) trait SeedUpdates: Clone + Send + Sync + 'static {
    /// The services whose endpoints must be watched. Its sender lives as long as this handler.
    fn watched_services(&self) -> watch::Receiver<BTreeSet<Arc<str>>>;

    /// The pods that must be watched. Its sender lives as long as this handler.
    fn pod_queries(&self) -> watch::Receiver<BTreeSet<PodQuery>>;

    /// The watch on this service brought an update; none stands for a watch on all services.
    fn slice_updated(&self, service: Option<&str>, update: SliceUpdate);

    /// The watch on these pods brought an update.
    fn pod_updated(&self, query: &PodQuery, update: PodUpdate);
}

#[derive(Clone)]
pub(crate) struct SeedWatches<H> {
    pub(crate) client: kube::Client,
    pub(crate) handler: H,
    pub(crate) readiness: Readiness,
    pub(crate) stop: CancellationToken,
}

impl<H: SeedUpdates> SeedWatches<H> {
    /// Watches the endpoints of the configured services. All of them are listed again when the services change.
    ///
    /// # Errors
    /// When a watch ends.
    pub(crate) async fn endpoints(self, served: EndpointsApi) -> anyhow::Result<()> {
        let mut watched = self.handler.watched_services();
        loop {
            let services = watched.borrow_and_update().clone();
            let stop = self.stop.child_token();
            tokio::select! {
                result = self.endpoints_of(served, &services, &stop) => return result,
                // The handler holds the sender.
                _ = watched.changed() => {}
            }
            stop.cancel();
            tracing::info!("configured services changed; watching the new ones");
        }
    }

    async fn endpoints_of(
        &self,
        served: EndpointsApi,
        services: &BTreeSet<Arc<str>>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let (name, all) = (served.watch_name(), Config::default().page_size(LIST_PAGE));
        let api = self.client.clone();
        let watches = match served {
            EndpointsApi::EndpointSlices => {
                let names: Vec<&str> = services.iter().map(|name| &**name).collect();
                let config = all.labels(&format!("{SERVICE_NAME_LABEL} in ({})", names.join(",")));
                let on_change = self.slices(None, SliceObject::into_slice);
                let api = Api::all(api);
                let watch = Watch { name, api, config };
                vec![watch.run(self.readiness.clone(), stop.clone(), on_change).boxed()]
            }
            // Selected by name, so that RBAC may limit them by resourceNames.
            EndpointsApi::Endpoints => {
                let watch = |service: &Arc<str>| {
                    let config = all.clone().fields(&format!("metadata.name={service}"));
                    let on_change = self.slices(Some(service.clone()), EndpointsObject::into_slice);
                    let api = Api::all(api.clone());
                    let watch = Watch { name, api, config };
                    watch
                        .run(self.readiness.named(service), stop.clone(), on_change)
                        .boxed()
                };
                services.iter().map(watch).collect()
            }
        };
        try_join_all(watches).await.map(drop)
    }

    /// Hands over slices: those of a list together, once it is complete, because only then it is known whether a
    /// service is ready and since when.
    fn slices<K: Resource>(
        &self,
        service: Option<Arc<str>>,
        into_slice: impl Fn(K) -> Option<Slice>,
    ) -> impl FnMut(Change<K>) {
        let (handler, mut listing) = (self.handler.clone(), Some(Vec::new()));
        move |change| {
            let update = match change {
                Change::ListBegins => {
                    listing = Some(Vec::new());
                    return;
                }
                Change::Applied(object) => match (into_slice(object), &mut listing) {
                    (Some(slice), Some(listed)) => return listed.push(slice),
                    (Some(slice), None) => SliceUpdate::Applied(slice),
                    (None, _) => return,
                },
                Change::Synced(_) => SliceUpdate::Listed(listing.take().unwrap_or_default()),
                Change::Deleted(object) => SliceUpdate::Removed(name_of(ObjectKey::of(&object))),
                // A list follows, or the watch goes on where it was.
                Change::Failed | Change::Restored => return,
            };
            handler.slice_updated(service.as_deref(), update);
        }
    }

    /// Watches the pods in a crash loop.
    ///
    /// One watch for each selector, over all namespaces and for as long as the weeder runs, so that these pods are
    /// known at the moment at which their service recovers. A list for each recovery would take 20,000 requests when a
    /// seed with 10,000 shoots recovers.
    ///
    /// # Errors
    /// When a watch ends or panics.
    pub(crate) async fn pods(self) -> anyhow::Result<()> {
        let mut needed = self.handler.pod_queries();
        let mut open: BTreeMap<PodQuery, CancellationToken> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        loop {
            let queries = needed.borrow_and_update().clone();
            let dropped = open.extract_if(.., |query, _| !queries.contains(query));
            dropped.for_each(|(_, watch)| watch.cancel());
            if queries.contains(&PodQuery::All) && !open.contains_key(&PodQuery::All) {
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
                // The handler holds the sender.
                _ = needed.changed() => {}
                Some(ended) = tasks.join_next() => ended??,
            }
        }
    }

    async fn pods_of(self, query: PodQuery, stop: CancellationToken) -> anyhow::Result<()> {
        let mut config = Config::default().page_size(LIST_PAGE);
        if let PodQuery::Labels(labels) = &query {
            config = config.labels(labels);
        }
        let (name, api) = ("pods", Api::<PodObject>::all(self.client));
        let readiness = self.readiness.part(&query.to_string());
        let handler = self.handler;
        let on_change = move |change| {
            let update = match change {
                Change::Applied(object) => match PodObject::into_pod(object) {
                    Some(pod) => PodUpdate::Applied(Box::new(pod)),
                    None => return,
                },
                Change::Deleted(object) => PodUpdate::Removed(name_of(ObjectKey::of(&object))),
                Change::Synced(keys) => PodUpdate::Synced(keys.into_iter().map(name_of).collect()),
                Change::ListBegins | Change::Failed | Change::Restored => return,
            };
            handler.pod_updated(&query, update);
        };
        Watch { name, api, config }.run(readiness, stop, on_change).await
    }
}

fn name_of(key: ObjectKey) -> NamespacedName {
    NamespacedName::new(key.namespace, key.name)
}
