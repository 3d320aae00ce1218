//! How often may the pods of a controller be deleted?
//!
//! The first deletion helps a pod that crashed because of the service; a successor that crashes too has a reason of its
//! own. So each controller is remembered, and each of its containers: a container's pods are deleted at once, then
//! after 10, 20 and 40 s, and the pods of a controller in three rounds of a weeder's life, whichever containers crash.
//! Then they are left alone. Pods that existed already when the first of them was deleted, the other replicas, belong
//! to the same round.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use watchdog_api::duration::doubled;

use super::evidence::CLOCK_TOLERANCE;
use super::failure::RequestFailure;
use super::pods::Pod;
use super::schedule::Schedule;
use watchdog_api::unix_time::UnixTime;

/// The pods of a controller are deleted in this many rounds of a weeder's life.
pub(crate) const MAX_DELETIONS: u32 = 3;

/// The pause after the first deletion; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// See [`FIRST_PAUSE`].
const LONGEST_PAUSE: Duration = Duration::from_secs(40);

/// A deletion whose successors do not crash for this long was of use.
pub(crate) const PROOF: Duration = Duration::from_secs(60);

/// Weeders that are remembered for one controller. More than a few live at once only if their services share all
/// dependants.
const MAX_WEEDERS: usize = 64;

/// A controller is forgotten this long after its last deletion, but not before the weeder has ended.
const REMEMBERED: Duration = Duration::from_secs(600);

/// A controller; a pod without one stands for itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ControllerKey {
    namespace: Arc<str>,
    /// The UID of the controller, or `pod/` and the name of the pod.
    owner: String,
}

/// The answer for a pod that could be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeletionPermit {
    Now,
    /// Not before then.
    At(UnixTime),
    /// Not while this weeder lives.
    Exhausted,
}

/// The attempt of a weeder to delete a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// The weeder, and its end.
    pub(crate) weeder: u64,
    pub(crate) ends_at: UnixTime,
    /// When the pod was found to crash, and when the request leaves, both by the weeder's clock.
    pub(crate) found_at: UnixTime,
    pub(crate) asked_at: UnixTime,
}

/// A deletion that was of no use to a container: it crashed again within a minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UselessDeletion {
    pub(crate) weeder: u64,
    pub(crate) container: String,
}

/// All controllers whose pods were deleted.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    records: BTreeMap<ControllerKey, DeletionRound>,
    // When each is judged, and then forgotten.
    due: Schedule<ControllerKey>,
}

#[derive(Debug, Default)]
struct DeletionRound {
    // Counts the rounds; replicas that are deleted together belong to one.
    round: u64,
    // The pod that was deleted first in this round, and when by the API server's clock: pods that existed then are no
    // successors.
    uid: String,
    deleted_at: Option<UnixTime>,
    // When the first request of the round left, by the weeder's clock.
    asked_at: UnixTime,
    // True when all deletions of the round were answered.
    certain: bool,
    // By weeder: several live at once where services share dependants.
    by_weeder: BTreeMap<u64, WeederAttempts>,
    containers: BTreeMap<String, ContainerRecord>,
    keep_until: UnixTime,
}

/// The attempts of one weeder on one controller.
#[derive(Debug, Default)]
struct WeederAttempts {
    rounds: u32,
    // The last round in which the weeder took part.
    last_round: u64,
    // Containers that it has given up.
    given_up: BTreeSet<String>,
}

#[derive(Debug)]
struct ContainerRecord {
    // Rounds since the last success.
    deletions: u32,
    last_round: u64,
    last: UnixTime,
    weeder: u64,
    outcome: DeletionOutcome,
}

/// The use of the last deletion to a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeletionOutcome {
    /// It may not have taken place.
    Uncertain,
    Open,
    Judged,
}

// === impl ControllerKey ===

impl ControllerKey {
    pub(crate) fn of(pod: &Pod) -> Self {
        let owner = match &pod.owner {
            Some(owner) => owner.uid.clone(),
            None => format!("pod/{}", pod.key.name),
        };
        Self {
            namespace: pod.key.namespace.clone(),
            owner,
        }
    }
}

// === impl Attempts ===

