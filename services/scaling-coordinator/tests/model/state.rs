//! One state of everything around one shoot, and what can happen next.

mod events;
mod faultless;
mod invariants;
mod object;
mod requests;

use std::sync::Arc;
use std::time::Duration;

use scaling_coordinator::domain::Direction;
use scaling_coordinator::domain::attempts::FlowHints;
use scaling_coordinator::domain::decision::{
    CONFIRMATION_WAIT, ReceivedVerdict, ReportedOutcome as Says, StreamCounts, decide,
};
use scaling_coordinator::domain::next_step::next_step;
use scaling_coordinator::domain::observed::{Dependent, Observed};
use scaling_coordinator::domain::request::Request;
use tokio::time::Instant;
use watchdog_api::policy::Mode;

use self::object::{Object, dependents, index};
use crate::rules::{Budget, Rules};

/// The combined verdicts of the two lease-probe replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CombinedVerdict {
    Nothing,
    Healthy,
    LeasesExpired,
    ExternalUnreachable,
    Inconclusive,
    /// The nodes were cut off, and no probe has repeated it in time.
    Stale,
    /// One says healthy, one says expired.
    Contradiction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestFate {
    Answered,
    AppliedButLost,
    Lost,
    Late,
    Refused,
}

/// Everything that can happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Begin,
    Say(CombinedVerdict),
    /// The watch of a coordinator brings an object.
    Watch(usize, usize),
    /// The watch of a coordinator brings the Cluster.
    WatchCluster(usize),
    /// A coordinator lists an object whose list was refused before.
    List(usize, usize),
    /// The controllers bring a Deployment to its replicas.
    Controllers(usize),
    /// A coordinator makes one of the requests that it wants to make.
    Send(usize, usize),
    Answer(usize, usize, RequestFate),
    /// A late write arrives.
    Arrive(usize),
    /// Somebody else scales, or touches.
    Meddle(usize, i32),
    Touch(usize),
    /// Hibernated, deleted or migrated.
    Stop,
    /// Wakes up again.
    Resume,
    /// The acting process dies while its requests meet this fate.
    Crash(usize, RequestFate),
    /// A replica loses the shoot to another.
    Release(usize),
    Acquire(usize),
    Jump,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Coordinator {
    acts: bool,
    /// A new process: it lists everything before it acts.
    lists: bool,
    hints: FlowHints,
    view: [Object; 2],
    /// The objects that a watch brings; the others are only read.
    listed: [bool; 2],
    /// The objects of which the view shows something.
    seen: [bool; 2],
    /// The objects that were read just now.
    read: [bool; 2],
    cluster: bool,
    /// The requests of its turn that were not made yet.
    queued: Vec<Request>,
    /// Its turn has begun: what follows from news must wait for the end of it.
    has_turn: bool,
    /// When it reconciles again although nothing happens.
    wake: Option<Instant>,
    sent: Vec<Request>,
}

/// One state of everything around the shoot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelState {
    objects: [Object; 2],
    /// The replicas that everyone except the watchdog wants, and that must come back.
    wanted: [i32; 2],
    allowed: bool,
    /// It was not allowed at some time: what is held down may be unmarked.
    was_stopped: bool,
    verdict: CombinedVerdict,
    coordinators: [Coordinator; 2],
    late: Vec<Request>,
    now: Instant,
    left: Budget,
    /// How it began.
    first: [Object; 2],
}

type Checked = anyhow::Result<()>;

impl ModelState {
    /// A healthy shoot with two and one replicas, and no verdict yet.
    pub fn new(left: Budget, rules: Rules) -> Self {
        let objects = [2, 1].map(|replicas| Object {
            version: 1,
            replicas,
            ready: replicas,
            current: true,
            recorded: None,
            protected: false,
            surprise: 0,
        });
        let coordinator = |acts| Coordinator {
            acts,
            lists: false,
            hints: FlowHints::default(),
            view: objects.clone(),
            listed: rules.listed(),
            seen: rules.listed(),
            read: [false; 2],
            cluster: true,
            queued: Vec::new(),
            has_turn: false,
            wake: None,
            sent: Vec::new(),
        };
        Self {
            wanted: [2, 1],
            allowed: true,
            was_stopped: false,
            verdict: CombinedVerdict::Nothing,
            coordinators: [coordinator(true), coordinator(false)],
            late: Vec::new(),
            now: Instant::now(),
            left,
            first: objects.clone(),
            objects: objects.clone(),
        }
    }

    /// Everything was well until now; from here on the nodes are cut off.
    pub fn begin(&mut self, rules: Rules) {
        self.coordinators[1].acts = !rules.exclusive;
        self.verdict = CombinedVerdict::LeasesExpired;
        self.reconcile(rules);
    }

