//! Pods that were seen in a crash loop, each on its way to be deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::moment::Moment;
use super::pods::{Pod, PodKey};
use super::schedule::Schedule;

/// When a crash loop was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// By the first look after the service became ready: the pod has been waiting since then.
    AtStart,
    /// Later: the pod crashed again, or crashed late.
    Later,
}

/// What is to happen with a pod after an attempt to delete it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It was deleted: nothing, until a new pod takes its name.
    Done,
    /// Nothing is known of it any more.
    Forget,
    /// Try again then.
    Retry(Moment),
}

/// The pods, at most one attempt at a time for each.
#[derive(Debug, Default)]
pub struct Candidates {
    pods: BTreeMap<PodKey, Candidate>,
    due: Schedule<PodKey>,
}

#[derive(Debug)]
struct Candidate {
    pod: Arc<Pod>,
    phase: Phase,
    failures: u32,
    found: Found,
    found_at: Moment,
}

#[derive(Debug)]
enum Phase {
    // Until it is due.
    Waiting,
    // Being deleted; meanwhile this was seen of it.
    InFlight(Seen),
    // Deleted. What is still seen of it is old.
    Done,
}

#[derive(Debug)]
enum Seen {
    Nothing,
    Crashing(Arc<Pod>),
    // Recovered, being deleted, or gone.
    Well,
}

/// A pod that is due.
#[derive(Debug, Clone)]
pub struct Due {
    /// The pod as it was seen last.
    pub pod: Arc<Pod>,
    /// When its crash loop was found.
    pub found: Found,
    /// See `found`.
    pub found_at: Moment,
    /// Attempts that failed so far.
    pub failures: u32,
}

impl Candidates {
    /// A pod was seen in a crash loop.
    pub fn crashing(&mut self, pod: Pod, found: Found, now: Moment) {
        let (key, pod) = (pod.key.clone(), Arc::new(pod));
        match self.pods.get_mut(&key) {
            Some(Candidate {
                phase: Phase::InFlight(seen),
                ..
            }) => *seen = Seen::Crashing(pod),
            Some(Candidate {
                phase: Phase::Done,
                pod: done,
                ..
            }) if done.uid == pod.uid => {}
            Some(waiting) if waiting.pod.uid == pod.uid => waiting.pod = pod,
            _ => self.wait(pod, found, now),
        }
    }

    /// A pod was seen without a crash loop, or being deleted.
    pub fn well(&mut self, key: &PodKey, uid: &str) {
        match self.pods.get_mut(key) {
            Some(Candidate {
                phase: Phase::InFlight(seen),
                ..
            }) => *seen = Seen::Well,
            Some(Candidate {
                phase: Phase::Done,
                pod,
                ..
            }) if pod.uid == uid => {}
            Some(_) => self.forget(key),
            None => {}
        }
    }

    /// A pod is gone.
    pub fn gone(&mut self, key: &PodKey) {
        match self.pods.get_mut(key) {
            Some(Candidate {
                phase: Phase::InFlight(seen),
                ..
            }) => *seen = Seen::Well,
            Some(_) => self.forget(key),
            None => {}
        }
    }

    /// Takes out the pod that has been due for longest; it is being deleted until [`Candidates::attempted`].
    pub fn pop_due(&mut self, now: Moment) -> Option<Due> {
        loop {
            let key = self.due.pop_due(now)?;
            if let Some(candidate) = self.pods.get_mut(&key) {
                candidate.phase = Phase::InFlight(Seen::Nothing);
                let Candidate {
                    pod,
                    found,
                    found_at,
                    failures,
                    ..
                } = candidate;
                return Some(Due {
                    pod: pod.clone(),
                    found: *found,
                    found_at: *found_at,
                    failures: *failures,
                });
            }
        }
    }

    /// An attempt has come to its end. What was seen meanwhile counts, unless it is what the attempt was about: says
    /// whether a newer state takes its place.
    pub fn attempted(&mut self, key: &PodKey, verdict: Verdict, now: Moment) -> bool {
        let Some(candidate) = self.pods.get_mut(key) else {
            return false;
        };
        let Phase::InFlight(seen) = std::mem::replace(&mut candidate.phase, Phase::Done) else {
            return false;
        };
        let tried = &candidate.pod;
        match (verdict, seen) {
            (Verdict::Retry(at), Seen::Nothing) => self.retry(key, at),
            (Verdict::Retry(at), Seen::Crashing(pod)) => {
                candidate.pod = pod;
                self.retry(key, at);
            }
            (Verdict::Done, Seen::Crashing(pod)) if pod.uid != tried.uid => {
                self.wait(pod, Found::Later, now);
                return true;
            }
            (Verdict::Forget, Seen::Crashing(pod))
                if pod.uid != tried.uid || pod.resource_version != tried.resource_version =>
            {
                self.wait(pod, Found::Later, now);
                return true;
            }
            (Verdict::Done, _) => {}
            (Verdict::Forget, _) | (Verdict::Retry(_), Seen::Well) => self.forget(key),
        }
        false
    }

    /// Forgets a namespace, except what is being deleted right now.
    pub fn forget_namespace(&mut self, namespace: &str) {
        let first = PodKey {
            namespace: namespace.into(),
            name: "".into(),
        };
        let idle = |candidate: &Candidate| !matches!(candidate.phase, Phase::InFlight(_));
        let keys: Vec<PodKey> = self
            .pods
            .range(first..)
            .take_while(|(key, _)| *key.namespace == *namespace)
            .filter(|(_, candidate)| idle(candidate))
            .map(|(key, _)| key.clone())
            .collect();
        for key in &keys {
            self.forget(key);
        }
    }

    /// When the next pod is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Moment> {
        self.due.next_due()
    }

    /// Pods that wait to be deleted or are being deleted.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pods
            .values()
            .filter(|candidate| !matches!(candidate.phase, Phase::Done))
            .count()
    }

    fn retry(&mut self, key: &PodKey, at: Moment) {
        if let Some(candidate) = self.pods.get_mut(key) {
            candidate.failures = candidate.failures.saturating_add(1);
            candidate.phase = Phase::Waiting;
            self.due.insert(key.clone(), at);
        }
    }

    fn wait(&mut self, pod: Arc<Pod>, found: Found, now: Moment) {
        let key = pod.key.clone();
        let candidate = Candidate {
            pod,
            phase: Phase::Waiting,
            failures: 0,
            found,
            found_at: now,
        };
        self.pods.insert(key.clone(), candidate);
        self.due.insert(key, now);
    }

    fn forget(&mut self, key: &PodKey) {
        self.pods.remove(key);
        self.due.remove(key);
    }
}
