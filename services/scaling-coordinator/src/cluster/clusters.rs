//! The index of Clusters: which shoots there are, and whether they may be written to (S4).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use parking_lot::Mutex;
use watchdog_api::cluster::Cluster;
use watchdog_api::eligibility::{SkipReason, may_continue};
use watchdog_api::policy::{PolicyError, ShootMode, parse_failure_fraction, parse_mode};
use watchdog_kube::client::{RequestError, found, request_within};

use super::version::{IndexMark, Origin, is_newer, replaces, replaces_absence};
use crate::controller::work_queue::WorkQueue;

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
    known: HashMap<Arc<str>, KnownCluster>,
    mark: IndexMark,
    removed: IndexMark,
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

#[derive(Debug)]
struct KnownCluster {
    version: Arc<str>,
    write_eligibility: Result<(), SkipReason>,
    policy: ShootPolicy,
    taken: IndexMark,
}

impl Clusters {
    pub(crate) fn new(seed: kube::Client, work_queue: Arc<WorkQueue>) -> Self {
        Self {
            seed,
            work_queue,
            inner: Mutex::default(),
        }
    }

    /// The mark of what is taken in next: to be taken before a list or read is asked for.
    pub(crate) fn mark(&self) -> IndexMark {
        self.inner.lock().mark
    }

    pub(crate) fn applied(&self, cluster: &Cluster, origin: Origin) {
        let shoot = cluster.name();
        if shoot.is_empty() {
            return;
        }
        let (write_eligibility, policy) = (may_continue(cluster).map(drop), ShootPolicy::of(cluster));
        let version: Arc<str> = cluster
            .metadata
            .resource_version
            .as_deref()
            .unwrap_or_default()
            .into();
        let changed = {
            let mut inner = self.inner.lock();
            let before = inner.known.get(shoot);
            let believed = match before {
                Some(known) => replaces(&known.version, known.taken, &version, origin),
                None => replaces_absence(inner.removed, origin),
            };
            if !believed {
                return;
            }
            let newly_eligible = before.map(|known| &known.write_eligibility) != Some(&write_eligibility);
            let changed = newly_eligible || before.map(|known| &known.policy) != Some(&policy);
            if newly_eligible && let Err(SkipReason::Malformed(reason)) = &write_eligibility {
                tracing::warn!(shoot, %reason, "the Cluster cannot be used; the shoot is left alone");
            }
            let taken = inner.next_mark();
            let known = KnownCluster {
                version,
                write_eligibility,
                policy,
                taken,
            };
            inner.known.insert(shoot.into(), known);
            changed
        };
        if changed {
            self.work_queue.add(shoot);
        }
    }

    /// A watch reports that a Cluster is gone, with its last state. One of the same name that was created since stays.
    pub(crate) fn deleted(&self, last: &Cluster) {
        let version = last.metadata.resource_version.as_deref().unwrap_or_default();
        self.remove(last.name(), |known| !is_newer(&known.version, version));
    }

    fn remove(&self, shoot: &str, believed: impl FnOnce(&KnownCluster) -> bool) {
        {
            let mut inner = self.inner.lock();
            if inner.known.get(shoot).is_some_and(believed) {
                inner.remove(shoot);
            }
        }
        self.work_queue.add(shoot);
    }

    /// These Clusters exist and no others, by a list that was asked for at this mark.
    pub(crate) fn synced(&self, exist: &BTreeSet<String>, asked: IndexMark) {
        let (gone, first) = {
            let mut inner = self.inner.lock();
            let gone: Vec<Arc<str>> = inner
                .known
                .iter()
                .filter(|(shoot, known)| !exist.contains(&***shoot) && known.taken <= asked)
                .map(|(shoot, _)| shoot.clone())
                .collect();
            for shoot in &gone {
                inner.remove(shoot);
            }
            (gone, !std::mem::replace(&mut inner.listed, true))
        };
        for shoot in gone {
            self.work_queue.add(&shoot);
        }
        if first {
            self.work_queue.add_all();
        }
    }

    pub(crate) fn write_eligibility(&self, shoot: &str) -> WriteEligibility {
        let inner = self.inner.lock();
        match inner.known.get(shoot) {
            _ if !inner.listed => WriteEligibility::Unlisted,
            None => WriteEligibility::Absent,
            Some(KnownCluster {
                write_eligibility: Ok(()),
                ..
            }) => WriteEligibility::Allowed,
            Some(KnownCluster {
                write_eligibility: Err(reason),
                ..
            }) => WriteEligibility::Stopped(reason.clone()),
        }
    }

    pub(crate) fn policy(&self, shoot: &str) -> ShootPolicy {
        let inner = self.inner.lock();
        let known = inner.known.get(shoot);
        known.map(|known| known.policy.clone()).unwrap_or_default()
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.inner.lock().listed
    }

    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        self.inner.lock().known.keys().cloned().collect()
    }

    /// Returns true if the API server's current Cluster allows writes. Reads the Cluster's version first, and the whole
    /// Cluster only if the index holds another version because the watch lags.
    pub(crate) async fn confirm(&self, shoot: &str) -> Result<bool, RequestError> {
        let api: Api<Cluster> = Api::all(self.seed.clone());
        let asked = self.mark();
        let meta = found(
            shoot,
            request_within(CLUSTER_DEADLINE, api.get_metadata(shoot)).await,
        )?;
        let version = meta.map(|meta| meta.metadata.resource_version.unwrap_or_default());
        match version {
            None => self.remove(shoot, |known| known.taken <= asked),
            Some(version) if self.version(shoot).as_deref() == Some(&*version) => {}
            Some(_) => {
                let asked = self.mark();
                match found(shoot, request_within(CLUSTER_DEADLINE, api.get(shoot)).await)? {
                    Some(cluster) => self.applied(&cluster, Origin::Read(asked)),
                    None => self.remove(shoot, |known| known.taken <= asked),
                }
            }
        }
        Ok(self.write_eligibility(shoot) == WriteEligibility::Allowed)
    }

    fn version(&self, shoot: &str) -> Option<Arc<str>> {
        let inner = self.inner.lock();
        inner.known.get(shoot).map(|known| known.version.clone())
    }
}

impl ClusterIndex {
    const fn next_mark(&mut self) -> IndexMark {
        self.mark = IndexMark(self.mark.0 + 1);
        self.mark
    }

    fn remove(&mut self, shoot: &str) {
        self.known.remove(shoot);
        self.removed = self.next_mark();
    }
}
