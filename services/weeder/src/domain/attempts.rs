//! How often may the pods of a controller be deleted?
//!
//! The first deletion helps a pod that crashed because of the service; a successor that crashes too has a reason of its
//! own. So each container of each controller is remembered: its pods are deleted at once, then after 10, 20 and 40 s,
//! three times in a weeder's life, and then they are left alone. Pods that existed already when the first of them was
//! deleted, the other replicas, belong to the same time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use watchdog_api::duration::doubled;

use super::pods::Pod;
use super::schedule::Schedule;
use watchdog_api::unix_time::UnixTime;

/// The pods of a controller are deleted this many times in a weeder's life.
pub(crate) const MAX_DELETIONS: u32 = 3;

/// The pause after the first deletion; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// See [`FIRST_PAUSE`].
const LONGEST_PAUSE: Duration = Duration::from_secs(40);

/// A deletion whose successors do not crash for this long was of use.
pub(crate) const PROOF: Duration = Duration::from_secs(60);

/// Weeders whose deletions are counted for one container. More than a few live at once only if their services share all
/// dependants.
const MAX_WEEDERS: usize = 64;

/// A container is forgotten this long after its last deletion, but not before the weeder has ended.
const REMEMBERED: Duration = Duration::from_secs(600);

/// A container of a controller, or of a pod that has none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subject {
    namespace: Arc<str>,
    /// Name and UID of the controller, or the name of the pod.
    owner: String,
    container: String,
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

/// One deletion, as far as the attempts are concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// The weeder that deleted the pod, and its end.
    pub(crate) weeder: u64,
    pub(crate) ends_at: UnixTime,
    /// When the pod was found to crash, and when the request left, both by the weeder's clock.
    pub(crate) found_at: UnixTime,
    pub(crate) asked_at: UnixTime,
    /// When the API server deleted the pod, by its own clock; none when it did not say.
    pub(crate) deleted_at: Option<UnixTime>,
    /// False when the API server did not answer.
    pub(crate) certain: bool,
}

/// All containers whose pods were deleted.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    records: BTreeMap<Subject, Record>,
    // When each is judged, and then forgotten.
    due: Schedule<Subject>,
}

#[derive(Debug)]
struct Record {
    // Deletions since the last success; replicas that are deleted together count once.
    deletions: u32,
    // Deletions in the life of each weeder: several live at once where services share dependants.
    in_life: BTreeMap<u64, u32>,
    last: UnixTime,
    // The pod that was deleted last, and when by the API server's clock: pods that existed then are no successors.
    uid: String,
    deleted_at: Option<UnixTime>,
    // When the request for it left, by the weeder's clock.
    asked_at: UnixTime,
    // Whether it is not known yet if the last deletion was of use.
    open: bool,
    keep_until: UnixTime,
}

impl Subject {
    pub(crate) fn of(pod: &Pod, container: &str) -> Self {
        let owner = match &pod.owner {
            Some(owner) => format!("{}/{}", owner.name, owner.uid),
            None => pod.key.name.to_string(),
        };
        Self {
            namespace: pod.key.namespace.clone(),
            owner,
            container: container.to_owned(),
        }
    }
}

impl Attempts {
    /// The answer for a pod that was found to crash at `found_at` and that this weeder could delete.
    pub(crate) fn permit(
        &self,
        subject: &Subject,
        pod: &Pod,
        found_at: UnixTime,
        weeder: u64,
        now: UnixTime,
    ) -> DeletionPermit {
        let successor_of = |record: &&Record| !record.includes(pod, Some(found_at));
        let Some(record) = self.records.get(subject).filter(successor_of) else {
            return DeletionPermit::Now;
        };
        if record.in_life_of(weeder) >= MAX_DELETIONS {
            return DeletionPermit::Exhausted;
        }
        match record.pause() {
            Some(pause) if now < record.last.after(pause) => DeletionPermit::At(record.last.after(pause)),
            _ => DeletionPermit::Now,
        }
    }

    pub(crate) fn deleted(&mut self, subject: &Subject, pod: &Pod, attempt: Attempt, now: UnixTime) {
        let keep_until = now.after(REMEMBERED).max(attempt.ends_at);
        let known = self.records.contains_key(subject);
        let record = self.records.entry(subject.clone()).or_insert(Record {
            deletions: 0,
            in_life: BTreeMap::new(),
            last: now,
            uid: String::new(),
            deleted_at: None,
            asked_at: attempt.asked_at,
            open: false,
            keep_until,
        });
        if known && record.includes(pod, Some(attempt.found_at)) {
            if record.deleted_at.is_none() && attempt.certain {
                record.deleted_at = attempt.deleted_at;
                record.open = true;
            }
            return;
        }
        record.keep_until = record.keep_until.max(keep_until);
        *record.in_life.entry(attempt.weeder).or_default() += 1;
        while record.in_life.len() > MAX_WEEDERS {
            record.in_life.pop_first();
        }
        record.deletions = record.deletions.saturating_add(1);
        record.last = now;
        record.uid.clone_from(&pod.uid);
        record.deleted_at = attempt.deleted_at;
        record.asked_at = attempt.asked_at;
        record.open = attempt.certain;
        self.due.insert(subject.clone(), now.after(PROOF));
    }

