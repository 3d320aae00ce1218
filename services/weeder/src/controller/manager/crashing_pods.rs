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
        let known = self.known_pod(&pod);
        if pod.crash_loop().is_none() {
            if !known.is_some_and(|known| matches!(known.state, DeletionState::KeptBack { .. })) {
                self.forget_pod(&key);
            }
            return;
        }
        if let Some(known) = known {
            let newer = known.pod.resource_version != pod.resource_version;
            known.pod = Arc::new(pod);
            known.queries.insert(query.clone());
            if !newer || known.state != DeletionState::None {
                return;
            }
        } else {
            let crashing = CrashingPod {
                pod: Arc::new(pod),
                queries: BTreeSet::from([query.clone()]),
                found_at: now,
                state: DeletionState::None,
                failures: 0,
                retry_at: now,
            };
            self.forget_pod(&key);
            self.pods.insert(key.clone(), crashing);
        }
        self.due_pods.expedite(key, now);
    }

    /// A watch does not see a pod any more; another one may.
    pub(crate) fn pod_gone(&mut self, key: &NamespacedName, query: &PodQuery) {
        if let Some(known) = self.pods.get_mut(key) {
            known.queries.remove(query);
            if known.queries.is_empty() {
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

    /// The pod with this UID, if it is known.
    pub(super) fn known_pod(&mut self, pod: &Pod) -> Option<&mut CrashingPod> {
        let known = self.pods.get_mut(&pod.key);
        known.filter(|known| known.pod.uid == pod.uid)
    }

    /// A pod is gone or runs. If its deletion was kept back, somebody else has deleted it.
    pub(super) fn forget_pod(&mut self, key: &NamespacedName) {
        self.due_pods.remove(key);
        let Some(CrashingPod { pod, state, .. }) = self.pods.remove(key) else {
            return;
        };
        if let DeletionState::KeptBack { by, at } = state {
            self.findings.push(Finding::DeletedByOthers {
                key: by,
                pod,
                kept_back_at: at,
            });
        }
    }
}
