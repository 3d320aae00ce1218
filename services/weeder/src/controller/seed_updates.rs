//! Hands the updates of the watches to the state.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

use super::shared::SharedState;
use crate::cluster::ObjectUpdate;
use crate::cluster::annotations::Declaration;
use crate::cluster::watches::SeedUpdates;
use crate::domain::declared::WatchedServices;
use crate::domain::dependants::PodQuery;
use crate::domain::namespaces::Namespace;
use crate::domain::pods::Pod;
use crate::domain::readiness::{ReceivedBy, Slice};

impl SeedUpdates for Arc<SharedState> {
    fn watched_services(&self) -> watch::Receiver<WatchedServices> {
        self.read(|state| state.watched_services.subscribe())
    }

    fn pod_queries(&self) -> watch::Receiver<BTreeSet<PodQuery>> {
        self.read(|state| state.pod_queries.subscribe())
    }

    fn services_watched(&self, services: &WatchedServices) {
        self.update(|state, now| state.keep_services(|service| services.includes(service), now));
    }

    fn slice_updated(&self, service: Option<&str>, update: ObjectUpdate<(Slice, ReceivedBy)>) {
        self.update(|state, now| match update {
            ObjectUpdate::Applied((slice, received_by)) => state.slice_applied(slice, received_by, now),
            ObjectUpdate::Removed(slice) => state.slice_removed(&slice, now),
            ObjectUpdate::Synced(live) => state.slices_synced(service, &live, now),
        });
    }

    fn pod_updated(&self, query: &Arc<PodQuery>, update: ObjectUpdate<Pod>) {
        self.update(|state, now| match update {
            ObjectUpdate::Applied(pod) => state.manager.pod_applied(pod, query, now),
            ObjectUpdate::Removed(pod) => state.manager.pod_gone(&pod, query),
            ObjectUpdate::Synced(live) => state.manager.pods_synced(query, &live),
        });
    }

    fn namespace_updated(&self, update: ObjectUpdate<(String, Namespace)>) {
        self.update(|state, now| match update {
            ObjectUpdate::Applied((name, namespace)) => state.namespace_applied(&name, namespace, now),
            ObjectUpdate::Removed(key) => state.namespace_removed(&key.name, now),
            ObjectUpdate::Synced(live) => {
                let live = live.into_iter().map(|key| key.name).collect();
                state.namespaces_synced(&live, now);
            }
        });
    }

    fn declaration_updated(&self, update: ObjectUpdate<Declaration>) {
        self.update(|state, now| match update {
            ObjectUpdate::Applied((service, own)) => state.set_dependants(&service, own, now),
            ObjectUpdate::Removed(service) => state.set_dependants(&service, None, now),
            ObjectUpdate::Synced(live) => state.annotations_synced(&live, now),
        });
    }
}