    /// A pod was seen. Says whether it shows that the last deletion was of no use, because a successor crashed within a
    /// minute. Each deletion is judged once.
    pub(crate) fn judge(&mut self, pod: &Pod, now: UnixTime) -> bool {
        if self.records.is_empty() || pod.restarted.is_empty() {
            return false;
        }
        let subjects = pod.restarted.iter().map(|container| Subject::of(pod, container));
        for subject in subjects {
            if let Some(record) = self.records.get_mut(&subject)
                && record.open
                && !record.includes(pod, None)
                && now < record.last.after(PROOF)
            {
                record.open = false;
                return true;
            }
        }
        false
    }

    /// Judges and forgets what is due. Gives the number of deletions that have proved useful.
    pub(crate) fn expire(&mut self, now: UnixTime) -> u64 {
        let mut useful = 0;
        while let Some(subject) = self.due.pop_due(now) {
            let Some(record) = self.records.get_mut(&subject) else {
                continue;
            };
            if std::mem::take(&mut record.open) {
                // Success: the next deletion need not wait.
                record.deletions = 0;
                useful += 1;
            }
            if record.keep_until <= now {
                self.records.remove(&subject);
            } else {
                let keep_until = record.keep_until;
                self.due.insert(subject, keep_until);
            }
        }
        useful
    }

    /// When [`Attempts::expire`] has something to do next.
    pub(crate) fn next_due(&self) -> Option<UnixTime> {
        self.due.next_due()
    }
}

impl Record {
    /// True when the pod existed already when the last deletion took place. Without an answer its time is not known: then
    /// a pod that was found to crash before the request left is no successor.
    fn includes(&self, pod: &Pod, found_at: Option<UnixTime>) -> bool {
        let existed = match (pod.created, self.deleted_at) {
            (Some(created), Some(deleted_at)) => created < deleted_at,
            (None, Some(_)) => false,
            (_, None) => found_at.is_some_and(|found_at| found_at <= self.asked_at),
        };
        existed || pod.uid == self.uid
    }

    fn in_life_of(&self, weeder: u64) -> u32 {
        self.in_life.get(&weeder).copied().unwrap_or(0)
    }

    fn pause(&self) -> Option<Duration> {
        let doublings = self.deletions.checked_sub(1)?;
        Some(doubled(FIRST_PAUSE, doublings, LONGEST_PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::fixtures::{at, crashing};

    /// A pod of the controller of `crashing`, created at this time.
    fn pod(uid: &str, created: f64) -> Pod {
        let mut pod = crashing("pod", "kcm", uid, "1");
        pod.created = Some(at(created));
        pod
    }

    fn permit(attempts: &Attempts, pod: &Pod, weeder: u64, now: f64) -> DeletionPermit {
        attempts.permit(&Subject::of(pod, "main"), pod, at(now), weeder, at(now))
    }

    fn delete(attempts: &mut Attempts, pod: &Pod, weeder: u64, now: f64) {
        let attempt = Attempt {
            weeder,
            ends_at: at(1e5),
            found_at: at(now),
            asked_at: at(now),
            deleted_at: Some(at(now)),
            certain: true,
        };
        attempts.deleted(&Subject::of(pod, "main"), pod, attempt, at(now));
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
        let subject = Subject::of(&replicas[0], "main");
        let attempt = |deleted_at: Option<f64>| Attempt {
            weeder: 1,
            ends_at: at(1e5),
            found_at: at(99.0),
            asked_at: at(100.0),
            deleted_at: deleted_at.map(at),
            certain: deleted_at.is_some(),
        };
        for replica in &replicas {
            attempts.deleted(&subject, replica, attempt(None), at(101.0));
        }
        let permit = |attempts: &Attempts, pod: &Pod, found_at: f64| {
            attempts.permit(&subject, pod, at(found_at), 1, at(102.0))
        };
        for replica in &replicas {
            assert_eq!(permit(&attempts, replica, 99.0), DeletionPermit::Now);
        }
        let successor = pod("4", 101.5);
        assert_eq!(
            permit(&attempts, &successor, 101.9),
            DeletionPermit::At(at(111.0))
        );
        attempts.deleted(&subject, &replicas[1], attempt(Some(101.0)), at(102.0));
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

    #[test]
    fn containers_and_controllers_are_told_apart() {
        let mut attempts = Attempts::default();
        delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
        let successor = pod("2", 101.0);
        let other = Subject::of(&successor, "sidecar");
        assert_eq!(
            attempts.permit(&other, &successor, at(101.0), 1, at(101.0)),
            DeletionPermit::Now
        );
        let mut elsewhere = successor;
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
        assert!(!attempts.judge(&replica, at(101.0)), "it is no successor");
        let mut successor = pod("3", 101.0);
        successor.restarted.clear();
        assert!(!attempts.judge(&successor, at(110.0)), "it runs");
        successor.restarted = vec!["other".to_owned(), "main".to_owned()];
        assert!(attempts.judge(&successor, at(120.0)));
        assert!(!attempts.judge(&successor, at(121.0)), "once");
        assert_eq!(attempts.expire(at(200.0)), 0);
        delete(&mut attempts, &successor, 1, 201.0);
        let mut late = pod("4", 202.0);
        late.restarted = vec!["main".to_owned()];
        assert!(!attempts.judge(&late, at(261.0)));
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
