//! A replica of the simulation: the real rules, a clock that runs wrong, a watch that lags, actions that take time.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;

use super::store::{Event, Store};
use crate::membership::Ownership;
use crate::membership::member_table::Moment;
use crate::membership::record::{Identity, Session};
use crate::membership::state::{LeaseAnswer, MembershipState, Request};
use crate::membership::timing::Timing;

/// Something that is being done to a key.
#[derive(Debug, Clone)]
pub(super) struct Action {
    pub(super) key: &'static str,
    /// When it is over, by true time.
    pub(super) ends: Duration,
}

/// A replica and its process, which is started again when it has ended.
pub(super) struct RestartingReplica {
    pub(super) identity: Identity,
    /// UID of its Pod; none where it is not known.
    pub(super) pod: Option<Arc<str>>,
    pub(super) process: Option<Process>,
    pub(super) restart: Duration,
}

#[derive(Debug)]
pub(super) struct Process {
    /// Tells apart the processes that had one identity.
    pub(super) number: u64,
    pub(super) identity: Identity,
    pub(super) state: MembershipState,
    /// Local time per true time.
    pub(super) rate: f64,
    pub(super) local: Moment,
    /// Request under way: its number, and when the client gives up.
    pub(super) asked: Option<(u64, Moment)>,
    /// How much of the history its watch has brought.
    pub(super) watched: usize,
    pub(super) actions: Vec<Action>,

    // Faults, until then by true time.
    pub(super) paused: Duration,
    pub(super) cut_off: Duration,
    pub(super) watch_stalled: Duration,
}

impl Process {
    pub(super) fn start(
        number: u64,
        identity: &Identity,
        pod: Option<Arc<str>>,
        timing: Timing,
        history: usize,
        rng: &mut StdRng,
    ) -> Self {
        let rate = [0.9, 1.0, 1.1][rng.random_range(0..3)];
        let address = Arc::from(format!("{identity}:9645"));
        let session = Session(rng.random());
        let me = Arc::clone(identity);
        let mut state = MembershipState::new(me, address, session, Ownership::Exclusive, timing);
        state.pod = pod;
        Self {
            number,
            identity: Arc::clone(identity),
            state,
            rate,
            local: Duration::from_secs(rng.random_range(0..30)),
            asked: None,
            watched: history,
            actions: Vec::new(),
            paused: Duration::ZERO,
            cut_off: Duration::ZERO,
            watch_stalled: Duration::ZERO,
        }
    }

    /// The keys on which it may act, of those given.
    pub(super) fn may_act<'k>(&self, keys: &[&'k str]) -> Vec<&'k str> {
        if self.state.act_until(self.local).is_none() {
            return Vec::new();
        }
        let ring = self.state.ring();
        let owned = |key: &&&str| ring.owner(key) == Some(&self.identity);
        keys.iter().filter(owned).copied().collect()
    }

    /// Starts an action that ends, at the latest, when the replica may no longer act.
    pub(super) fn start_action(&mut self, key: &'static str, now: Duration, rng: &mut StdRng) {
        let Some(until) = self.state.act_until(self.local) else {
            return;
        };
        if !self.may_act(&[key]).is_empty() {
            let longest = (until - self.local).div_f64(self.rate);
            let length = longest.mul_f64(if rng.random_bool(0.2) {
                1.0
            } else {
                rng.random_range(0.0..0.3)
            });
            self.actions.push(Action {
                key,
                ends: now + length,
            });
        }
    }

    /// The steps of the run loop before it asks for the next request.
    pub(super) fn note_actions(&mut self, now: Duration) {
        self.actions.retain(|a| now < a.ends);
        let ring = self.state.ring();
        let lost = |a: &Action| ring.owner(a.key).is_none_or(|owner| *owner != self.identity);
        let busy = self.actions.iter().any(lost);
        self.state.set_busy(busy);
    }

    /// The watch brings up to `most` of what happened.
    pub(super) fn watch(&mut self, store: &Store, most: usize) {
        for event in store.history.iter().skip(self.watched).take(most) {
            self.watched += 1;
            match event {
                Event::Applied(seen) => self.state.observed(self.local, seen.clone()),
                Event::Deleted => self.state.request_list(),
            }
        }
    }

    pub(super) fn next(&mut self) -> Option<Request> {
        let request = self.state.next(self.local);
        while self.state.take_event().is_some() {}
        if request.is_none() && !self.state.has_left() {
            let wake = self.state.wake_at();
            assert!(
                wake.is_none_or(|at| at > self.local),
                "nothing to do at {:?}, but woken at {wake:?}",
                self.local
            );
        }
        request
    }

    pub(super) fn answered(&mut self, answer: LeaseAnswer) {
        self.asked = None;
        self.state.answered(self.local, answer);
    }
}
