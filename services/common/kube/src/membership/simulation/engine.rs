//! All replicas, the API server, what is under way between them, and everything that goes wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::faults::Faults;
use super::process::{Action, Process, RestartingReplica};
use super::store::Store;
use super::{Rule, Violation};
use crate::membership::member_table::Moment;
use crate::membership::state::{LeaseAnswer, Request};
use crate::membership::timing::Timing;

/// Enough that every replica owns some.
const KEYS: [&str; 6] = [
    "shoot--a--a",
    "shoot--b--b",
    "shoot--c--c",
    "shoot--d--d",
    "shoot--e--e",
    "f",
];

/// Where Pods are known, what a dead process has sent comes to its end within this time: the margin that everybody
/// else keeps, see [`Timing::PRODUCTION`]. Elsewhere it may take as long as the process itself would have been allowed.
const IN_FLIGHT: Duration = Duration::from_millis(1_360);

/// A request or an answer under way.
struct Message {
    due: Duration,
    replica: usize,
    process: u64,
    request: u64,
    content: Content,
}

enum Content {
    /// Reaches the API server; the answer gets lost unless `answered`.
    Request {
        request: Request,
        answered: bool,
    },
    Answer(LeaseAnswer),
}

pub(super) struct Simulation {
    rng: StdRng,
    now: Duration,
    timing: Timing,
    broken: Option<Rule>,
    store: Store,
    replicas: Vec<RestartingReplica>,
    messages: Vec<Message>,
    /// Actions of processes that died in the middle.
    orphans: Vec<(usize, Action)>,
    numbers: u64,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Simulation {
    /// One replica per name.
    pub(super) fn new(seed: u64, names: &[&str], timing: Timing, broken: Option<Rule>) -> Self {
        let replica = |name: &&str| RestartingReplica {
            identity: Arc::from(*name),
            pod: None,
            process: None,
            restart: Duration::ZERO,
        };
        Self {
            rng: StdRng::seed_from_u64(seed),
            now: Duration::ZERO,
            timing,
            broken,
            store: Store::default(),
            replicas: names.iter().map(replica).collect(),
            messages: Vec::new(),
            orphans: Vec::new(),
            numbers: 0,
        }
    }

    /// Every replica lives in a Pod of its own.
    pub(super) fn give_pods(&mut self) {
        for replica in &mut self.replicas {
            replica.pod = Some(self.rng.random::<u64>().to_string().into());
        }
    }

    /// All processes live in one Pod.
    pub(super) fn put_all_in_one_pod(&mut self) {
        for replica in &mut self.replicas {
            replica.pod = Some("pod".into());
        }
    }

    /// The container of a replica dies and is started again in its Pod.
    pub(super) fn restart(&mut self, replica: usize) {
        self.replicas[replica].restart = self.now + ms(100);
        self.kill(replica);
    }

    /// Lets time pass, with faults.
    pub(super) fn run(&mut self, span: Duration, faults: Faults) -> Result<(), Violation> {
        let end = self.now + span;
        while self.now < end {
            let step = if self.rng.random_bool(0.3) {
                self.rng.random_range(50..400)
            } else {
                self.rng.random_range(1..50)
            };
            self.pass(ms(step));
            for replica in 0..self.replicas.len() {
                let chance = (faults.rate * ms(step).as_secs_f64()).min(1.0);
                if self.rng.random_bool(chance) {
                    self.fault(replica, faults);
                }
                self.turn(replica, faults);
                self.check()?;
            }
            self.deliver()?;
        }
        Ok(())
    }

    /// Something happens to a replica, or to its Lease.
    fn fault(&mut self, replica: usize, faults: Faults) {
        let now = self.now;
        let Self {
            rng, replicas, store, ..
        } = self;
        let place = &mut replicas[replica];
        let Some(process) = &mut place.process else { return };
        let long = ms(rng.random_range(500..40_000));
        match rng.random_range(0..9) {
            0 => {
                let soon = rng.random_bool(0.5);
                place.restart = now + if soon { ms(100) } else { long };
                if place.pod.is_some() && rng.random_bool(0.3) {
                    place.pod = Some(rng.random::<u64>().to_string().into());
                }
                self.kill(replica);
            }
            1 | 2 => process.paused = now + long,
            3 => process.cut_off = now + long,
            4 => process.watch_stalled = now + long,
            // A watch that starts anew from a cache that lags behind.
            5 => process.watched = process.watched.saturating_sub(rng.random_range(0..20)),
            6 if faults.by_hand => store.delete(&Arc::clone(&process.identity), None),
            7 => process.state.leave(),
            _ => {
                process.cut_off = now + long;
                process.watch_stalled = now + long;
            }
        }
    }

    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        for replica in &mut self.replicas {
            replica.restart = self.now;
            if let Some(process) = &mut replica.process {
                (process.paused, process.cut_off, process.watch_stalled) = (self.now, self.now, self.now);
            }
        }
        self.messages.retain(|m| m.due < self.now + ms(3000));
    }

