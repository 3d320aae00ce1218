//! A recovery and what was done for it, as the API shows it. Nothing is decided by it, except that a service that comes
//! and goes waits.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use watchdog_api::unix_time::UnixTime;
use watchdog_api::weeder::WeederConfig;

use super::deletion_result::DeletionResult;
use super::pods::Pod;
use super::recovery::Recovery;
use super::rule::{KeepReason, PodDecision, decide};

/// Entries of each list that a weeder keeps; the log and the metrics have all of them.
pub(crate) const KEPT_ENTRIES: usize = 32;

/// A successor that crashes within this time shows that the deletion did not help.
const SUCCESSOR_TIME: Duration = Duration::from_secs(60);

/// Weeders stay listed for this time after their end: at least the minute in which recoveries of a service are counted
/// and successors judged.
const KEPT_AFTER_END: Duration = Duration::from_secs(60);

/// For a while after a service recovered, a weeder deletes the crash-looping dependants that were there before.
#[derive(Debug, Clone)]
pub(crate) struct Weeder {
    pub(crate) recovery: Recovery,
    pub(crate) phase: Phase,
    /// When the last weeders of the service became active.
    pub(crate) recent: Vec<UnixTime>,
    pub(crate) deleted: u64,
    /// The latest deletions, oldest first.
    pub(crate) deletions: VecDeque<PodDeletion>,
    /// The latest pods that were left alone, oldest first.
    pub(crate) left_alone: VecDeque<LeftAlone>,
    /// The UIDs of all pods that were left alone: each is recorded once, however often its containers crash.
    left_alone_uids: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The service has not been ready for long enough.
    Queued,
    Active,
    /// `watchDuration` has elapsed.
    Ended,
    /// The service is no longer ready.
    Cancelled,
}

#[derive(Debug, Clone)]
pub(crate) struct PodDeletion {
    /// Counts the deletions of the weeder, from 1.
    pub(crate) sequence: u64,
    pub(crate) pod: Arc<Pod>,
    pub(crate) result: DeletionResult,
    /// UID of the successor that crashed within a minute, so that the deletion did not help.
    pub(crate) useless_by: Option<String>,
    pub(crate) at: UnixTime,
}

/// A dependant that crashes and is not deleted.
#[derive(Debug, Clone)]
pub(crate) struct LeftAlone {
    pub(crate) pod: Arc<Pod>,
    pub(crate) reason: KeepReason,
    pub(crate) at: UnixTime,
}

impl Phase {
    /// As a label value.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Active => "active",
            Self::Ended => "ended",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Weeder {
    pub(crate) const fn new(recovery: Recovery, recent: Vec<UnixTime>) -> Self {
        Self {
            recovery,
            phase: Phase::Queued,
            recent,
            deleted: 0,
            deletions: VecDeque::new(),
            left_alone: VecDeque::new(),
            left_alone_uids: BTreeSet::new(),
        }
    }

    /// The phase that it must have now, if that is another one.
    pub(crate) fn next_phase(&self, now: UnixTime) -> Option<Phase> {
        match self.phase {
            Phase::Queued | Phase::Active if self.recovery.ends_at < now => Some(Phase::Ended),
            Phase::Queued if self.recovery.deletes_from <= now => Some(Phase::Active),
            _ => None,
        }
    }

    /// The service is no longer ready. True if it changed.
    pub(crate) fn cancel(&mut self, now: UnixTime) -> bool {
        let was_live = self.is_live();
        if was_live {
            self.phase = Phase::Cancelled;
            self.recovery.ends_at = self.recovery.ends_at.min(now);
        }
        was_live
    }

    /// Decides about a pod; see [`decide`].
    pub(crate) fn decide(
        &self,
        pod: &Pod,
        service: &str,
        config: &WeederConfig,
        now: UnixTime,
    ) -> PodDecision {
        match self.phase {
            Phase::Active => decide(pod, service, &self.recovery, config, now),
            _ => PodDecision::NotConcerned,
        }
    }

    pub(crate) const fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Queued | Phase::Active)
    }

    pub(crate) fn is_outdated(&self, now: UnixTime) -> bool {
        !self.is_live() && self.recovery.ends_at.after(KEPT_AFTER_END) < now
    }

    /// A sentence for people: the current activity, or why the weeder ended.
    pub(crate) fn message(&self, service: &str) -> String {
        match self.phase {
            Phase::Queued => format!(
                "Service {service} is ready again. Its crashing dependants will be deleted from {}.",
                self.recovery.deletes_from
            ),
            Phase::Active if self.recovery.write.is_none() => format!(
                "The API server does not report when service {service} was written. Nothing is deleted, because it is \
                 unknown which pods were created before the recovery."
            ),
            Phase::Active => {
                format!("Deletes crashing dependants that were created before service {service} recovered.")
            }
            Phase::Ended => {
                let plural = if self.deleted == 1 { "" } else { "s" };
                format!(
                    "watchDuration elapsed; the weeder deleted {} pod{plural}.",
                    self.deleted
                )
            }
            Phase::Cancelled => "The service is no longer ready.".to_owned(),
        }
    }

    pub(crate) fn record(&mut self, pod: &Arc<Pod>, result: DeletionResult, now: UnixTime) {
        self.deleted += u64::from(result.is_done());
        let deletion = PodDeletion {
            sequence: self.deletions.back().map_or(0, |last| last.sequence) + 1,
            pod: pod.clone(),
            result,
            useless_by: None,
            at: now,
        };
        push(&mut self.deletions, deletion);
    }

    /// The result of a deletion in a sentence for people.
    pub(crate) fn result_message(&self, deletion: &PodDeletion) -> String {
        let PodDeletion { result, pod, .. } = deletion;
        if result.is_obsolete() {
            return format!("Left alone: {result}.");
        }
        if let DeletionResult::Failed(why) = result {
            return format!("Failed, trying again if the pod is still there: {why}.");
        }
        if !result.is_done() {
            return format!("Not deleted, trying again: {result}.");
        }
        let what = match result {
            DeletionResult::KeptBack => "Not deleted, because the mode is observe",
            _ => "Deleted",
        };
        let (crash, since) = (&pod.crash, self.recovery.at);
        format!(
            "{what}: {crash} was in CrashLoopBackOff, and its service has been ready again since {since}."
        )
    }

    /// Records a pod that is left alone. True the first time.
    pub(crate) fn leave_alone(&mut self, pod: &Arc<Pod>, reason: KeepReason, now: UnixTime) -> bool {
        let is_first = self.left_alone_uids.insert(pod.uid.clone());
        if is_first {
            let pod = pod.clone();
            push(&mut self.left_alone, LeftAlone { pod, reason, at: now });
        }
        is_first
    }

    /// A deletion was useless if the pod's controller replaced the deleted pod by this one, and it crashed within a
    /// minute of its creation. True the first time.
    pub(crate) fn judge_by(&mut self, pod: &Pod) -> bool {
        let (Some(owner), Some(created)) = (&pod.owner, pod.created) else {
            return false;
        };
        let crashed_soon =
            { pod.crash.ended_at }.is_some_and(|ended_at| ended_at.since(created) <= SUCCESSOR_TIME);
        let is_counted = |deletion: &PodDeletion| deletion.useless_by.as_ref() == Some(&pod.uid);
        if !crashed_soon || self.deletions.iter().any(is_counted) {
            return false;
        }
        let replaced = |deletion: &&mut PodDeletion| {
            let by_same = { deletion.pod.owner.as_ref() }.is_some_and(|of| of.uid == owner.uid);
            let is_younger = deletion.pod.created < Some(created);
            let is_open = deletion.result == DeletionResult::Deleted && deletion.useless_by.is_none();
            is_open && by_same && is_younger
        };
        let deletion = self.deletions.iter_mut().find(replaced);
        deletion
            .map(|deletion| deletion.useless_by = Some(pod.uid.clone()))
            .is_some()
    }
}

