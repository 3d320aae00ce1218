//! One weeder, as the API shows it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::dependants::Dependants;
use super::failure::RequestFailure;
use super::namespaced_name::NamespacedName;
use super::pods::{ControllerRef, CrashLoop, Pod};
use watchdog_api::unix_time::UnixTime;

/// Entries of each list that a weeder keeps; the log and the metrics have all of them.
pub(crate) const KEPT_ENTRIES: usize = 32;

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
    /// The namespace is terminating or gone.
    NamespaceEnded,
    NotOwned,
    /// The configuration no longer names the service.
    NotConfigured,
    /// The annotation that declared the dependants is gone.
    NotAnnotated,
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
    pub(crate) service_ready_since: UnixTime,
    pub(crate) result: DeletionResult,
    /// True when a successor crashed within a minute.
    pub(crate) useless: bool,
    /// The result in a sentence for people.
    pub(crate) message: String,
    pub(crate) at: UnixTime,
}

/// A container that keeps crashing although the service is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeftAlone {
    pub(crate) pod: Arc<str>,
    pub(crate) owner: Option<ControllerRef>,
    pub(crate) crash: CrashLoop,
    pub(crate) at: UnixTime,
}

/// For a while after a service became ready, a weeder deletes the crash-looping dependants of that service.
#[derive(Debug, Clone)]
pub(crate) struct Weeder {
    pub(crate) key: NamespacedName,
    pub(crate) phase: Phase,
    pub(crate) started_at: UnixTime,
    pub(crate) deletes_from: UnixTime,
    /// When it ends or ended.
    pub(crate) ends_at: UnixTime,
    /// True when the service was found ready, and was not seen to become ready.
    pub(crate) first_sight: bool,
    pub(crate) dependants: Arc<Dependants>,
    pub(crate) deleted: u64,
    /// The latest deletions, oldest first.
    pub(crate) deletions: VecDeque<PodDeletion>,
    /// Containers that the weeder gave up, oldest first.
    pub(crate) left_alone: VecDeque<LeftAlone>,
    /// A sentence for people: the current activity, or why the weeder ended.
    pub(crate) message: String,
    // The service is not ready: its dependants crash for good reason, and deleting them would not help.
    paused: bool,
}

// === impl StopReason ===

impl StopReason {
    pub(crate) const fn sentence(self) -> &'static str {
        match self {
            Self::NamespaceEnded => "The namespace is terminating or gone.",
            Self::NotOwned => "Another replica owns the namespace now.",
            Self::NotConfigured => "The configuration no longer names the service.",
            Self::NotAnnotated => "The service no longer declares dependants.",
        }
    }
}

// === impl Weeder ===

impl Weeder {
    /// The weeder of a service that is ready; it deletes after `pause`, for `watch_duration`.
    pub(crate) fn new(
        key: NamespacedName,
        dependants: Arc<Dependants>,
        first_sight: bool,
        pause: Duration,
        watch_duration: Duration,
        now: UnixTime,
    ) -> Self {
        let deletes_from = now.after(pause);
        let service = &key.name;
        let message = match (pause.is_zero(), first_sight) {
            (false, _) => format!("Waiting until service {service} has been ready for {pause:?}."),
            (true, false) => FOLLOWING.to_owned(),
            (true, true) => format!(
                "Service {service} was ready already: deleting only pods that crashed while it was not ready."
            ),
        };
        Self {
            key,
            phase: if pause.is_zero() {
                Phase::Active
            } else {
                Phase::Queued
            },
            started_at: now,
            deletes_from,
            ends_at: deletes_from.after(watch_duration),
            first_sight,
            dependants,
            deleted: 0,
            deletions: VecDeque::new(),
            left_alone: VecDeque::new(),
            message,
            paused: false,
        }
    }

