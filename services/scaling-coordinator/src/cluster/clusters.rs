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

use super::object_index::{IndexMark, ObjectIndex, Origin, version_of};

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
        let Some(shoot) = cluster.spec.shoot.ok() else {
            return Self::default();
        };
        let annotations = &shoot.metadata.annotations;
        let mode = annotations.mode.as_deref().map(parse_mode).transpose();
        let fraction = annotations.failure_fraction.as_deref();
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
    pub(crate) fn new(seed: kube::Client, work_queue: Arc<WorkQueue>) -> Self {
        Self {
            seed,
            work_queue,
            inner: Mutex::default(),
        }
    }

    pub(crate) fn applied(&self, cluster: &Cluster, origin: Origin) {
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
        if !inner.clusters.accepts(shoot, version, origin) {
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

    /// A consistent read that was asked for at this mark found no Cluster.
    fn absent(&self, shoot: &str, asked: IndexMark) {
        self.inner.lock().clusters.absent(shoot, asked);
        self.work_queue.add(shoot);
    }

    /// These Clusters exist and no others, by a list that was asked for at this mark.
    pub(crate) fn synced(&self, exist: &BTreeSet<String>, asked: IndexMark) {
        let mut inner = self.inner.lock();
        let gone = inner.clusters.synced(exist, asked);
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

    /// Returns true if the API server's current Cluster allows writes. Reads the Cluster's version first, and the whole
    /// Cluster only if the index holds another version because the watch lags.
    pub(crate) async fn confirm(&self, shoot: &str) -> Result<bool, RequestError> {
        let api: Api<Cluster> = Api::all(self.seed.clone());
        let asked = IndexMark::last();
        let meta = found(
            shoot,
            request_within(CLUSTER_DEADLINE, api.get_metadata(shoot)).await,
        )?;
        match meta.as_ref().map(|meta| version_of(&meta.metadata)) {
            None => self.absent(shoot, asked),
            Some(version) if self.version(shoot).as_deref() == Some(version) => {}
            Some(_) => {
                let asked = IndexMark::last();
                match found(shoot, request_within(CLUSTER_DEADLINE, api.get(shoot)).await)? {
                    Some(cluster) => self.applied(&cluster, Origin::Read(asked)),
                    None => self.absent(shoot, asked),
                }
            }
        }
        Ok(self.write_eligibility(shoot) == WriteEligibility::Allowed)
    }

    fn version(&self, shoot: &str) -> Option<Arc<str>> {
        let inner = self.inner.lock();
        inner.clusters.get(shoot).map(|known| known.version.clone())
    }
}
