//! All weeders: their lives, and what is to be asked of the API server next.
//!
//! Whoever runs the requests asks [`Weeding::next`] for a task whenever there is room for one more, and says how it
//! went. Nothing here is done by itself, so the number of requests at one time is the caller's to bound, and the tasks
//! that wait are bounded by the weeders and the pods that crash.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::candidates::{Candidates, Due, Found, Verdict};
use super::dependants::{Dependants, Queries, Query};
use super::failure::Failure;
use super::moment::Moment;
use super::pods::{Pod, PodKey};
use super::schedule::Schedule;
use super::service::ServiceKey;
use super::task::{Delete, List, Task};
use super::weeder::{State, Stop, Weeder};

/// A weeder is forgotten so long after its end.
pub const KEPT_AFTER_END: Duration = Duration::from_secs(60);

/// A pod that changed before its deletion arrived is looked at again after so long: kubelet writes a status in several
/// steps.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// All weeders.
#[derive(Debug, Default)]
pub struct Weeding {
    weeders: BTreeMap<ServiceKey, Entry>,
    candidates: Candidates,
    lists: Schedule<ServiceKey>,
    // The end of those that live, the forgetting of the others.
    ends: Schedule<ServiceKey>,
    queries: Queries,
    paused_until: Moment,
    starts: u64,
    changed: BTreeSet<ServiceKey>,
}

#[derive(Debug)]
struct Entry {
    weeder: Weeder,
    // Tells it from the one that it replaced.
    start: u64,
    // Whether the dependants were listed once.
    looked: bool,
    listing: Listing,
    failures: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listing {
    No,
    Yes,
    // What is read now may be too old.
    YesAndAgain,
}

// === impl Weeding ===

impl Weeding {
    /// A service became ready: a new weeder, in place of one that may be there.
    pub fn start(&mut self, key: ServiceKey, dependants: Arc<Dependants>, duration: Duration, now: Moment) {
        self.queries.add(&dependants);
        if let Some(old) = self.weeders.get(&key).filter(|old| old.weeder.is_live()) {
            self.queries.remove(&old.weeder.dependants);
        }
        self.starts += 1;
        let weeder = Weeder::new(key.clone(), dependants, duration, now);
        self.ends.insert(key.clone(), weeder.ends_at);
        self.lists.insert(key.clone(), now);
        let entry = Entry {
            weeder,
            start: self.starts,
            looked: false,
            listing: Listing::No,
            failures: 0,
        };
        self.weeders.insert(key.clone(), entry);
        self.changed.insert(key);
    }

    /// A service is not ready any more: its weeder deletes nothing until the service is ready again.
    pub fn rest(&mut self, key: &ServiceKey) {
        if let Some(entry) = self.weeders.get_mut(key).filter(|entry| entry.weeder.is_live())
            && entry.weeder.rest()
        {
            self.changed.insert(key.clone());
        }
    }

    /// Stops the weeders that live among those that `which` names.
    pub fn cancel(&mut self, why: Stop, now: Moment, which: impl Fn(&ServiceKey) -> bool) {
        let live = self
            .weeders
            .iter()
            .filter(|(key, entry)| entry.weeder.is_live() && which(key));
        let keys: Vec<ServiceKey> = live.map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.finish(&key, now, |weeder| weeder.cancel(why, now));
        }
    }

    /// A service has other dependants now: its weeder looks at them at once.
    pub fn reselect(&mut self, key: &ServiceKey, dependants: &Arc<Dependants>, now: Moment) {
        let Some(entry) = self.weeders.get_mut(key) else {
            return;
        };
        if !entry.weeder.is_live() || entry.weeder.dependants == *dependants {
            return;
        }
        self.queries.add(dependants);
        self.queries.remove(&entry.weeder.dependants);
        entry.weeder.dependants = dependants.clone();
        entry.list_again(&mut self.lists, now);
        self.changed.insert(key.clone());
    }

    /// The services whose weeders live.
    #[must_use]
    pub fn live(&self) -> Vec<ServiceKey> {
        let live = self.weeders.iter().filter(|(_, entry)| entry.weeder.is_live());
        live.map(|(key, _)| key.clone()).collect()
    }

    /// Ends what is over and forgets what ended a minute ago.
    pub fn expire(&mut self, now: Moment) {
        while let Some(key) = self.ends.pop_due(now) {
            if self.weeders.get(&key).is_some_and(|entry| entry.weeder.is_live()) {
                self.finish(&key, now, Weeder::end);
            } else {
                self.weeders.remove(&key);
                self.changed.insert(key);
            }
        }
    }