    /// Lets something happen.
    ///
    /// # Errors
    /// The invariant that breaks by it.
    pub fn play(&mut self, event: Event, rules: Rules) -> Checked {
        match event {
            Event::Begin => {}
            Event::Say(verdict) => {
                self.left.turns -= 1;
                self.verdict = verdict;
            }
            Event::Watch(c, i) => self.coordinators[c].view[i] = self.objects[i].clone(),
            Event::WatchCluster(c) => self.coordinators[c].cluster = self.allowed,
            Event::List(c, i) => {
                self.left.lists -= 1;
                let coordinator = &mut self.coordinators[c];
                coordinator.view[i] = self.objects[i].clone();
                (coordinator.listed[i], coordinator.seen[i]) = (true, true);
            }
            Event::Controllers(i) => self.converge(i),
            // The end of a request reconciles, not its beginning.
            Event::Send(c, action) if self.send(c, action, rules)? => return self.check(),
            Event::Send(..) => {}
            Event::Answer(c, action, fate) => {
                let sent = self.coordinators[c].sent.remove(action);
                self.left.losses -= u8::from(fate != RequestFate::Answered);
                self.answer(c, sent, fate, rules)?;
            }
            Event::Arrive(late) => {
                let sent = self.late.remove(late);
                let i = index(&sent);
                if self.apply(&sent, rules)? {
                    self.objects[i].surprise = self.objects[i].version;
                }
            }
            Event::Meddle(i, replicas) => {
                self.left.meddles -= 1;
                self.objects[i].scale(replicas);
                self.objects[i].surprise = self.objects[i].version;
                self.wanted[i] = replicas;
            }
            Event::Touch(i) => {
                self.left.meddles -= 1;
                self.objects[i].version += 1;
            }
            Event::Stop => {
                self.left.stops -= 1;
                (self.allowed, self.was_stopped) = (false, true);
            }
            Event::Resume => {
                self.left.resumes -= 1;
                self.allowed = true;
            }
            Event::Crash(c, fate) => self.crash(c, fate, rules)?,
            Event::Release(c) => {
                self.left.moves -= 1;
                self.retire(c, rules);
            }
            Event::Acquire(c) => self.acquire(c),
            Event::Jump => {
                self.left.jumps -= 1;
                self.now = self.wake().unwrap_or(self.now);
                for coordinator in &mut self.coordinators {
                    coordinator.read = [false; 2];
                }
            }
        }
        self.reconcile(rules);
        self.check()
    }

    /// Every acting coordinator reconciles the shoot, as for every item of its work queue.
    fn reconcile(&mut self, rules: Rules) {
        if !rules.exclusive {
            // Two that both lag are too many states; the first sees everything at once, and is answered at once.
            self.coordinators[0].view = self.objects.clone();
        }
        for c in 0..2 {
            if self.coordinators[c].acts {
                self.reconcile_one(c, rules);
            }
        }
    }

    fn reconcile_one(&mut self, c: usize, rules: Rules) {
        if self.coordinators[c].has_turn {
            let coordinator = &self.coordinators[c];
            if !(coordinator.queued.is_empty() && coordinator.sent.is_empty()) {
                return;
            }
        }
        let direction = self.direction(c, rules);
        let dependents = dependents(rules, rules.order);
        let coordinator = &mut self.coordinators[c];
        if rules.forgets && coordinator.hints.begins(direction) {
            for (seen, listed) in coordinator.seen.iter_mut().zip(coordinator.listed) {
                *seen &= listed;
            }
        }
        let objects = coordinator.view.iter().zip(coordinator.seen);
        let observed = objects.map(|(object, seen)| match seen {
            true => Observed::Present(object.seen()),
            false => Observed::NotListed,
        });
        let seen = dependents.iter().zip(observed).zip(coordinator.read);
        let dependents: Vec<_> = seen
            .map(|((config, observed), read)| Dependent {
                config: Arc::new(config.clone()),
                dropped: false,
                observed,
                read: read || !rules.reads,
            })
            .collect();
        let hints = &mut coordinator.hints;
        let next = next_step(self.now, direction, Mode::Protect, &dependents, hints);
        coordinator.queued = next.requests;
        (coordinator.has_turn, coordinator.wake) = (false, next.wake);
    }

    fn direction(&self, c: usize, rules: Rules) -> Option<Direction> {
        if !self.coordinators[c].cluster {
            return rules.release.then_some(Direction::Release);
        }
        let reported = |observer: &str, outcome, valid: bool| ReceivedVerdict {
            outcome,
            observer: observer.into(),
            observed: self.now,
            outcome_since: self.now,
            list_revision: 0,
            first_revision: 0,
            valid_until: if valid || !rules.validity {
                self.now + Duration::from_secs(1)
            } else {
                self.now
            },
            message: Arc::from(""),
            evidence: None,
        };
        let mut verdicts = match self.verdict {
            CombinedVerdict::Nothing => vec![],
            CombinedVerdict::Healthy => vec![
                reported("a", Says::Healthy, true),
                reported("b", Says::Healthy, true),
            ],
            CombinedVerdict::LeasesExpired => vec![
                reported("a", Says::LeasesExpired, true),
                // It has just started, so it knows of no reason to doubt: its verdict is not waited for.
                ReceivedVerdict {
                    outcome_since: self.now - 2 * CONFIRMATION_WAIT,
                    ..reported("b", Says::Pending, true)
                },
            ],
            CombinedVerdict::ExternalUnreachable => vec![reported("a", Says::ExternalUnreachable, true)],
            CombinedVerdict::Inconclusive => vec![reported("a", Says::Undecided("INCONCLUSIVE"), true)],
            CombinedVerdict::Stale => vec![reported("a", Says::LeasesExpired, false)],
            CombinedVerdict::Contradiction => vec![
                reported("a", Says::LeasesExpired, true),
                reported("b", Says::Healthy, true),
            ],
        };
        if !rules.observers {
            verdicts.truncate(1);
        }
        decide(self.now, &verdicts, StreamCounts { known: 2, synced: 2 }).direction
    }

    fn wake(&self) -> Option<Instant> {
        let acting = self.coordinators.iter().filter(|coordinator| coordinator.acts);
        acting
            .filter_map(|coordinator| coordinator.wake)
            .filter(|at| *at > self.now)
            .min()
    }

    fn converge(&mut self, i: usize) {
        let object = &mut self.objects[i];
        if !object.current || object.ready != object.replicas {
            (object.ready, object.current) = (object.replicas, true);
            object.version += 1;
        }
    }
}
