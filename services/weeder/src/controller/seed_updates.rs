//! Hands the updates of the watches to the state.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

use super::shared::SharedState;
use crate::cluster::watches::{PodUpdate, SeedUpdates, SliceUpdate};
use crate::domain::dependants::PodQuery;

impl SeedUpdates for Arc<SharedState> {
    fn watched_services(&self) -> watch::Receiver<BTreeSet<Arc<str>>> {
        self.read(|state| state.watched_services.subscribe())
    }

    fn pod_queries(&self) -> watch::Receiver<BTreeSet<PodQuery>> {
        self.read(|state| state.pod_queries.subscribe())
    }

    fn slice_updated(&self, service: Option<&str>, update: SliceUpdate) {
        self.update(|state, now| match update {
            SliceUpdate::Applied(slice) => state.slice_applied(slice, now),
            SliceUpdate::Removed(slice) => state.slice_removed(&slice, now),
            SliceUpdate::Listed(slices) => state.slices_listed(service, slices, now),
        });
    }

    fn pod_updated(&self, query: &PodQuery, update: PodUpdate) {
        self.update(|state, now| match update {
            PodUpdate::Applied(pod) => state.pod_applied(*pod, now),
            PodUpdate::Removed(pod) => state.pod_removed(&pod, query),
            PodUpdate::Synced(live) => state.pods_synced(query, &live),
        });
    }
}
