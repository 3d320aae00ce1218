//! One weeder: for a while after a service became ready, it deletes the crash-looping dependants of that service.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::dependants::Dependants;
use super::failure::Failure;
use super::moment::Moment;
use super::pods::{CrashLoop, Pod};
use super::service::ServiceKey;

/// Deletions that a weeder remembers; the log and the metrics have all of them.
pub const KEPT_DELETIONS: usize = 32;

/// How far a weeder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It waits for its turn to look at the dependants for the first time.
    Queued,
    /// It follows the dependants.
    Active,
    /// It has lived out its time.
    Ended,
    /// It was stopped before.
    Cancelled,
}

/// Why a weeder was stopped before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The namespace is terminating or gone.
    NamespaceEnded,
    /// Another replica owns the namespace now.
    NotOwned,
    /// The configuration does not name the service any more.
    NotConfigured,
    /// The annotation that declared the dependants is gone.
    NotAnnotated,
}

/// What became of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeletionResult {
    /// The pod was deleted.
    Deleted,
    /// The pod was gone, replaced or changed: left alone.
    Obsolete,
    /// The API server refused or did not answer; it is tried again.
    Refused,
}

/// One deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDeletion {
    /// Counts the deletions of the weeder, from 1.
    pub sequence: u64,
    /// Name of the pod.
    pub pod: Arc<str>,
    /// UID of the pod.
    pub uid: String,
    /// Why.
    pub crash: CrashLoop,
    /// What became of it.
    pub result: DeletionResult,
    /// The same in a sentence for people.
    pub message: String,
    /// When.
    pub at: Moment,
}

/// A weeder.
#[derive(Debug, Clone)]
pub struct Weeder {
    /// The service that became ready.
    pub key: ServiceKey,
    /// How far it is.
    pub state: State,
    /// When the service became ready.
    pub started_at: Moment,
    /// When it ends or ended.
    pub ends_at: Moment,
    /// Whom it weeds.
    pub dependants: Arc<Dependants>,
    /// Pods deleted so far.
    pub deleted: u64,
    /// The latest deletions, oldest first, at most [`KEPT_DELETIONS`].
    pub deletions: VecDeque<PodDeletion>,
    /// What it does, or why it ended, in a sentence for people.
    pub message: String,
    // The service is not ready (any more): pods crash for good reason, and deleting them would help nobody.
    resting: bool,
    sequence: u64,
}

// === impl Stop ===

impl Stop {
    /// In a sentence for people.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::NamespaceEnded => "The namespace is terminating or gone.",
            Self::NotOwned => "Another replica owns the namespace now.",
            Self::NotConfigured => "The configuration does not name the service any more.",
            Self::NotAnnotated => "The service does not declare dependants any more.",
        }
    }
}

// === impl DeletionResult ===

impl DeletionResult {
    /// What the answer of the API server means.
    #[must_use]
    pub const fn of(answer: &Result<(), Failure>) -> Self {
        match answer {
            Ok(()) => Self::Deleted,
            Err(Failure::Gone | Failure::Changed) => Self::Obsolete,
            Err(_) => Self::Refused,
        }
    }
}

// === impl Weeder ===

impl Weeder {
    /// A weeder of a service that became ready now. It lives exactly `watch_duration`.
    #[must_use]
    pub fn new(key: ServiceKey, dependants: Arc<Dependants>, watch_duration: Duration, now: Moment) -> Self {
        Self {
            key,
            state: State::Queued,
            started_at: now,
            ends_at: now.after(watch_duration),
            dependants,
            deleted: 0,
            deletions: VecDeque::new(),
            message: "It waits for its turn to look at the dependants.".to_owned(),
            resting: false,
            sequence: 0,
        }
    }

    /// Whether its time is not over.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        matches!(self.state, State::Queued | State::Active)
    }

    /// What is left of its life.
    #[must_use]
    pub fn remaining(&self, now: Moment) -> Duration {
        if self.is_live() {
            self.ends_at.since(now)
        } else {
            Duration::ZERO
        }
    }

    /// Whether it may delete pods with these labels.
    #[must_use]
    pub fn weeds(&self, labels: &BTreeMap<String, String>) -> bool {
        self.is_weeding() && self.dependants.include(labels)
    }

    /// Whether it has anything to do: its time is not over and its service is ready.
    #[must_use]
    pub const fn is_weeding(&self) -> bool {
        self.is_live() && !self.resting
    }

    /// Its turn has come. Says whether that is news.
    pub fn activate(&mut self) -> bool {
        let news = self.state == State::Queued;
        if news {
            self.state = State::Active;
            "It follows the dependants.".clone_into(&mut self.message);
        }
        news
    }

    /// The service is not ready any more. It lives on, but deletes nothing: when the service is ready again, another
    /// weeder takes its place. Says whether that is news.
    pub fn rest(&mut self) -> bool {
        self.message = format!(
            "Service {} is not ready: nothing is deleted until it is.",
            self.key.service
        );
        !std::mem::replace(&mut self.resting, true)
    }

    /// Its time is over.
    pub fn end(&mut self) {
        self.state = State::Ended;
        self.message = match self.deleted {
            0 => "It has lived out its time; there was nothing to delete.".to_owned(),
            1 => "It has lived out its time and deleted 1 pod.".to_owned(),
            n => format!("It has lived out its time and deleted {n} pods."),
        };
    }

    /// It is stopped before its time.
    pub fn cancel(&mut self, why: Stop, now: Moment) {
        self.state = State::Cancelled;
        self.ends_at = now;
        why.sentence().clone_into(&mut self.message);
    }

    /// Remembers what became of a deletion. One that is refused again takes the place of its last refusal, so that
    /// retries do not push out what else happened.
    pub fn record(&mut self, pod: &Pod, crash: &CrashLoop, answer: &Result<(), Failure>, at: Moment) {
        let result = DeletionResult::of(answer);
        if result == DeletionResult::Deleted {
            self.deleted += 1;
        }
        let message = self.sentence(crash, answer);
        let last = self
            .deletions
            .iter_mut()
            .rev()
            .find(|deletion| deletion.uid == pod.uid);
        if let Some(last) =
            last.filter(|last| last.result == DeletionResult::Refused && last.result == result)
        {
            last.crash = crash.clone();
            last.message = message;
            last.at = at;
            return;
        }
        self.sequence += 1;
        self.deletions.push_back(PodDeletion {
            sequence: self.sequence,
            pod: pod.key.name.clone(),
            uid: pod.uid.clone(),
            crash: crash.clone(),
            result,
            message,
            at,
        });
        if self.deletions.len() > KEPT_DELETIONS {
            self.deletions.pop_front();
        }
    }

    fn sentence(&self, crash: &CrashLoop, answer: &Result<(), Failure>) -> String {
        let kind = if crash.init { "Init container" } else { "Container" };
        let times = if crash.restarts == 1 {
            "restart"
        } else {
            "restarts"
        };
        let why = format!(
            "{kind} {} was waiting in CrashLoopBackOff after {} {times} and service {} is ready again",
            crash.container, crash.restarts, self.key.service
        );
        match (DeletionResult::of(answer), answer) {
            (DeletionResult::Obsolete, Err(failure)) => format!("Left alone: {failure}."),
            (_, Err(failure)) => format!("{why}, but the pod could not be deleted: {failure}."),
            (_, Ok(())) => format!("{why}."),
        }
    }
}
