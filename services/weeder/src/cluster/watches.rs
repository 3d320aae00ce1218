//! The watches on the seed that the rule needs.

use std::collections::BTreeSet;

use anyhow::Result;
use futures::future::{BoxFuture, try_join_all};
use futures::{FutureExt, TryFutureExt};
use kube::runtime::watcher::Config;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use watchdog_api::names::SERVICE_NAME_LABEL;
use watchdog_api::selector::Selector;
use watchdog_api::weeder::WeederConfig;
use watchdog_kube::key::ObjectKey;
use watchdog_kube::watch::{Change, LIST_PAGE, Watch};
use watchdog_runtime::readiness::Readiness;

use super::discovery::EndpointsApi;
use super::objects::{pod, slice, slice_of_endpoints};
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::pods::Pod;
use crate::domain::readiness::Slice;

/// An update of what a watch sees.
#[derive(Debug)]
pub(crate) enum WatchUpdate<T> {
    Applied(T),
    Removed(NamespacedName),
    /// A list is complete: of the objects that this watch sees these exist and no others.
    Listed(Vec<T>),
    /// Revisions have begun anew, because etcd was restored. A list follows.
    Restored,
}

#[derive(Clone)]
pub(crate) struct SeedWatches {
    pub(crate) client: Client,
    pub(crate) readiness: Readiness,
    pub(crate) stop: CancellationToken,
}

impl SeedWatches {
    /// Watches the endpoints of the configured services; an update comes with the one service that its watch sees. From
    /// this call on the watches block readiness until everything is listed.
    ///
    /// # Errors
    /// When a watch ends.
    pub(crate) fn endpoints(
        &self,
        served: EndpointsApi,
        config: &WeederConfig,
        on_update: impl Fn(Option<&str>, WatchUpdate<Slice>) + Clone + Send + 'static,
    ) -> BoxFuture<'static, Result<()>> {
        let (name, all) = (served.watch_name(), Config::default().page_size(LIST_PAGE));
        match served {
            EndpointsApi::EndpointSlices => {
                let names: Vec<&str> = config.services.keys().map(|name| &**name).collect();
                let config = all.labels(&format!("{SERVICE_NAME_LABEL} in ({})", names.join(",")));
                let on_update = move |update| on_update(None, update);
                let readiness = self.readiness.clone();
                self.watch(name, config, readiness, slice, on_update)
            }
            // Selected by name, so that RBAC may limit them by resourceNames.
            EndpointsApi::Endpoints => {
                let watches = config.services.keys().map(|service| {
                    let config = all.clone().fields(&format!("metadata.name={service}"));
                    let readiness = self.readiness.named(service);
                    let (service, on_update) = (service.clone(), on_update.clone());
                    let on_update = move |update| on_update(Some(&service), update);
                    self.watch(name, config, readiness, slice_of_endpoints, on_update)
                });
                try_join_all(watches).map_ok(drop).boxed()
            }
        }
    }

    /// Watches the pods in a crash loop that are dependants of a configured service.
    ///
    /// One watch for each selector, over all namespaces, so that these pods are known at the moment at which their
    /// service recovers. A list for each recovery would take 20,000 requests when a seed with 10,000 shoots recovers.
    ///
    /// # Errors
    /// When a watch ends.
    pub(crate) fn pods(
        &self,
        config: &WeederConfig,
        on_update: impl Fn(&Selector, WatchUpdate<Pod>) + Clone + Send + 'static,
    ) -> BoxFuture<'static, Result<()>> {
        let mut seen = BTreeSet::new();
        let selectors = config.services.values().flatten();
        let distinct = selectors.filter(|selector| seen.insert(selector.to_string()));
        let watches = distinct.map(|selector| {
            let query = selector.to_string();
            let config = Config::default().page_size(LIST_PAGE).labels(&query);
            let readiness = self.readiness.named(&query);
            let (selector, on_update) = (selector.clone(), on_update.clone());
            self.watch("pods", config, readiness, pod, move |update| {
                on_update(&selector, update)
            })
        });
        try_join_all(watches).map_ok(drop).boxed()
    }

    /// Watches objects of one kind; `convert` gives none for those that count as absent. The objects of a list are
    /// handed over together, once it is complete, because only then it is known what they mean.
    fn watch<K, T>(
        &self,
        name: &'static str,
        config: Config,
        readiness: Readiness,
        convert: impl Fn(K) -> Option<T> + Send + 'static,
        on_update: impl Fn(WatchUpdate<T>) + Send + 'static,
    ) -> BoxFuture<'static, Result<()>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
        T: Send + 'static,
    {
        let api = Api::all(self.client.clone());
        let mut listing = Some(Vec::new());
        let on_change = move |change| {
            let update = match change {
                Change::ListBegins => {
                    listing = Some(Vec::new());
                    return;
                }
                Change::Applied(object) => {
                    let key = name_of(&object);
                    match (convert(object), &mut listing) {
                        (object, Some(listed)) => return listed.extend(object),
                        (Some(object), None) => WatchUpdate::Applied(object),
                        (None, None) => WatchUpdate::Removed(key),
                    }
                }
                Change::Deleted(object) => WatchUpdate::Removed(name_of(&object)),
                Change::Synced(_) => WatchUpdate::Listed(listing.take().unwrap_or_default()),
                Change::Restored => WatchUpdate::Restored,
            };
            on_update(update);
        };
        let watch = Watch {
            name: name.into(),
            api,
            config,
            ends_if_not_served: false,
        };
        watch.run(readiness, self.stop.clone(), on_change).boxed()
    }
}

fn name_of<K: Resource>(object: &K) -> NamespacedName {
    let key = ObjectKey::of(object);
    NamespacedName::new(key.namespace, key.name)
}
