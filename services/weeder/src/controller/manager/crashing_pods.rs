//! The pods in a crash loop, as their watches bring them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::WeederManager;
use crate::controller::task::Finding;
use crate::domain::dependants::PodQuery;
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::pods::Pod;
use watchdog_api::unix_time::UnixTime;

#[derive(Debug)]
pub(super) struct CrashingPod {
    pub(super) pod: Arc<Pod>,
    // The watches that see it.
    pub(super) queries: BTreeSet<Arc<PodQuery>>,
    pub(super) found_at: UnixTime,
    pub(super) state: DeletionState,
    pub(super) failures: u32,
    // It is not tried again before then.
    pub(super) retry_at: UnixTime,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum DeletionState {
    None,
    InFlight,
    Deleted,
    /// Kept back in mode observe. It counts as deleted until it is gone.
    KeptBack {
        /// The weeder that would have deleted it.
        by: NamespacedName,
        at: UnixTime,
    },
}

impl WeederManager {
    pub(crate) fn pod_applied(&mut self, pod: Pod, query: &Arc<PodQuery>, now: UnixTime) {
        self.judge_by(&pod, now);
        let key = pod.key.clone();
        if pod.crash_loop().is_none() {
            let kept_back = |known: &CrashingPod| {
                known.pod.uid == pod.uid && matches!(known.state, DeletionState::KeptBack { .. })
            };
            if !self.pods.get(&key).is_some_and(kept_back) {
                self.find_gone(&key);
                self.forget_pod(&key);
            }
            return;
        }
        let fresh = match self.pods.get_mut(&key) {
            Some(known) if known.pod.uid == pod.uid => {
                let newer = known.pod.resource_version != pod.resource_version;
                known.pod = Arc::new(pod);
                known.queries.insert(query.clone());
                newer && known.state == DeletionState::None
            }
            _ => {
                let crashing = CrashingPod {
                    pod: Arc::new(pod),
                    queries: BTreeSet::from([query.clone()]),
                    found_at: now,
                    state: DeletionState::None,
                    failures: 0,
                    retry_at: now,
                };
                self.find_gone(&key);
                self.pods.insert(key.clone(), crashing);
                true
            }
        };
        if fresh {
            self.schedule([key], now);
        }
    }

    /// A watch does not see a pod any more; another one may.
    pub(crate) fn pod_gone(&mut self, key: &NamespacedName, query: &PodQuery) {
        if let Some(known) = self.pods.get_mut(key) {
            known.queries.remove(query);
            if known.queries.is_empty() {
                self.find_gone(key);
                self.forget_pod(key);
            }
        }
    }

    /// A watch has listed all its pods: these and no others.
    pub(crate) fn pods_synced(&mut self, query: &PodQuery, live: &BTreeSet<NamespacedName>) {
        let gone = self.pods.keys().filter(|key| !live.contains(key));
        let gone: Vec<NamespacedName> = gone.cloned().collect();
        for key in gone {
            self.pod_gone(&key, query);
        }
    }

    /// A pod is gone. Somebody else has deleted it if this program only observes.
    fn find_gone(&mut self, key: &NamespacedName) {
        if let Some(known) = self.pods.get(key)
            && let DeletionState::KeptBack { by, at } = &known.state
        {
            self.findings.push(Finding::DeletedByOthers {
                key: by.clone(),
                pod: known.pod.clone(),
                kept_back_at: *at,
            });
        }
    }

    pub(super) fn forget_pod(&mut self, key: &NamespacedName) {
        self.pods.remove(key);
        self.due_pods.remove(key);
    }
}