    /// The next request to be made, if one is due. Deletions come first: what was found is dealt with before more is
    /// looked for.
    pub fn next(&mut self, now: Moment) -> Option<Task> {
        self.expire(now);
        if now < self.paused_until {
            return None;
        }
        while let Some(due) = self.candidates.pop_due(now) {
            if let Some(delete) = self.delete(&due) {
                return Some(Task::Delete(delete));
            }
            self.candidates.attempted(&due.pod.key, Verdict::Forget, now);
        }
        while let Some(key) = self.lists.pop_due(now) {
            if let Some(entry) = self.weeders.get_mut(&key).filter(|entry| entry.weeder.is_live()) {
                entry.listing = Listing::Yes;
                if entry.weeder.activate() {
                    self.changed.insert(key.clone());
                }
                let (dependants, start) = (entry.weeder.dependants.clone(), entry.start);
                return Some(Task::List(List {
                    key,
                    dependants,
                    start,
                }));
            }
        }
        None
    }

    /// When [`Weeding::next`] is to be asked again: at the next end, or, if there is `room` for requests, when the
    /// next one is due.
    #[must_use]
    pub fn next_due(&self, room: bool) -> Option<Moment> {
        let requests = self
            .candidates
            .next_due()
            .into_iter()
            .chain(self.lists.next_due())
            .min();
        let requests = requests.filter(|_| room).map(|due| due.max(self.paused_until));
        requests.into_iter().chain(self.ends.next_due()).min()
    }

    /// A list has come back, with the pods that are to be weeded.
    pub fn listed(&mut self, list: &List, answer: Result<Vec<Pod>, Failure>, now: Moment) {
        let Some(entry) = self
            .weeders
            .get_mut(&list.key)
            .filter(|entry| entry.start == list.start)
        else {
            return;
        };
        let listing = std::mem::replace(&mut entry.listing, Listing::No);
        if !entry.weeder.is_weeding() {
            return;
        }
        let pods = match answer {
            Ok(pods) => {
                if entry.failures > 0 {
                    entry.failures = 0;
                    entry.weeder.message = "It follows the dependants.".to_owned();
                    self.changed.insert(list.key.clone());
                }
                if listing == Listing::YesAndAgain {
                    self.lists.hasten(list.key.clone(), now);
                }
                pods
            }
            Err(failure) => {
                entry.failures = entry.failures.saturating_add(1);
                entry.weeder.message = format!("The dependants cannot be listed, trying again: {failure}.");
                self.changed.insert(list.key.clone());
                let again = now.after(failure.pause(entry.failures));
                self.lists.hasten(list.key.clone(), again);
                self.pause(&failure, again);
                return;
            }
        };
        for pod in pods {
            self.seen(pod, now);
        }
        if let Some(entry) = self.weeders.get_mut(&list.key) {
            entry.looked = true;
        }
    }

    /// A pod was seen as it is.
    pub fn seen(&mut self, pod: Pod, now: Moment) {
        if pod.to_weed().is_none() {
            self.candidates.well(&pod.key, &pod.uid);
        } else if let Some(entry) = self.entry_for(&pod) {
            let found = if entry.looked {
                Found::Later
            } else {
                Found::AtStart
            };
            self.candidates.crashing(pod, found, now);
        }
    }

    /// A pod is gone.
    pub fn gone(&mut self, pod: &PodKey) {
        self.candidates.gone(pod);
    }

    /// A deletion was answered.
    pub fn deleted(&mut self, delete: &Delete, answer: &Result<(), Failure>, now: Moment) {
        let key = &delete.key;
        let verdict = match answer {
            Ok(()) => Verdict::Done,
            Err(Failure::Gone | Failure::Changed) => Verdict::Forget,
            Err(failure) => {
                let again = now.after(failure.pause(delete.failures.saturating_add(1)));
                self.pause(failure, again);
                Verdict::Retry(again)
            }
        };
        let newer = self.candidates.attempted(&delete.pod.key, verdict, now);
        if !self.is_weeded(&delete.pod.key.namespace) {
            self.candidates.forget_namespace(&delete.pod.key.namespace);
        }
        let Some(entry) = self
            .weeders
            .get_mut(key)
            .filter(|entry| entry.start == delete.start)
        else {
            return;
        };
        entry.weeder.record(&delete.pod, &delete.crash, answer, now);
        self.changed.insert(key.clone());
        if matches!(answer, Err(Failure::Changed)) && !newer && entry.weeder.is_live() {
            entry.list_again(&mut self.lists, now.after(LOOK_AGAIN));
        }
    }

