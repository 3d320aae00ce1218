//! The index of Clusters: which shoots there are, and whether they may be written to (S4).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use parking_lot::Mutex;
use watchdog_api::cluster::Cluster;
use watchdog_api::eligibility::{SkipReason, may_continue};
use watchdog_api::policy::{PolicyError, ShootMode, parse_failure_fraction, parse_mode};
use watchdog_kube::client::{RequestError, found, request_within};
use watchdog_runtime::work_queue::WorkQueue;

use super::object_index::{ObjectIndex, version_of};
use super::requests::RestoredEtcd;

/// Deadline of one request for a Cluster. A write waits for it, and is tried again when the request fails.
const CLUSTER_DEADLINE: Duration = Duration::from_secs(5);

/// The permission to write to a shoot, as derived from its Cluster in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WriteEligibility {
    Unlisted,
    Absent,
    Allowed,
    Stopped(SkipReason),
}

impl WriteEligibility {
    /// Returns true if the Cluster says that the shoot is no longer protected, so that leftover protection may be
    /// removed. A malformed Cluster proves nothing.
    pub(crate) const fn is_released(&self) -> bool {
        match self {
            Self::Stopped(reason) => !matches!(reason, SkipReason::Malformed(_)),
            Self::Unlisted | Self::Absent | Self::Allowed => false,
        }
    }
}

pub(crate) struct Clusters {
    seed: kube::Client,
    restored: RestoredEtcd,
    work_queue: Arc<WorkQueue>,
    inner: Mutex<ClusterIndex>,
}

#[derive(Debug, Default)]
struct ClusterIndex {
    listed: bool,
    clusters: ObjectIndex<KnownCluster>,
}

/// The settings in the annotations of a Shoot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ShootPolicy {
    pub(crate) mode: Option<ShootMode>,
    /// Malformed annotations, a sentence each. That of the failure fraction is here too, because lease-probe, which
    /// applies it, writes no Events.
    pub(crate) malformed: Vec<String>,
}

impl ShootPolicy {
    fn of(cluster: &Cluster) -> Self {
        let Ok(shoot) = &cluster.shoot else {
            return Self::default();
        };
        let mode = shoot.mode.as_deref().map(parse_mode).transpose();
        let fraction = shoot.failure_fraction.as_deref();
        let fraction = fraction.map(parse_failure_fraction).transpose();
        Self {
            mode: mode.as_ref().copied().unwrap_or_default(),
            malformed: [mode.err(), fraction.err()]
                .iter()
                .flatten()
                .map(PolicyError::to_string)
                .collect(),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct KnownCluster {
    write_eligibility: WriteEligibility,
    policy: ShootPolicy,
}

impl Clusters {
    pub(crate) fn new(seed: kube::Client, restored: RestoredEtcd, work_queue: Arc<WorkQueue>) -> Self {
        Self {
            seed,
            restored,
            work_queue,
            inner: Mutex::default(),
        }
    }

    pub(crate) fn applied(&self, cluster: &Cluster) {
        let (shoot, version) = (cluster.name(), version_of(&cluster.metadata));
        if shoot.is_empty() {
            return;
        }
        let eligibility = may_continue(cluster).map(|_| WriteEligibility::Allowed);
        let known = KnownCluster {
            write_eligibility: eligibility.unwrap_or_else(WriteEligibility::Stopped),
            policy: ShootPolicy::of(cluster),
        };
        let mut inner = self.inner.lock();
        if !inner.clusters.accepts(shoot, version) {
            return;
        }
        let before = inner.clusters.get(shoot).map(|before| &before.object);
        let changed = before != Some(&known);
        if before.map(|before| &before.write_eligibility) != Some(&known.write_eligibility)
            && let WriteEligibility::Stopped(SkipReason::Malformed(reason)) = &known.write_eligibility
        {
            tracing::warn!(shoot, %reason, "the Cluster cannot be used; the shoot is left alone");
        }
        inner.clusters.insert(shoot, version.into(), known);
        drop(inner);
        if changed {
            self.work_queue.add(shoot);
        }
    }

    /// A watch reports that a Cluster is gone, with its last state. One of the same name that was created since stays.
    pub(crate) fn deleted(&self, last: &Cluster) {
        let mut inner = self.inner.lock();
        inner.clusters.deleted(last.name(), version_of(&last.metadata));
        drop(inner);
        self.work_queue.add(last.name());
    }

    pub(crate) fn list_begins(&self) {
        self.inner.lock().clusters.list_begins();
    }

    /// These Clusters exist and no others.
    pub(crate) fn synced(&self, exist: &BTreeSet<String>) {
        let mut inner = self.inner.lock();
        let gone = inner.clusters.synced(exist);
        let first = !std::mem::replace(&mut inner.listed, true);
        drop(inner);
        for shoot in gone {
            self.work_queue.add(&shoot);
        }
        if first {
            self.work_queue.add_all();
        }
    }

    pub(crate) fn write_eligibility(&self, shoot: &str) -> WriteEligibility {
        let inner = self.inner.lock();
        match inner.clusters.get(shoot) {
            _ if !inner.listed => WriteEligibility::Unlisted,
            None => WriteEligibility::Absent,
            Some(known) => known.object.write_eligibility.clone(),
        }
    }

    pub(crate) fn policy(&self, shoot: &str) -> ShootPolicy {
        let inner = self.inner.lock();
        let known = inner.clusters.get(shoot);
        known.map(|known| known.object.policy.clone()).unwrap_or_default()
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.inner.lock().listed
    }

    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        let inner = self.inner.lock();
        inner.clusters.iter().map(|(shoot, _)| shoot.clone()).collect()
    }

    /// Reads the Cluster of a shoot, so that a write can rest on it. Reads its version first, and the whole Cluster
    /// only if the index holds another version because the watch lags.
    pub(crate) async fn confirm(&self, shoot: &str) -> Result<(), RequestError> {
        let api: Api<Cluster> = Api::all(self.seed.clone());
        let before = self.version(shoot);
        let meta = request_within(CLUSTER_DEADLINE, api.get_metadata(shoot)).await;
        let Some(meta) = found(shoot, meta)? else {
            self.absent(shoot, before.as_ref());
            return Ok(());
        };
        self.restored.check(before.as_deref(), version_of(&meta.metadata));
        if self.version(shoot).as_deref() == Some(version_of(&meta.metadata)) {
            return Ok(());
        }
        match found(shoot, request_within(CLUSTER_DEADLINE, api.get(shoot)).await)? {
            Some(cluster) => self.applied(&cluster),
            None => self.absent(shoot, before.as_ref()),
        }
        Ok(())
    }

    /// A read found no Cluster; `before` is the version that was known when it was asked for.
    fn absent(&self, shoot: &str, before: Option<&Arc<str>>) {
        self.inner.lock().clusters.absent(shoot, before);
        self.work_queue.add(shoot);
    }

    fn version(&self, shoot: &str) -> Option<Arc<str>> {
        let inner = self.inner.lock();
        inner.clusters.get(shoot).map(|known| known.version.clone())
    }
}