    /// True if every key has a replica that may act on it.
    pub(super) fn is_covered(&self) -> bool {
        self.processes()
            .map(|(_, p)| p.may_act(&KEYS).len())
            .sum::<usize>()
            == KEYS.len()
    }

    fn processes(&self) -> impl Iterator<Item = (usize, &Process)> {
        self.replicas
            .iter()
            .enumerate()
            .filter_map(|(i, s)| Some((i, s.process.as_ref()?)))
    }

    fn pass(&mut self, step: Duration) {
        self.now += step;
        for replica in &mut self.replicas {
            if let Some(process) = &mut replica.process {
                process.local += step.mul_f64(process.rate);
            }
        }
        let now = self.now;
        self.orphans.retain(|(_, action)| now < action.ends);
    }

    /// A replica does what it does in its run loop.
    fn turn(&mut self, replica: usize, faults: Faults) {
        let now = self.now;
        let Self {
            rng,
            replicas,
            store,
            numbers,
            ..
        } = self;
        let place = &mut replicas[replica];
        let Some(process) = &mut place.process else {
            if now >= place.restart {
                *numbers += 1;
                let (identity, pod) = (&place.identity, place.pod.clone());
                let mut process =
                    Process::start(*numbers, identity, pod, self.timing, store.history.len(), rng);
                process.state.broken = self.broken;
                place.process = Some(process);
            }
            return;
        };
        if process.state.has_left() {
            place.restart = now + ms(rng.random_range(0..8000));
            self.kill(replica);
            return;
        }
        if now < process.paused {
            return;
        }
        if !faults.deaf && now >= process.watch_stalled {
            let most = if rng.random_bool(0.7) {
                usize::MAX
            } else {
                rng.random_range(0..3)
            };
            process.watch(store, most);
        }
        if let Some((_, deadline)) = process.asked
            && process.local >= deadline
        {
            let delay = ms(rng.random_range(100..1000));
            process.answered(LeaseAnswer::Failed(delay));
        }
        process.note_actions(now);
        if let Some(request) = process.next() {
            *numbers += 1;
            process.asked = Some((*numbers, process.local + self.timing.request));
            let cut_off = now < process.cut_off;
            let luck = if faults.rate > 0.0 {
                rng.random_range(0..100)
            } else {
                100
            };
            let (due, answered) = match luck {
                // Arrives long after the client gave up, perhaps.
                0..3 => (ms(rng.random_range(0..70_000)), false),
                3..6 => (ms(rng.random_range(0..3000)), false),
                6..12 => (ms(rng.random_range(0..3000)), true),
                _ => (ms(rng.random_range(0..40)), true),
            };
            let mostly_lost = cut_off && !rng.random_bool(0.05);
            if !mostly_lost {
                let content = Content::Request {
                    request,
                    answered: answered && !cut_off,
                };
                self.messages.push(Message {
                    due: now + due,
                    replica,
                    process: process.number,
                    request: *numbers,
                    content,
                });
            }
        }
        if rng.random_bool(0.3) {
            process.start_action(KEYS[rng.random_range(0..KEYS.len())], now, rng);
        }
    }