impl Attempts {
    /// The answer for a pod that the attempt could delete. Each of its containers that crash must have waited for its
    /// time.
    pub(crate) fn permit(&self, pod: &Pod, attempt: &Attempt) -> DeletionPermit {
        let Some(record) = self.records.get(&ControllerKey::of(pod)) else {
            return DeletionPermit::Now;
        };
        let in_round = record.joins(pod, attempt);
        if record.is_exhausted(attempt.weeder, in_round) {
            return DeletionPermit::Exhausted;
        }
        if in_round {
            return DeletionPermit::Now;
        }
        let containers = pod.crashes.iter().map(|crash| &crash.container);
        let containers = containers.filter_map(|container| record.containers.get(container));
        match containers.filter_map(ContainerRecord::pause_ends_at).max() {
            Some(until) if attempt.asked_at < until => DeletionPermit::At(until),
            _ => DeletionPermit::Now,
        }
    }

    /// True for a pod whose predecessor this weeder deleted.
    pub(crate) fn is_successor(&self, pod: &Pod, attempt: &Attempt) -> bool {
        let record = self.records.get(&ControllerKey::of(pod));
        record.is_some_and(|record| {
            record.by_weeder.contains_key(&attempt.weeder) && !record.includes(pod, Some(attempt.found_at))
        })
    }

    /// A pod was deleted, or may have been, because the API server did not answer. It counts for all of its containers
    /// that crashed.
    pub(crate) fn deleted(
        &mut self,
        pod: &Pod,
        attempt: &Attempt,
        answer: &Result<Option<UnixTime>, RequestFailure>,
        now: UnixTime,
    ) {
        let (certain, deleted_at) = (answer.is_ok(), answer.as_ref().ok().copied().flatten());
        let controller = ControllerKey::of(pod);
        let known = self.records.get(&controller);
        let in_round = known.is_some_and(|record| record.joins(pod, attempt));
        let record = self.records.entry(controller.clone()).or_default();
        let keep_until = now.after(REMEMBERED).max(attempt.ends_at);
        record.keep_until = record.keep_until.max(keep_until);
        if in_round {
            // Answers may come in another order than the deletions.
            record.asked_at = record.asked_at.min(attempt.asked_at);
            record.certain &= certain;
            record.deleted_at = match (record.deleted_at, deleted_at) {
                (Some(known), Some(other)) => Some(known.min(other)),
                (known, other) => known.or(other),
            };
        } else {
            record.round += 1;
            record.uid.clone_from(&pod.uid);
            record.deleted_at = deleted_at;
            record.asked_at = attempt.asked_at;
            record.certain = certain;
        }
        record.count_round(attempt.weeder);
        for crash in &pod.crashes {
            record.count_container(&crash.container, attempt.weeder, certain, now);
        }
        self.due.insert(controller, record.next_due());
    }

    /// A weeder gives up a container of a controller. False when it did so before.
    pub(crate) fn give_up(&mut self, controller: &ControllerKey, container: &str, weeder: u64) -> bool {
        let record = self.records.get_mut(controller);
        let attempts = record.and_then(|record| record.by_weeder.get_mut(&weeder));
        attempts.is_some_and(|attempts| attempts.given_up.insert(container.to_owned()))
    }

    /// A pod was seen. Gives the deletions that were of no use, because this successor crashed within a minute. Each is
    /// judged once.
    pub(crate) fn judge(&mut self, pod: &Pod, now: UnixTime) -> Vec<UselessDeletion> {
        if self.records.is_empty() || pod.restarted.is_empty() {
            return Vec::new();
        }
        let record = self.records.get_mut(&ControllerKey::of(pod));
        let Some(record) = record.filter(|record| !record.includes(pod, None)) else {
            return Vec::new();
        };
        let mut useless = Vec::new();
        for container in &pod.restarted {
            if let Some(known) = record.containers.get_mut(container)
                && known.outcome == DeletionOutcome::Open
                && now < known.last.after(PROOF)
            {
                known.outcome = DeletionOutcome::Judged;
                useless.push(UselessDeletion {
                    weeder: known.weeder,
                    container: container.clone(),
                });
            }
        }
        useless
    }

