//! A recovery and what was done for it, as the API shows it. Nothing is decided by it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use watchdog_api::unix_time::UnixTime;

use super::dependants::Dependants;
use super::failure::RequestFailure;
use super::namespaced_name::NamespacedName;
use super::pods::{ControllerRef, CrashLoop, Pod};
use super::recovery::Recovery;
use super::rule::KeepReason;

/// Entries of each list that a weeder keeps; the log and the metrics have all of them.
pub(crate) const KEPT_ENTRIES: usize = 32;

/// A successor that crashes within this time shows that the deletion did not help.
const SUCCESSOR_TIME: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The service has not been ready for long enough.
    Queued,
    Active,
    /// Its time is over.
    Ended,
    /// It was stopped before its time was over.
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    NotReady,
    /// The configuration no longer names the service.
    NotConfigured,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeletionResult {
    Deleted,
    /// It would have been deleted; the mode is observe.
    KeptBack,
    /// The pod was gone, replaced or changed: left alone.
    Obsolete,
    /// The API server refused or did not answer; it is tried again.
    Refused,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodDeletion {
    /// Counts the deletions of the weeder, from 1.
    pub(crate) sequence: u64,
    pub(crate) pod: Arc<str>,
    pub(crate) uid: String,
    pub(crate) owner: Option<ControllerRef>,
    pub(crate) crash: CrashLoop,
    pub(crate) result: DeletionResult,
    /// True when a successor crashed within a minute.
    pub(crate) useless: bool,
    /// The result in a sentence for people.
    pub(crate) message: String,
    pub(crate) at: UnixTime,
}

/// A dependant that crashes and is not deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeftAlone {
    pub(crate) pod: Arc<str>,
    pub(crate) uid: String,
    pub(crate) owner: Option<ControllerRef>,
    pub(crate) crash: CrashLoop,
    pub(crate) reason: KeepReason,
    pub(crate) at: UnixTime,
}

/// For a while after a service recovered, a weeder deletes the crash-looping dependants that were there before.
#[derive(Debug, Clone)]
pub(crate) struct Weeder {
    pub(crate) key: NamespacedName,
    pub(crate) recovery: Recovery,
    pub(crate) phase: Phase,
    pub(crate) dependants: Arc<Dependants>,
    pub(crate) deleted: u64,
    /// The latest deletions, oldest first.
    pub(crate) deletions: VecDeque<PodDeletion>,
    /// The latest pods that were left alone, oldest first.
    pub(crate) left_alone: VecDeque<LeftAlone>,
    /// A sentence for people: the current activity, or why the weeder ended.
    pub(crate) message: String,
}

// === impl StopReason ===

impl StopReason {
    pub(crate) const fn sentence(self) -> &'static str {
        match self {
            Self::NotReady => "The service is not ready again.",
            Self::NotConfigured => "The configuration no longer names the service.",
        }
    }
}

// === impl Weeder ===

impl Weeder {
    pub(crate) fn new(key: NamespacedName, recovery: Recovery, dependants: Arc<Dependants>) -> Self {
        let from = recovery.deletes_from;
        let message = format!(
            "Service {} is ready again. Its dependants are deleted from {from} on.",
            key.name
        );
        Self {
            key,
            recovery,
            phase: Phase::Queued,
            dependants,
            deleted: 0,
            deletions: VecDeque::new(),
            left_alone: VecDeque::new(),
            message,
        }
    }

    pub(crate) fn activate(&mut self) {
        self.phase = Phase::Active;
        let service = &self.key.name;
        self.message = match self.recovery.write {
            Some(_) => format!(
                "Deletes the dependants that crash and were there before service {service} recovered."
            ),
            None => format!(
                "The API server does not say when service {service} was written. Nothing is deleted, because nothing \
                 shows which pods were there before."
            ),
        };
    }