    /// A watch may have missed something, or sees everything only from now on: those whose dependants it sees look
    /// again.
    pub fn look_again(&mut self, query: &Query, now: Moment) {
        for entry in self.weeders.values_mut() {
            if entry.weeder.is_weeding() && entry.weeder.dependants.are_seen_by(query) {
                entry.list_again(&mut self.lists, now);
            }
        }
    }

    /// The watches that see all dependants of all weeders that live.
    #[must_use]
    pub fn watches(&self) -> BTreeSet<Query> {
        self.queries.watches()
    }

    /// What has changed since the last call; none is what was forgotten.
    pub fn take_changed(&mut self) -> Vec<(ServiceKey, Option<Weeder>)> {
        let shown = |key: ServiceKey| {
            let weeder = self.weeders.get(&key).map(|entry| entry.weeder.clone());
            (key, weeder)
        };
        std::mem::take(&mut self.changed).into_iter().map(shown).collect()
    }

    /// The weeders in a state.
    #[must_use]
    pub fn count(&self, state: State) -> usize {
        self.weeders
            .values()
            .filter(|entry| entry.weeder.state == state)
            .count()
    }

    /// Pods that wait to be deleted or are being deleted.
    #[must_use]
    pub fn pending_deletions(&self) -> usize {
        self.candidates.pending()
    }

    /// The request that deletes a pod, unless no weeder that lives weeds it any more.
    fn delete(&mut self, due: &Due) -> Option<Delete> {
        let crash = due.pod.to_weed()?.clone();
        let key = self.entry_for(&due.pod)?.weeder.key.clone();
        let entry = self.weeders.get_mut(&key)?;
        if entry.weeder.activate() {
            self.changed.insert(key.clone());
        }
        let since = match due.found {
            Found::AtStart => entry.weeder.started_at,
            Found::Later => due.found_at,
        };
        Some(Delete {
            pod: due.pod.clone(),
            crash,
            key,
            since,
            found: due.found,
            start: entry.start,
            failures: due.failures,
        })
    }

    /// The weeder that weeds a pod; of several the youngest, for its service is the last that the pod was missing.
    fn entry_for(&self, pod: &Pod) -> Option<&Entry> {
        let weeds = |entry: &&Entry| entry.weeder.weeds(&pod.labels);
        self.in_namespace(&pod.key.namespace)
            .filter(weeds)
            .max_by_key(|entry| entry.start)
    }

    fn is_weeded(&self, namespace: &str) -> bool {
        self.in_namespace(namespace).any(|entry| entry.weeder.is_live())
    }

    fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Entry> {
        let all = self.weeders.range(ServiceKey::before_all_of(namespace)..);
        all.take_while(move |(key, _)| *key.namespace == *namespace)
            .map(|(_, entry)| entry)
    }

    fn finish(&mut self, key: &ServiceKey, now: Moment, how: impl FnOnce(&mut Weeder)) {
        let Some(entry) = self.weeders.get_mut(key) else {
            return;
        };
        how(&mut entry.weeder);
        self.queries.remove(&entry.weeder.dependants);
        self.lists.remove(key);
        self.ends.insert(key.clone(), now.after(KEPT_AFTER_END));
        self.changed.insert(key.clone());
        if !self.is_weeded(&key.namespace) {
            self.candidates.forget_namespace(&key.namespace);
        }
    }

    /// All requests pause when the API server throttles one: the others would be refused too.
    fn pause(&mut self, failure: &Failure, until: Moment) {
        if matches!(failure, Failure::Throttled(_)) {
            self.paused_until = self.paused_until.max(until);
        }
    }
}

// === impl Entry ===

impl Entry {
    fn list_again(&mut self, lists: &mut Schedule<ServiceKey>, at: Moment) {
        match self.listing {
            Listing::No => lists.hasten(self.weeder.key.clone(), at),
            Listing::Yes | Listing::YesAndAgain => self.listing = Listing::YesAndAgain,
        }
    }
}

#[cfg(test)]
#[path = "weeding_tests.rs"]
mod tests;