    pub(crate) const fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Queued | Phase::Active)
    }

    /// True while it lives and its service is not ready.
    pub(crate) const fn is_paused(&self) -> bool {
        self.is_live() && self.paused
    }

    /// True while it lives and its service is ready.
    pub(crate) const fn is_weeding(&self) -> bool {
        self.is_live() && !self.paused
    }

    /// True when it is responsible for pods with these labels.
    pub(crate) fn weeds(&self, labels: &BTreeMap<String, String>) -> bool {
        self.is_weeding() && self.dependants.include(labels)
    }

    pub(crate) fn remaining(&self, now: UnixTime) -> Duration {
        if self.is_live() {
            self.ends_at.since(now)
        } else {
            Duration::ZERO
        }
    }

    pub(crate) fn activate(&mut self) {
        self.phase = Phase::Active;
        if self.is_weeding() && !self.first_sight {
            FOLLOWING.clone_into(&mut self.message);
        }
    }

    /// The service is not ready: nothing is deleted until another weeder takes the place of this one.
    pub(crate) fn pause(&mut self) -> bool {
        self.message = format!(
            "Service {} is not ready: nothing is deleted until it is.",
            self.key.name
        );
        !std::mem::replace(&mut self.paused, true)
    }

    pub(crate) fn end(&mut self) {
        self.phase = Phase::Ended;
        let kept_back = |deletion: &PodDeletion| deletion.result == DeletionResult::KeptBack;
        let verb = if self.deletions.iter().any(kept_back) {
            "would have deleted"
        } else {
            "deleted"
        };
        self.message = match self.deleted {
            0 => "Its time is over; there was nothing to delete.".to_owned(),
            1 => format!("Its time is over; it {verb} 1 pod."),
            n => format!("Its time is over; it {verb} {n} pods."),
        };
    }

    pub(crate) fn cancel(&mut self, why: StopReason, now: UnixTime) {
        self.phase = Phase::Cancelled;
        self.ends_at = now;
        why.sentence().clone_into(&mut self.message);
    }

    /// Remembers the answer to a deletion, which mode observe may have `kept_back`. A second refusal takes the place of
    /// the first, and so does a second state that was obsolete, so that retries do not push out what else happened.
    pub(crate) fn record(
        &mut self,
        pod: &Pod,
        crash: &CrashLoop,
        service_ready_since: UnixTime,
        answer: Result<(), &RequestFailure>,
        kept_back: bool,
        at: UnixTime,
    ) {
        self.deleted += u64::from(answer.is_ok());
        let service = &self.key.name;
        let why = format!("CrashLoopBackOff of {crash} while service {service} is ready again");
        let (result, message) = match answer {
            Ok(()) if kept_back => {
                let message = format!("Not deleted, because the mode is observe: {why}.");
                (DeletionResult::KeptBack, message)
            }
            Ok(()) => (DeletionResult::Deleted, format!("{why}.")),
            Err(failure @ (RequestFailure::Gone | RequestFailure::Changed)) => {
                (DeletionResult::Obsolete, format!("Left alone: {failure}."))
            }
            Err(failure) => {
                let message = format!("{why}; the pod could not be deleted: {failure}.");
                (DeletionResult::Refused, message)
            }
        };
        let last = self.deletions.iter_mut().rev().find(|last| last.uid == pod.uid);
        if let Some(last) = last.filter(|last| last.result == result && answer.is_err()) {
            last.crash = crash.clone();
            last.message = message;
            last.at = at;
            return;
        }
        let deletion = PodDeletion {
            sequence: self.deletions.back().map_or(0, |last| last.sequence) + 1,
            pod: pod.key.name.clone(),
            uid: pod.uid.clone(),
            owner: pod.owner.clone(),
            crash: crash.clone(),
            service_ready_since,
            result,
            useless: false,
            message,
            at,
        };
        // What was left alone goes before what was done.
        let obsolete = |deletion: &PodDeletion| deletion.result == DeletionResult::Obsolete;
        let oldest = self.deletions.iter().position(obsolete).unwrap_or(0);
        push(&mut self.deletions, deletion, oldest);
    }

    /// The latest deletion for this container of this controller did not help: the successor crashed.
    pub(crate) fn mark_useless(&mut self, successor: &Pod, container: &str) -> bool {
        let same = |deletion: &&mut PodDeletion| {
            deletion.result == DeletionResult::Deleted
                && deletion.owner == successor.owner
                // A pod without a controller is replaced by one of its name.
                && (deletion.owner.is_some() || deletion.pod == successor.key.name)
                && deletion.crash.container == container
        };
        let found = self.deletions.iter_mut().rev().find(same);
        found.is_some_and(|deletion| !std::mem::replace(&mut deletion.useless, true))
    }

    /// It gives up a container.
    pub(crate) fn leave_alone(&mut self, pod: &Pod, crash: &CrashLoop, at: UnixTime) {
        let left = LeftAlone {
            pod: pod.key.name.clone(),
            owner: pod.owner.clone(),
            crash: crash.clone(),
            at,
        };
        push(&mut self.left_alone, left, 0);
    }
}

const FOLLOWING: &str = "Deleting dependants that crash.";

/// Appends to a list that keeps [`KEPT_ENTRIES`]; the item at `dispensable` makes room.
fn push<T>(list: &mut VecDeque<T>, item: T, dispensable: usize) {
    if list.len() == KEPT_ENTRIES {
        list.remove(dispensable);
    }
    list.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::{at, crashing, dependants};

    fn weeder() -> Weeder {
        let service = NamespacedName::new("shoot", "kube-apiserver");
        let (dependants, life) = (dependants("kube-apiserver"), Duration::from_secs(300));
        Weeder::new(service, dependants, false, Duration::ZERO, life, at(100.0))
    }

    #[test]
    fn a_deletion_is_useless_for_a_successor_of_the_same_controller_and_container() {
        let mut weeder = weeder();
        let pod = crashing("kcm", "kcm", "u", "7");
        let crash = pod.crash_loop().unwrap().clone();
        let gone = RequestFailure::Gone;
        weeder.record(&pod, &crash, at(100.0), Err(&gone), false, at(101.0));
        assert!(!weeder.mark_useless(&pod, "main"), "nothing was deleted");
        weeder.record(&pod, &crash, at(100.0), Ok(()), false, at(102.0));
        assert!(!weeder.mark_useless(&pod, "other"), "another container");
        let stranger = crashing("scheduler", "kcm", "s", "8");
        assert!(!weeder.mark_useless(&stranger, "main"), "another controller");
        assert!(weeder.mark_useless(&pod, "main"));
        assert!(!weeder.mark_useless(&pod, "main"), "it is marked once");
    }

    #[test]
    fn a_pod_without_a_controller_is_succeeded_by_one_of_its_name() {
        let mut weeder = weeder();
        let alone = |name| Pod {
            owner: None,
            ..crashing(name, "kcm", "u", "7")
        };
        let crash = alone("a").crash_loop().unwrap().clone();
        weeder.record(&alone("a"), &crash, at(100.0), Ok(()), false, at(102.0));
        assert!(!weeder.mark_useless(&alone("b"), "main"));
        assert!(weeder.mark_useless(&alone("a"), "main"));
    }
}