    fn deliver(&mut self) -> Result<(), Violation> {
        let now = self.now;
        self.messages.sort_by_key(|m| m.due);
        let split = self.messages.partition_point(|m| m.due <= now);
        let due: Vec<_> = self.messages.drain(..split).collect();
        for message in due {
            match message.content {
                Content::Request { request, answered } => {
                    let answer = self.apply(message.replica, message.process, request);
                    if answered {
                        self.messages.push(Message {
                            due: now + ms(self.rng.random_range(0..40)),
                            content: Content::Answer(answer),
                            ..message
                        });
                    }
                }
                Content::Answer(answer) => {
                    let Some(process) = &mut self.replicas[message.replica].process else {
                        continue;
                    };
                    let waits = process.asked.is_some_and(|(number, _)| number == message.request);
                    if process.number != message.process || !waits {
                        continue;
                    }
                    if now < process.paused {
                        // Lies in the socket until the process goes on.
                        self.messages.push(Message {
                            due: process.paused,
                            content: Content::Answer(answer),
                            ..message
                        });
                    } else {
                        process.answered(answer);
                        self.check()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn apply(&mut self, replica: usize, number: u64, request: Request) -> LeaseAnswer {
        match request {
            Request::List if self.is_hidden_from(replica, number) => LeaseAnswer::Failed(ms(500)),
            Request::List => LeaseAnswer::Listed(self.store.list()),
            Request::Write { base, record } => {
                let conflict = LeaseAnswer::Conflict(ms(self.rng.random_range(100..500)));
                self.store
                    .write(base.as_ref(), record)
                    .map_or(conflict, LeaseAnswer::Written)
            }
            Request::Collect {
                identity,
                lease_version,
            } => {
                self.store.delete(&identity, Some(&lease_version));
                LeaseAnswer::Collected
            }
        }
    }

    /// The one thing that this simulation spares the protocol: a Lease is deleted by hand, and before its holder, who
    /// may act, has written it again and its last action from before has ended, a replica starts a session and cannot
    /// know of it.
    fn is_hidden_from(&self, replica: usize, number: u64) -> bool {
        let starting = self
            .processes()
            .any(|(i, p)| i == replica && p.number == number && !p.state.has_joined());
        let holds = |p: &Process| p.state.is_valid(p.local) || p.actions.iter().any(|a| self.now < a.ends);
        let holders = self
            .processes()
            .filter(|(i, p)| *i != replica && holds(p))
            .map(|(i, _)| i);
        let orphans = self
            .orphans
            .iter()
            .filter(|(_, action)| self.now < action.ends)
            .map(|(i, _)| *i);
        let deleted = |i: usize| self.store.get(&self.replicas[i].identity).is_none();
        starting && holders.chain(orphans).any(deleted)
    }

    fn kill(&mut self, replica: usize) {
        if let Some(process) = self.replicas[replica].process.take() {
            let longest = self.replicas[replica]
                .pod
                .as_ref()
                .map_or(Duration::MAX, |_| self.now + IN_FLIGHT);
            let orphan = |action: Action| {
                let ends = action.ends.min(longest);
                (replica, Action { ends, ..action })
            };
            self.orphans.extend(process.actions.into_iter().map(orphan));
        }
    }

    /// No two replicas may act on one key, or be at it.
    fn check(&self) -> Result<(), Violation> {
        let allowed = |(i, p): (usize, &Process)| p.may_act(&KEYS).into_iter().map(move |key| (key, i));
        let under_way = self
            .processes()
            .flat_map(|(i, p)| p.actions.iter().map(move |a| (i, a)));
        let orphaned = self.orphans.iter().map(|(i, action)| (*i, action));
        let actions = under_way.chain(orphaned).filter(|(_, a)| self.now < a.ends);
        let mut actors: BTreeMap<&'static str, BTreeSet<usize>> = BTreeMap::new();
        for (key, replica) in self
            .processes()
            .flat_map(allowed)
            .chain(actions.map(|(i, a)| (a.key, i)))
        {
            actors.entry(key).or_default().insert(replica);
        }
        let at = self.now;
        for (replica, action) in self.orphans.iter().filter(|(_, action)| self.now < action.ends) {
            let (key, successor) = (action.key, self.replicas[*replica].process.as_ref());
            if successor.is_some_and(|process| !process.may_act(&[key]).is_empty()) {
                let actors = [*replica].into();
                return Err(Violation { key, actors, at });
            }
        }
        match actors.into_iter().find(|(_, actors)| actors.len() > 1) {
            Some((key, actors)) => Err(Violation { key, actors, at }),
            None => Ok(()),
        }
    }
}

/// So that a violation tells more than that it happened.
impl std::fmt::Debug for Simulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let local: Vec<(usize, Moment)> = self.processes().map(|(i, p)| (i, p.local)).collect();
        f.debug_struct("Simulation")
            .field("now", &self.now)
            .field("local", &local)
            .field("leases", &self.store.list())
            .finish()
    }
}