fn push<T>(entries: &mut VecDeque<T>, entry: T) {
    if entries.len() >= KEPT_ENTRIES {
        entries.pop_front();
    }
    entries.push_back(entry);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::{at, crashing, recovery};

    #[test]
    fn a_successor_that_crashes_within_a_minute_makes_a_deletion_useless_once() {
        let mut weeder = Weeder::new(recovery(100, 50), Vec::new());
        let old = Arc::new(crashing("old", "kcm", 50, 1));
        weeder.record(&old, DeletionResult::Deleted, at(101));
        let successor = |created: i64, ended: i64| {
            let mut pod = crashing("new", "kcm", created, 2);
            pod.owner.clone_from(&old.owner);
            pod.crash.ended_at = Some(at(ended));
            pod
        };
        let mut other = successor(102, 110);
        other.owner.as_mut().unwrap().uid = "other".to_owned();
        assert!(!weeder.judge_by(&old), "it was deleted itself");
        assert!(!weeder.judge_by(&successor(50, 60)), "it was there before");
        assert!(!weeder.judge_by(&other), "of another controller");
        assert!(!weeder.judge_by(&successor(102, 163)), "it ran for a minute");
        assert!(weeder.judge_by(&successor(102, 110)));
        // Another replica of the same controller runs well.
        weeder.record(
            &Arc::new(crashing("old-2", "kcm", 50, 3)),
            DeletionResult::Deleted,
            at(103),
        );
        weeder.deletions[1].pod = Arc::new(Pod {
            owner: old.owner.clone(),
            ..crashing("old-2", "kcm", 50, 3)
        });
        assert!(!weeder.judge_by(&successor(102, 110)), "counted once");
        assert_eq!(weeder.deletions[0].useless_by.as_deref(), Some("new-102"));
        assert_eq!(weeder.deletions[1].useless_by, None);
    }

    /// The watch may show that the pod is gone, and then nothing corrects what is shown.
    #[test]
    fn a_deletion_without_an_answer_is_not_called_refused() {
        let mut weeder = Weeder::new(recovery(100, 50), Vec::new());
        let pod = Arc::new(crashing("old", "kcm", 50, 1));
        for (result, message) in [
            (
                DeletionResult::Failed("no answer within 2.8s".to_owned()),
                "Failed, trying again if the pod is still there: no answer within 2.8s.",
            ),
            (
                DeletionResult::Throttled(None),
                "Not deleted, trying again: the API server throttles (429).",
            ),
        ] {
            weeder.record(&pod, result, at(101));
            let last = weeder.deletions.back().unwrap();
            assert_eq!(weeder.result_message(last), message);
        }
    }

    #[test]
    fn lists_are_bounded() {
        let mut weeder = Weeder::new(recovery(100, 50), Vec::new());
        for i in 0..100 {
            let pod = Arc::new(crashing(&format!("pod-{i}"), "kcm", 200, 1));
            weeder.record(&pod, DeletionResult::Gone, at(200));
            weeder.leave_alone(&pod, KeepReason::YoungerThanRecovery, at(200));
        }
        let lengths = (weeder.deletions.len(), weeder.left_alone.len());
        assert_eq!(lengths, (KEPT_ENTRIES, KEPT_ENTRIES));
        let last = weeder.deletions.back().unwrap().sequence;
        assert_eq!((last, weeder.deleted), (100, 0));
    }
}
