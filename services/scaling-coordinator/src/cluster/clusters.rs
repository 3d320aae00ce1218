//! The index of Clusters: which shoots there are, and whether they may be written to (S4).

use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use parking_lot::Mutex;
use watchdog_api::cluster::Cluster;
use watchdog_api::eligibility::{SkipReason, may_continue};
use watchdog_api::policy::{PolicyError, ShootMode, parse_failure_fraction, parse_mode};
use watchdog_kube::client::{RequestError, found, request_within};
use watchdog_kube::watch::Change;

use super::object_index::{IndexSignals, ObjectIndex, version_of};
use crate::domain::decision::{Decision, HoldReason};

/// Deadline of one request for a Cluster. A write waits for it, and is tried again when the request fails.
const CLUSTER_DEADLINE: Duration = Duration::from_secs(5);

/// A shoot, as its Cluster shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownCluster {
    /// A Cluster that was created again under the same name is that of another shoot.
    pub(crate) uid: Option<Arc<str>>,
    /// Why nothing may be scaled; none if it may.
    stopped: Option<SkipReason>,
    /// The mode that the annotations of the Shoot ask for.
    pub(crate) mode: Option<ShootMode>,
    /// Malformed annotations, a sentence each. That of the failure fraction is here too, because lease-probe, which
    /// applies it, writes no Events.
    pub(crate) malformed: Vec<String>,
}

pub(crate) struct Clusters {
    seed: kube::Client,
    index: Mutex<ObjectIndex<KnownCluster>>,
}

impl KnownCluster {
    fn of(cluster: &Cluster, old: Option<&Self>) -> Self {
        let stopped = may_continue(cluster).err();
        if let Some(SkipReason::Malformed(reason)) = &stopped
            && old.is_none_or(|old| old.stopped != stopped)
        {
            tracing::warn!(shoot = cluster.name(), %reason, "the Cluster cannot be used; the shoot is left alone");
        }
        let shoot = cluster.shoot.as_ref().ok();
        let mode = shoot.and_then(|shoot| shoot.mode.as_deref());
        let mode = mode.map(parse_mode).transpose();
        let fraction = shoot.and_then(|shoot| shoot.failure_fraction.as_deref());
        let fraction = fraction.map(parse_failure_fraction).transpose();
        Self {
            uid: cluster.metadata.uid.as_deref().map(Arc::from),
            stopped,
            mode: mode.as_ref().copied().unwrap_or_default(),
            malformed: [mode.err(), fraction.err()]
                .iter()
                .flatten()
                .map(PolicyError::to_string)
                .collect(),
        }
    }
}

impl Clusters {
    pub(crate) fn new(seed: kube::Client, signals: IndexSignals) -> Self {
        Self {
            seed,
            index: Mutex::new(ObjectIndex::new(signals)),
        }
    }

    /// The watch reports a change.
    pub(crate) fn take_in(&self, change: &Change<Cluster>) {
        self.index
            .lock()
            .take_in(change, |key| key.name, KnownCluster::of);
    }

    /// None if the shoot does not exist, or the Clusters are not listed yet.
    pub(crate) fn get(&self, shoot: &str) -> Option<KnownCluster> {
        let index = self.index.lock();
        index.get(shoot).filter(|_| index.is_listed()).cloned()
    }

    /// The decision if nothing may be scaled in a shoot (S4); none if it may.
    pub(crate) fn restraint(&self, shoot: &str) -> Option<Decision> {
        let why = match self.get(shoot) {
            Some(known) => match known.stopped? {
                // A malformed Cluster proves nothing.
                malformed @ SkipReason::Malformed(_) => malformed.to_string(),
                reason => return Some(Decision::release(reason.to_string())),
            },
            None if self.is_listed() => "The Cluster does not exist.".to_owned(),
            None => "The Clusters of the seed are not listed yet.".to_owned(),
        };
        Some(Decision::hold(HoldReason::Cluster, why))
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.index.lock().is_listed()
    }

    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        let index = self.index.lock();
        index.iter().map(|(shoot, _)| shoot.clone()).collect()
    }

    /// Reads the Cluster of a shoot, so that a write can rest on it. Reads its version first, and the whole Cluster
    /// only if the index holds another version because the watch lags.
    pub(crate) async fn confirm(&self, shoot: &str) -> Result<(), RequestError> {
        let api: Api<Cluster> = Api::all(self.seed.clone());
        let before = self.index.lock().version(shoot);
        let meta = found(
            shoot,
            request_within(CLUSTER_DEADLINE, api.get_metadata(shoot)).await,
        )?;
        if let Some(meta) = &meta
            && self.index.lock().version(shoot).as_deref() == Some(version_of(&meta.metadata))
        {
            return Ok(());
        }
        let cluster = match meta {
            Some(_) => found(shoot, request_within(CLUSTER_DEADLINE, api.get(shoot)).await)?,
            None => None,
        };
        let found = cluster.as_ref().map(|cluster| {
            let make = |old: Option<&KnownCluster>| KnownCluster::of(cluster, old);
            (version_of(&cluster.metadata), make)
        });
        self.index.lock().read(shoot, before.as_deref(), found);
        Ok(())
    }
}
