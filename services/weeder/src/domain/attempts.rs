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
        let record = self.records.entry(controller.clone()).or_default();
        let keep_until = now.after(REMEMBERED).max(attempt.ends_at);
        record.keep_until = record.keep_until.max(keep_until);
        // A new record has no round yet.
        if record.round > 0 && record.joins(pod, attempt) {
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
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::fixtures::{at, crashing};
    use crate::domain::pods::CrashLoop;

    /// A pod of the controller of `crashing`, created at this time.
    fn pod(uid: &str, created: f64) -> Pod {
        let mut pod = crashing("pod", "kcm", uid, "1");
        pod.created = Some(at(created));
        pod
    }

    fn attempt(weeder: u64, found_at: f64, asked_at: f64) -> Attempt {
        Attempt {
            weeder,
            ends_at: at(1e5),
            found_at: at(found_at),
            asked_at: at(asked_at),
        }
    }

    fn permit(attempts: &Attempts, pod: &Pod, weeder: u64, now: f64) -> DeletionPermit {
        attempts.permit(pod, &attempt(weeder, now, now))
    }

    fn delete(attempts: &mut Attempts, pod: &Pod, weeder: u64, now: f64) {
        attempts.deleted(pod, &attempt(weeder, now, now), &Ok(Some(at(now))), at(now));
    }

    /// Weeder 2 deletes a replica of its third round. Before the answer comes, weeder 1 begins a round for the same
    /// controller.
    #[test]
    fn a_deletion_under_way_takes_its_weeder_into_no_fourth_round() {
        let mut attempts = Attempts::default();
        for (uid, created, asked) in [("1", 0.0, 100.0), ("2", 101.0, 110.0), ("3", 111.0, 130.0)] {
            delete(&mut attempts, &pod(uid, created), 2, asked);
        }
        let (replica, later) = (pod("replica", 0.0), pod("later", 140.0));
        assert_eq!(permit(&attempts, &replica, 2, 200.0), DeletionPermit::Now);
        delete(&mut attempts, &pod("other", 150.0), 1, 200.0);
        delete(&mut attempts, &replica, 2, 200.0);
        assert_eq!(permit(&attempts, &later, 2, 201.0), DeletionPermit::Exhausted);
        assert_eq!(permit(&attempts, &later, 1, 201.0), DeletionPermit::Now);
    }

    #[test]
    fn at_once_then_later_and_three_times_in_a_life() {
        let mut attempts = Attempts::default();
        assert_eq!(permit(&attempts, &pod("1", 0.0), 1, 100.0), DeletionPermit::Now);
        delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
        assert_eq!(
            permit(&attempts, &pod("2", 101.0), 1, 105.0),
            DeletionPermit::At(at(110.0))
        );
        assert_eq!(permit(&attempts, &pod("2", 101.0), 1, 110.0), DeletionPermit::Now);
        delete(&mut attempts, &pod("2", 101.0), 1, 110.0);
        assert_eq!(
            permit(&attempts, &pod("3", 111.0), 1, 115.0),
            DeletionPermit::At(at(130.0))
        );
        delete(&mut attempts, &pod("3", 111.0), 1, 130.0);
        assert_eq!(
            permit(&attempts, &pod("4", 131.0), 1, 299.0),
            DeletionPermit::Exhausted
        );
        // The service became ready once more.
        assert_eq!(
            permit(&attempts, &pod("4", 131.0), 2, 140.0),
            DeletionPermit::At(at(170.0))
        );
        delete(&mut attempts, &pod("4", 131.0), 2, 170.0);
        assert_eq!(
            permit(&attempts, &pod("5", 171.0), 2, 171.0),
            DeletionPermit::At(at(210.0)),
            "40 s at most"
        );
    }

    #[test]
    fn the_replicas_of_a_controller_are_deleted_together() {
        let mut attempts = Attempts::default();
        delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
        for replica in ["2", "3"] {
            assert_eq!(
                permit(&attempts, &pod(replica, 50.0), 1, 101.0),
                DeletionPermit::Now
            );
            delete(&mut attempts, &pod(replica, 50.0), 1, 101.0);
        }
        assert_eq!(
            permit(&attempts, &pod("4", 102.0), 1, 103.0),
            DeletionPermit::At(at(110.0)),
            "one deletion"
        );
        let mut unknown = pod("5", 0.0);
        unknown.created = None;
        assert_eq!(
            permit(&attempts, &unknown, 1, 103.0),
            DeletionPermit::At(at(110.0))
        );
    }

    /// A recovering seed may answer none of them.
    #[test]
    fn replicas_whose_deletions_have_no_answer_are_one_attempt() {
        let mut attempts = Attempts::default();
        let replicas = ["1", "2", "3"].map(|uid| pod(uid, 0.0));
        let asked = attempt(1, 99.0, 100.0);
        let no_answer = Err(RequestFailure::Failed(String::new()));
        for replica in &replicas {
            attempts.deleted(replica, &asked, &no_answer, at(101.0));
        }
        let permit = |attempts: &Attempts, pod: &Pod, found_at: f64| {
            attempts.permit(pod, &attempt(1, found_at, 102.0))
        };
        for replica in &replicas {
            assert_eq!(permit(&attempts, replica, 99.0), DeletionPermit::Now);
        }
        let successor = pod("4", 101.5);
        assert_eq!(
            permit(&attempts, &successor, 101.9),
            DeletionPermit::At(at(111.0))
        );
        attempts.deleted(&replicas[1], &asked, &Ok(Some(at(101.0))), at(102.0));
        assert_eq!(permit(&attempts, &replicas[2], 99.0), DeletionPermit::Now);
        assert_eq!(
            attempts.expire(at(161.0)),
            1,
            "the answer of the second try counts"
        );
    }

    /// Two services that share dependants become ready.
    #[test]
    fn each_of_two_weeders_deletes_three_times() {
        let mut attempts = Attempts::default();
        let mut deleted = Vec::new();
        for second in 0..300 {
            let now = 100.0 + f64::from(second);
            let crashing = pod(&second.to_string(), now);
            let first = [2, 1]
                .into_iter()
                .find(|weeder| permit(&attempts, &crashing, *weeder, now) == DeletionPermit::Now);
            if let Some(weeder) = first {
                delete(&mut attempts, &crashing, weeder, now);
                deleted.push(weeder);
            }
        }
        assert_eq!(deleted, [2, 2, 2, 1, 1, 1]);
    }

    /// The same pod, in which these containers crash.
    fn in_containers(mut pod: Pod, containers: &[&str]) -> Pod {
        let crash = pod.crashes.remove(0);
        let of = |container: &&str| CrashLoop {
            container: (*container).to_owned(),
            ..crash.clone()
        };
        pod.crashes = containers.iter().map(of).collect();
        pod
    }

    #[test]
    fn each_container_has_its_pause_and_all_share_the_limit() {
        let mut attempts = Attempts::default();
        delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
        let other = in_containers(pod("2", 101.0), &["sidecar"]);
        assert_eq!(
            permit(&attempts, &other, 1, 101.0),
            DeletionPermit::Now,
            "another container"
        );
        let both = in_containers(pod("2", 101.0), &["sidecar", "main"]);
        assert_eq!(
            permit(&attempts, &both, 1, 102.0),
            DeletionPermit::At(at(110.0)),
            "one of two was helped already"
        );
        delete(&mut attempts, &both, 1, 110.0);
        assert_eq!(
            permit(&attempts, &in_containers(pod("3", 111.0), &["sidecar"]), 1, 112.0),
            DeletionPermit::At(at(120.0)),
            "a deletion counts for all containers that crashed"
        );
        let third = in_containers(pod("3", 111.0), &["third"]);
        delete(&mut attempts, &third, 1, 112.0);
        let fourth = in_containers(pod("4", 113.0), &["fourth"]);
        assert_eq!(
            permit(&attempts, &fourth, 1, 114.0),
            DeletionPermit::Exhausted,
            "three for all containers together"
        );
    }

    #[test]
    fn controllers_are_told_apart_and_so_are_pods_without_one() {
        let mut attempts = Attempts::default();
        delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
        let mut elsewhere = pod("2", 101.0);
        elsewhere.owner.as_mut().unwrap().uid = "another".to_owned();
        assert_eq!(permit(&attempts, &elsewhere, 1, 101.0), DeletionPermit::Now);
        elsewhere.owner = None;
        delete(&mut attempts, &elsewhere, 1, 102.0);
        let mut again = elsewhere.clone();
        again.uid = "3".to_owned();
        again.created = Some(at(103.0));
        assert_eq!(
            permit(&attempts, &again, 1, 104.0),
            DeletionPermit::At(at(112.0)),
            "the same name"
        );
        again.key.name = "other".into();
        assert_eq!(permit(&attempts, &again, 1, 104.0), DeletionPermit::Now);
    }

    #[test]
    fn a_weeder_takes_part_in_three_rounds_whoever_began_them() {
        let mut attempts = Attempts::default();
        let replica = pod("replica", 0.0);
        delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
        delete(&mut attempts, &replica, 2, 100.5);
        for (uid, now) in [("2", 120.0), ("3", 150.0)] {
            delete(&mut attempts, &pod(uid, now - 5.0), 2, now);
        }
        let late = pod("late", 140.0);
        assert_eq!(
            permit(&attempts, &late, 2, 151.0),
            DeletionPermit::Now,
            "it finishes its third round"
        );
        delete(&mut attempts, &pod("4", 151.0), 1, 200.0);
        let late = pod("later", 190.0);
        assert_eq!(
            permit(&attempts, &late, 2, 201.0),
            DeletionPermit::Exhausted,
            "the round of another weeder would be its fourth"
        );
        assert_eq!(permit(&attempts, &late, 1, 201.0), DeletionPermit::Now);
    }

    /// The service fails again minutes later, and another replica crashes.
    #[test]
    fn another_outage_begins_another_round() {
        let mut attempts = Attempts::default();
        delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
        attempts.expire(at(160.0));
        let replica = pod("replica", 50.0);
        assert_eq!(permit(&attempts, &replica, 2, 300.0), DeletionPermit::Now);
        delete(&mut attempts, &replica, 2, 300.0);
        assert_eq!(
            permit(&attempts, &pod("successor", 301.0), 2, 303.0),
            DeletionPermit::At(at(310.0))
        );
        assert_eq!(attempts.expire(at(360.0)), 1, "its use is judged");
    }

    /// One API server deletes the pod, and another one, whose clock is behind, creates its successor.
    #[test]
    fn a_successor_that_looks_older_waits() {
        let mut attempts = Attempts::default();
        delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
        for created in [98.0, 99.0] {
            assert_eq!(
                permit(&attempts, &pod("2", created), 1, 103.0),
                DeletionPermit::At(at(110.0))
            );
        }
        assert_eq!(permit(&attempts, &pod("3", 97.0), 1, 103.0), DeletionPermit::Now);
    }

    #[test]
    fn answers_in_another_order_make_no_replica_of_a_successor() {
        let mut attempts = Attempts::default();
        let (first, second) = (pod("1", 0.0), pod("2", 0.0));
        delete(&mut attempts, &second, 1, 103.0);
        let successor = pod("3", 101.0);
        delete(&mut attempts, &first, 1, 100.0);
        assert_eq!(
            permit(&attempts, &successor, 1, 104.0),
            DeletionPermit::At(at(113.0))
        );
    }

    #[test]
    fn a_container_is_given_up_once_by_each_weeder() {
        let mut attempts = Attempts::default();
        let crashing = pod("1", 0.0);
        let controller = ControllerKey::of(&crashing);
        delete(&mut attempts, &crashing, 1, 100.0);
        delete(&mut attempts, &crashing, 2, 100.0);
        let mut give_up = |container: &str, weeder: u64| attempts.give_up(&controller, container, weeder);
        assert!(give_up("main", 1) && give_up("sidecar", 1) && give_up("main", 2));
        assert!(!give_up("main", 1) && !give_up("sidecar", 1) && !give_up("main", 2));
    }

    #[test]
    fn success_resets_the_pause_but_not_the_limit() {
        let mut attempts = Attempts::default();
        delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
        assert_eq!(attempts.next_due(), Some(at(160.0)));
        assert_eq!(attempts.expire(at(159.9)), 0);
        assert_eq!(attempts.expire(at(160.0)), 1);
        assert_eq!(attempts.expire(at(160.0)), 0, "once");
        for (uid, created, now) in [("2", 101.0, 161.0), ("3", 162.0, 230.0)] {
            assert_eq!(permit(&attempts, &pod(uid, created), 1, now), DeletionPermit::Now);
            delete(&mut attempts, &pod(uid, created), 1, now);
            attempts.expire(at(now + 60.0));
        }
        assert_eq!(
            permit(&attempts, &pod("4", 231.0), 1, 299.0),
            DeletionPermit::Exhausted
        );
        assert_eq!(permit(&attempts, &pod("4", 231.0), 2, 299.0), DeletionPermit::Now);
        attempts.expire(at(1e6));
        assert_eq!((attempts.records.len(), attempts.next_due()), (0, None));
    }

    #[test]
    fn a_successor_that_crashes_within_a_minute_makes_a_deletion_useless() {
        let mut attempts = Attempts::default();
        delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
        let mut replica = pod("2", 50.0);
        replica.restarted = vec!["main".to_owned()];
        let useless = |weeder| {
            let container = "main".to_owned();
            [UselessDeletion { weeder, container }]
        };
        assert_eq!(attempts.judge(&replica, at(101.0)), [], "it is no successor");
        let mut successor = pod("3", 101.0);
        successor.restarted.clear();
        assert_eq!(attempts.judge(&successor, at(110.0)), [], "it runs");
        successor.restarted = vec!["other".to_owned(), "main".to_owned()];
        assert_eq!(attempts.judge(&successor, at(120.0)), useless(1));
        assert_eq!(attempts.judge(&successor, at(121.0)), [], "once");
        assert_eq!(attempts.expire(at(200.0)), 0);
        delete(&mut attempts, &successor, 2, 201.0);
        let mut late = pod("4", 202.0);
        late.restarted = vec!["main".to_owned()];
        assert_eq!(attempts.judge(&late, at(261.0)), []);
        assert_eq!(attempts.expire(at(261.0)), 1);
    }

    proptest! {
        /// A pod that always crashes, seen at any time, by weeders that come at any time.
        #[test]
        fn never_more_than_three_in_a_life_and_never_sooner_than_allowed(
            steps in prop::collection::vec((1_u32..30, prop::bool::weighted(0.1)), 1..200)
        ) {
            let mut attempts = Attempts::default();
            let (mut now, mut weeder, mut created) = (100.0, 1, 0.0);
            let (mut in_life, mut last) = (0, None::<f64>);
            for (step, another) in steps {
                now += f64::from(step);
                if another {
                    weeder += 1;
                    in_life = 0;
                }
                let mut crashing = pod(&created.to_string(), created);
                crashing.restarted = vec!["main".to_owned()];
                attempts.judge(&crashing, at(now));
                attempts.expire(at(now));
                if permit(&attempts, &crashing, weeder, now) == DeletionPermit::Now {
                    delete(&mut attempts, &crashing, weeder, now);
                    in_life += 1;
                    prop_assert!(in_life <= MAX_DELETIONS);
                    prop_assert!(last.is_none_or(|last| now - last >= 10.0));
                    last = Some(now);
                    created = now;
                }
            }
        }
    }
}