    /// Judges and forgets what is due. Gives the number of deletions that have proved useful.
    pub(crate) fn expire(&mut self, now: UnixTime) -> u64 {
        let mut useful = 0;
        while let Some(controller) = self.due.pop_due(now) {
            let Some(record) = self.records.get_mut(&controller) else {
                continue;
            };
            for container in record.containers.values_mut() {
                if container.outcome == DeletionOutcome::Open && container.last.after(PROOF) <= now {
                    container.outcome = DeletionOutcome::Judged;
                    // Success: the next deletion need not wait.
                    container.deletions = 0;
                    useful += 1;
                }
            }
            let next_due = record.next_due();
            if next_due <= now {
                self.records.remove(&controller);
            } else {
                self.due.insert(controller, next_due);
            }
        }
        useful
    }

    /// When [`Attempts::expire`] has something to do next.
    pub(crate) fn next_due(&self) -> Option<UnixTime> {
        self.due.next_due()
    }
}

// === impl DeletionRound ===

impl DeletionRound {
    /// True when a deletion of the pod belongs to the present round. A weeder that took no part in the round joins it
    /// only while it lasts: another outage begins another round.
    fn joins(&self, pod: &Pod, attempt: &Attempt) -> bool {
        let attempts = self.by_weeder.get(&attempt.weeder);
        let takes_part = attempts.is_some_and(|attempts| attempts.last_round == self.round);
        let over = self.certain && self.asked_at.after(PROOF) <= attempt.asked_at;
        (takes_part || !over) && self.includes(pod, Some(attempt.found_at))
    }

    /// True when the pod existed already when the first deletion of the round took place. Both times are an API
    /// server's; another one may have created the pod than deleted its predecessor. A pod that is only little older
    /// counts as a successor, which waits. While a deletion has no answer the time is not known: then a pod that was
    /// found to crash before the request left is no successor.
    fn includes(&self, pod: &Pod, found_at: Option<UnixTime>) -> bool {
        let deleted_at = self.deleted_at.filter(|_| self.certain || found_at.is_none());
        let existed = match (pod.created, deleted_at) {
            (Some(created), Some(deleted_at)) => created.after(CLOCK_TOLERANCE) < deleted_at,
            (None, Some(_)) => false,
            (_, None) => found_at.is_some_and(|found_at| found_at <= self.asked_at),
        };
        existed || pod.uid == self.uid
    }

    /// True when this weeder may not take part in another round. It finishes the last one that it may take part in. A
    /// deletion that was under way when another weeder, or another deletion, began a round can take it into one more:
    /// then it has had all of its rounds.
    fn is_exhausted(&self, weeder: u64, in_round: bool) -> bool {
        let Some(attempts) = self.by_weeder.get(&weeder) else {
            return false;
        };
        let finishes_last = in_round && attempts.last_round == self.round;
        attempts.rounds > MAX_DELETIONS || (attempts.rounds == MAX_DELETIONS && !finishes_last)
    }

    fn count_round(&mut self, weeder: u64) {
        let attempts = self.by_weeder.entry(weeder).or_default();
        if attempts.last_round != self.round {
            attempts.last_round = self.round;
            attempts.rounds = attempts.rounds.saturating_add(1);
        }
        while self.by_weeder.len() > MAX_WEEDERS {
            self.by_weeder.pop_first();
        }
    }

    fn count_container(&mut self, container: &str, weeder: u64, certain: bool, now: UnixTime) {
        let outcome = if certain {
            DeletionOutcome::Open
        } else {
            DeletionOutcome::Uncertain
        };
        match self.containers.get_mut(container) {
            Some(known) if known.last_round == self.round => {
                if known.outcome == DeletionOutcome::Uncertain {
                    known.outcome = outcome;
                }
            }
            known => {
                let before = known.map_or(0, |known| known.deletions);
                let counted = ContainerRecord {
                    deletions: before.saturating_add(1),
                    last_round: self.round,
                    last: now,
                    weeder,
                    outcome,
                };
                self.containers.insert(container.to_owned(), counted);
            }
        }
    }

    fn next_due(&self) -> UnixTime {
        let open = |container: &&ContainerRecord| container.outcome == DeletionOutcome::Open;
        let open = self.containers.values().filter(open);
        let next = open.map(|container| container.last.after(PROOF)).min();
        next.unwrap_or(self.keep_until)
    }
}

// === impl ContainerRecord ===

impl ContainerRecord {
    fn pause_ends_at(&self) -> Option<UnixTime> {
        let doublings = self.deletions.checked_sub(1)?;
        Some(self.last.after(doubled(FIRST_PAUSE, doublings, LONGEST_PAUSE)))
    }
}

#[cfg(test)]
mod tests;
