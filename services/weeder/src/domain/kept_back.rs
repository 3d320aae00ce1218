//! The pods that mode observe keeps back.

use std::collections::BTreeMap;
use std::time::Duration;

use watchdog_api::unix_time::UnixTime;

use super::pods::Pod;
use super::recovery::Recovery;

/// By UID, when pods were kept back. No data show that: mode observe writes nothing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptBackPods(BTreeMap<String, UnixTime>);

impl KeptBackPods {
    /// A pod was not deleted, because the mode is observe.
    pub(crate) fn add(&mut self, pod: &Pod, now: UnixTime) {
        self.0.insert(pod.uid.clone(), now);
    }

    /// For the recoveries until it was kept back a pod counts as deleted, also when its containers run for a moment and
    /// crash again.
    pub(crate) fn counts_as_deleted(&self, pod: &Pod, recovery: &Recovery) -> bool {
        self.0.get(&pod.uid).is_some_and(|at| recovery.at <= *at)
    }

    /// Forgets the pods whose recoveries have all ended.
    pub(crate) fn forget_old(&mut self, watch_duration: Duration, now: UnixTime) {
        self.0.retain(|_, at| now <= at.after(watch_duration));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::{at, config, crashing, recovery};

    #[test]
    fn a_pod_counts_as_deleted_for_the_recoveries_until_it_was_kept_back() {
        let mut pods = KeptBackPods::default();
        let (pod, successor) = (crashing("kcm", "kcm", 50, 1), crashing("kcm", "kcm", 90, 5));
        pods.add(&pod, at(100));
        for (second, expected) in [(60, true), (100, true), (101, false)] {
            let recovery = recovery(second, 3);
            assert_eq!(pods.counts_as_deleted(&pod, &recovery), expected, "{second}");
            assert!(!pods.counts_as_deleted(&successor, &recovery), "{second}");
        }
        pods.add(&pod, at(101));
        assert!(pods.counts_as_deleted(&pod, &recovery(101, 3)));
    }

    #[test]
    fn a_pod_is_known_until_its_recoveries_have_ended() {
        let (mut pods, pod) = (KeptBackPods::default(), crashing("kcm", "kcm", 50, 1));
        let (last, watch_duration) = (recovery(100, 3), config().watch_duration);
        pods.add(&pod, last.at);
        pods.forget_old(watch_duration, last.ends_at);
        assert!(pods.counts_as_deleted(&pod, &last));
        pods.forget_old(watch_duration, at(401));
        assert_eq!(pods, KeptBackPods::default());
    }
}