    pub(crate) const fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Queued | Phase::Active)
    }

    /// The time that is left.
    pub(crate) fn remaining(&self, now: UnixTime) -> Duration {
        match self.is_live() {
            true => self.recovery.ends_at.since(now),
            false => Duration::ZERO,
        }
    }

    pub(crate) fn end(&mut self) {
        self.phase = Phase::Ended;
        let pods = if self.deleted == 1 { "pod" } else { "pods" };
        self.message = format!("Its time is over; it deleted {} {pods}.", self.deleted);
    }

    pub(crate) fn cancel(&mut self, why: StopReason, now: UnixTime) {
        self.phase = Phase::Cancelled;
        self.recovery.ends_at = self.recovery.ends_at.min(now);
        self.message = why.sentence().to_owned();
    }

    /// Records the answer to a deletion, or that it was kept back.
    pub(crate) fn record(
        &mut self,
        pod: &Pod,
        crash: &CrashLoop,
        answer: Result<(), &RequestFailure>,
        kept_back: bool,
        now: UnixTime,
    ) {
        let (service, since) = (&self.key.name, self.recovery.at);
        let why =
            format!("{crash} was in CrashLoopBackOff, and service {service} is ready again since {since}.");
        let (result, message) = match answer {
            Ok(()) if kept_back => (
                DeletionResult::KeptBack,
                format!("Not deleted, because the mode is observe: {why}"),
            ),
            Ok(()) => (DeletionResult::Deleted, format!("Deleted: {why}")),
            Err(failure @ (RequestFailure::Gone | RequestFailure::Changed)) => {
                (DeletionResult::Obsolete, format!("Left alone: {failure}."))
            }
            Err(failure) => (
                DeletionResult::Refused,
                format!("Not deleted, trying again: {failure}."),
            ),
        };
        self.deleted += u64::from(answer.is_ok());
        let sequence = self.deletions.back().map_or(0, |last| last.sequence) + 1;
        push(
            &mut self.deletions,
            PodDeletion {
                sequence,
                pod: pod.key.name.clone(),
                uid: pod.uid.clone(),
                owner: pod.owner.clone(),
                crash: crash.clone(),
                result,
                useless: false,
                message,
                at: now,
            },
        );
    }

    /// Records that a pod is left alone. False if that is known.
    pub(crate) fn leave_alone(
        &mut self,
        pod: &Pod,
        crash: &CrashLoop,
        reason: KeepReason,
        now: UnixTime,
    ) -> bool {
        if self.left_alone.iter().any(|left| left.uid == pod.uid) {
            return false;
        }
        push(
            &mut self.left_alone,
            LeftAlone {
                pod: pod.key.name.clone(),
                uid: pod.uid.clone(),
                owner: pod.owner.clone(),
                crash: crash.clone(),
                reason,
                at: now,
            },
        );
        true
    }

    /// A deletion was useless if the pod's controller replaced the deleted pod by this one, and it crashed within a
    /// minute of its creation. True the first time.
    pub(crate) fn judge_by(&mut self, pod: &Pod) -> bool {
        let (Some(crash), Some(owner), Some(created)) = (pod.crash_loop(), &pod.owner, pod.created) else {
            return false;
        };
        let crashed_soon = crash
            .ended_at
            .is_some_and(|ended_at| ended_at.since(created) <= SUCCESSOR_TIME);
        let replaced = |deletion: &&mut PodDeletion| {
            let by_same = deletion.owner.as_ref().is_some_and(|of| of.uid == owner.uid);
            deletion.result == DeletionResult::Deleted
                && !deletion.useless
                && by_same
                && deletion.uid != pod.uid
        };
        match self.deletions.iter_mut().find(replaced) {
            Some(deletion) if crashed_soon => {
                deletion.useless = true;
                true
            }
            _ => false,
        }
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
    use crate::domain::fixtures::{at, crashing, dependants, recovery};

    fn weeder() -> Weeder {
        let service = NamespacedName::new("shoot", "kube-apiserver");
        Weeder::new(service, recovery(100, 50), dependants("kube-apiserver"))
    }

    #[test]
    fn a_successor_that_crashes_within_a_minute_makes_a_deletion_useless_once() {
        let mut weeder = weeder();
        let old = crashing("old", "kcm", 50, 1);
        let crash = old.crash_loop().unwrap().clone();
        weeder.record(&old, &crash, Ok(()), false, at(101));
        let successor = |created: i64, ended: i64| {
            let mut pod = crashing("new", "kcm", created, 2);
            pod.owner.clone_from(&old.owner);
            pod.crashes[0].ended_at = Some(at(ended));
            pod
        };
        let mut other = successor(102, 110);
        other.owner.as_mut().unwrap().uid = "other".to_owned();
        assert!(!weeder.judge_by(&old), "it was deleted itself");
        assert!(!weeder.judge_by(&other), "of another controller");
        assert!(!weeder.judge_by(&successor(102, 163)), "it ran for a minute");
        assert!(weeder.judge_by(&successor(102, 110)));
        assert!(!weeder.judge_by(&successor(102, 110)), "counted once");
        assert!(weeder.deletions[0].useless);
    }

    #[test]
    fn lists_are_bounded_and_a_pod_is_left_alone_once() {
        let mut weeder = weeder();
        for i in 0..100 {
            let pod = crashing(&format!("pod-{i}"), "kcm", 200, 1);
            let crash = pod.crash_loop().unwrap().clone();
            weeder.record(&pod, &crash, Err(&RequestFailure::Gone), false, at(200));
            let younger = KeepReason::YoungerThanRecovery;
            assert!(weeder.leave_alone(&pod, &crash, younger, at(200)));
            assert!(!weeder.leave_alone(&pod, &crash, younger, at(201)));
        }
        assert_eq!(
            (weeder.deletions.len(), weeder.left_alone.len()),
            (KEPT_ENTRIES, KEPT_ENTRIES)
        );
        assert_eq!(
            (weeder.deletions.back().unwrap().sequence, weeder.deleted),
            (100, 0)
        );
    }
}
