//! The index of Clusters: which shoots there are, and whether they may be written to (S4).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use watchdog_api::cluster::Cluster;
use watchdog_api::eligibility::{SkipReason, may_continue};
use watchdog_kube::client::{RequestError, request_within};

use super::version;
use crate::wake::Wakes;

/// What the index says of a shoot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// The Clusters are not listed yet.
    Unlisted,
    /// There is no Cluster of this name.
    Absent,
    /// It may be written to.
    Allowed,
    /// It must not be written to.
    Stopped(SkipReason),
}

/// Why a shoot must not be written to now.
#[derive(Debug)]
pub enum Refusal {
    /// Its Cluster forbids it.
    Forbidden,
    /// The API server could not be asked.
    NotAsked(RequestError),
    /// The watch did not bring the Cluster as it is now.
    Behind(Duration),
}

/// The index.
pub struct Clusters {
    seed: kube::Client,
    wakes: Arc<Wakes>,
    inner: Mutex<Inner>,
    // Counts the changes, for those who wait for one.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    listed: bool,
    known: HashMap<Arc<str>, Known>,
}

#[derive(Debug)]
struct Known {
    version: Arc<str>,
    standing: Result<(), SkipReason>,
}

impl Clusters {
    /// An empty index.
    #[must_use]
    pub fn new(seed: kube::Client, wakes: Arc<Wakes>) -> Self {
        Self {
            seed,
            wakes,
            inner: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }

    /// A Cluster is there, new or changed.
    pub fn applied(&self, cluster: &Cluster) {
        let shoot = cluster.name();
        if shoot.is_empty() {
            return;
        }
        let standing = may_continue(cluster).map(drop);
        let version = cluster
            .metadata
            .resource_version
            .as_deref()
            .unwrap_or_default()
            .into();
        let known = Known { version, standing };
        let changed = {
            let mut inner = self.inner.lock();
            let before = inner.known.get(shoot).map(|known| known.standing.clone());
            let changed = before.as_ref() != Some(&known.standing);
            if changed && let Err(SkipReason::Malformed(reason)) = &known.standing {
                tracing::warn!(shoot, %reason, "the Cluster cannot be used, the shoot is left alone");
            }
            inner.known.insert(shoot.into(), known);
            changed
        };
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
        if changed {
            self.wakes.one(shoot);
        }
    }

    /// A Cluster is gone.
    pub fn deleted(&self, shoot: &str) {
        self.inner.lock().known.remove(shoot);
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
        self.wakes.one(shoot);
    }

    /// These Clusters exist and no others.
    pub fn synced(&self, exist: &BTreeSet<String>) {
        let (gone, first) = {
            let mut inner = self.inner.lock();
            let gone: Vec<Arc<str>> = inner
                .known
                .keys()
                .filter(|shoot| !exist.contains(&***shoot))
                .cloned()
                .collect();
            for shoot in &gone {
                inner.known.remove(shoot);
            }
            (gone, !std::mem::replace(&mut inner.listed, true))
        };
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
        for shoot in gone {
            self.wakes.one(&shoot);
        }
        if first {
            self.wakes.all();
        }
    }

    /// What is known of a shoot.
    #[must_use]
    pub fn standing(&self, shoot: &str) -> Standing {
        let inner = self.inner.lock();
        match inner.known.get(shoot) {
            _ if !inner.listed => Standing::Unlisted,
            None => Standing::Absent,
            Some(Known { standing: Ok(()), .. }) => Standing::Allowed,
            Some(Known {
                standing: Err(reason),
                ..
            }) => Standing::Stopped(reason.clone()),
        }
    }

    /// All shoots.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        self.inner.lock().known.keys().cloned().collect()
    }

    /// Makes sure, right before a write, that the Cluster still allows it: asks the API server for the Cluster's
    /// version, for nothing else of it, and waits until the index has caught up with it.
    ///
    /// # Errors
    /// When it does not allow it, or when that cannot be found out within the time given.
    pub async fn confirm(&self, shoot: &str, within: Duration) -> Result<(), Refusal> {
        let deadline = Instant::now() + within;
        let api: Api<Cluster> = Api::all(self.seed.clone());
        let meta = request_within(within, api.get_metadata_opt(shoot))
            .await
            .map_err(Refusal::NotAsked)?;
        let wanted = meta.map(|meta| meta.metadata.resource_version.unwrap_or_default());
        let mut changes = self.changes.subscribe();
        loop {
            changes.mark_unchanged();
            // Within the deadline also when the API server says that it is gone: the caller decides by the index,
            // and would come back at once with the same wish.
            match (&wanted, self.known(shoot)) {
                (None, None) => return Err(Refusal::Forbidden),
                (Some(wanted), Some((version, allowed))) if version::at_least(&version, wanted) => {
                    return if allowed { Ok(()) } else { Err(Refusal::Forbidden) };
                }
                _ => {}
            }
            match tokio::time::timeout_at(deadline, changes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(Refusal::Behind(within)),
            }
        }
    }

    fn known(&self, shoot: &str) -> Option<(Arc<str>, bool)> {
        let inner = self.inner.lock();
        inner
            .known
            .get(shoot)
            .map(|known| (known.version.clone(), known.standing.is_ok()))
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Forbidden => f.write_str("the Cluster forbids it or is gone"),
            Self::NotAsked(error) => write!(f, "the Cluster could not be read before the write: {error}"),
            Self::Behind(waited) => {
                write!(
                    f,
                    "the Cluster has changed, and the watch has not brought the change within {waited:?}"
                )
            }
        }
    }
}
