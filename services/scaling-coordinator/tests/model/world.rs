//! One state of everything around one shoot, and what can happen next.

mod calm;
mod events;
mod judge;

use std::sync::Arc;
use std::time::Duration;

use scaling_coordinator::domain::Direction;
use scaling_coordinator::domain::decision::{Outcome as Says, Streams, Verdict, decide};
use scaling_coordinator::domain::flow::{Action, Flow, Outcome, Steps, What};
use scaling_coordinator::domain::needs::Write;
use scaling_coordinator::domain::sight::{Item, Seen, Sight};
use tokio::time::Instant;
use watchdog_api::prober::{DependentResource, ResourceRef, ScaleInfo};
use watchdog_api::workload::RecordedReplicas;

use crate::rules::{Budget, NONE, Rules};

/// Two resources on two levels, in opposite orders: the first goes up first and down last.
const NAMES: [&str; 2] = ["kube-controller-manager", "machine-controller-manager"];

/// A Deployment as the API server has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Object {
    version: u32,
    replicas: i32,
    ready: i32,
    current: bool,
    recorded: Option<i32>,
    protected: bool,
    /// The last version that came out of the blue: by somebody else, or by a write that nobody waited for any more.
    surprise: u32,
}

/// What the two replicas of lease-probe say together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Saying {
    Nothing,
    Healthy,
    LeasesExpired,
    ExternalUnreachable,
    Inconclusive,
    /// The nodes were cut off, and nobody has said so again in time.
    Stale,
    /// One says healthy, one says expired.
    Contradiction,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
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
    Say(Saying),
    /// The watch of a coordinator brings an object.
    Watch(usize, usize),
    /// The watch of a coordinator brings the Cluster.
    WatchCluster(usize),
    /// The controllers bring a Deployment to its replicas.
    Controllers(usize),
    /// A coordinator makes one of the requests that it wants to make.
    Send(usize, usize),
    Answer(usize, usize, Fate),
    /// A late write arrives.
    Arrive(usize),
    /// Somebody else scales, or touches.
    Meddle(usize, i32),
    Touch(usize),
    /// Hibernated, deleted or migrated.
    Stop,
    /// The acting process dies while its requests meet this fate.
    Crash(usize, Fate),
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
    flow: Flow,
    view: [Object; 2],
    cluster: bool,
    sent: Vec<Action>,
}

/// One state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    objects: [Object; 2],
    /// What everybody but the watchdog wants: what must come back.
    wanted: [i32; 2],
    allowed: bool,
    saying: Saying,
    coordinators: [Coordinator; 2],
    late: Vec<Action>,
    now: Instant,
    left: Budget,
    /// How it began.
    first: [Object; 2],
}

type Checked = Result<(), String>;

fn dependents(in_order: bool) -> Vec<DependentResource> {
    let info = |level: i32| ScaleInfo {
        level: if in_order { level } else { 0 },
        initial_delay: Duration::ZERO,
        timeout: Duration::from_secs(30),
        replicas: None,
    };
    let levels = [(0, 1), (1, 0)];
    let dependent = |(name, (up, down)): (&&str, (i32, i32))| DependentResource {
        reference: ResourceRef {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            name: (*name).into(),
        },
        optional: false,
        scale_up: info(up),
        scale_down: info(down),
    };
    NAMES.iter().zip(levels).map(dependent).collect()
}

/// Which of the two a request is about.
fn index(action: &Action) -> usize {
    usize::from(action.reference.name == NAMES[1])
}

impl Object {
    fn seen(&self) -> Seen {
        Seen {
            resource_version: self.version.to_string().into(),
            replicas: Some(self.replicas),
            ready: self.ready,
            current: self.current,
            recorded: self
                .recorded
                .map_or(RecordedReplicas::Absent, RecordedReplicas::Count),
            protected: self.protected,
            ignored: false,
        }
    }

    fn scale(&mut self, replicas: i32) {
        (self.replicas, self.current) = (replicas, false);
        self.version += 1;
    }

    fn has_reached(&self, direction: Direction) -> bool {
        match direction {
            Direction::Down => self.replicas == 0 && self.ready == 0,
            Direction::Up => self.replicas > 0 && self.ready > 0,
        }
    }
}

impl World {
    /// A healthy shoot with two and one replicas, and nothing said yet.
    pub fn new(left: Budget) -> Self {
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
            flow: Flow::default(),
            view: objects.clone(),
            cluster: true,
            sent: Vec::new(),
        };
        Self {
            wanted: [2, 1],
            allowed: true,
            saying: Saying::Nothing,
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
        self.saying = Saying::LeasesExpired;
        self.look(rules);
    }

    pub const fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Lets something happen.
    ///
    /// # Errors
    /// The invariant that breaks by it.
    pub fn play(&mut self, event: Event, rules: Rules) -> Checked {
        match event {
            Event::Begin => {}
            Event::Say(saying) => {
                self.left.turns -= 1;
                self.saying = saying;
            }
            Event::Watch(c, i) => self.coordinators[c].view[i] = self.objects[i].clone(),
            Event::WatchCluster(c) => self.coordinators[c].cluster = self.allowed,
            Event::Controllers(i) => self.converge(i),
            Event::Send(c, action) => self.send(c, action, rules)?,
            Event::Answer(c, action, fate) => {
                let action = self.coordinators[c].sent.remove(action);
                self.left.losses -= u8::from(fate != Fate::Answered);
                self.answer(c, action, fate, rules)?;
            }
            Event::Arrive(late) => {
                let action = self.late.remove(late);
                let i = index(&action);
                if self.apply(&action, rules)? {
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
                self.allowed = false;
            }
            Event::Crash(c, fate) => self.crash(c, fate, rules)?,
            Event::Release(c) => {
                self.left.moves -= 1;
                self.retire(c, rules);
            }
            Event::Acquire(c) => self.acquire(c),
            Event::Jump => {
                self.left.jumps -= 1;
                self.now = self.wake(rules).unwrap_or(self.now);
            }
        }
        self.look(rules);
        self.check()
    }

    /// Every acting coordinator looks at the shoot, as after every wake.
    fn look(&mut self, rules: Rules) {
        if !rules.exclusive {
            // Two that both lag are too many states; the first sees everything at once, and is answered at once.
            self.coordinators[0].view = self.objects.clone();
        }
        for c in 0..2 {
            if self.coordinators[c].acts {
                let mut flow = std::mem::take(&mut self.coordinators[c].flow);
                self.next(c, &mut flow, rules);
                self.coordinators[c].flow = flow;
            }
        }
    }

    /// What a coordinator wants to do, without letting it.
    fn steps(&self, c: usize, rules: Rules) -> Steps {
        self.next(c, &mut self.coordinators[c].flow.clone(), rules)
    }

    fn next(&self, c: usize, flow: &mut Flow, rules: Rules) -> Steps {
        let dependents = dependents(rules.order);
        let view = dependents.iter().zip(&self.coordinators[c].view);
        let items: Vec<_> = view
            .map(|(dependent, object)| Item {
                dependent,
                sight: Sight::Present(object.seen()),
            })
            .collect();
        flow.next(self.now, self.direction(c, rules), &items)
    }

    fn direction(&self, c: usize, rules: Rules) -> Option<Direction> {
        if !self.coordinators[c].cluster {
            return None;
        }
        let said = |observer: &str, outcome, valid: bool| Verdict {
            outcome,
            observer: observer.into(),
            observed: self.now,
            sent: self.now,
            valid_until: if valid || !rules.validity {
                self.now + Duration::from_secs(1)
            } else {
                self.now
            },
            message: Arc::from(""),
        };
        let mut verdicts = match self.saying {
            Saying::Nothing => vec![],
            Saying::Healthy => vec![said("a", Says::Healthy, true), said("b", Says::Healthy, true)],
            Saying::LeasesExpired => vec![
                said("a", Says::LeasesExpired, true),
                said("b", Says::Pending, true),
            ],
            Saying::ExternalUnreachable => vec![said("a", Says::ExternalUnreachable, true)],
            Saying::Inconclusive => vec![said("a", Says::Inconclusive, true)],
            Saying::Stale => vec![said("a", Says::LeasesExpired, false)],
            Saying::Contradiction => vec![
                said("a", Says::LeasesExpired, true),
                said("b", Says::Healthy, true),
            ],
        };
        if !rules.observers {
            verdicts.truncate(1);
        }
        decide(self.now, &verdicts, Streams { known: 2, synced: 2 }).direction
    }

    fn wake(&self, rules: Rules) -> Option<Instant> {
        let acting = (0..2).filter(|c| self.coordinators[*c].acts);
        acting
            .filter_map(|c| self.steps(c, rules).wake)
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

    fn send(&mut self, c: usize, action: usize, rules: Rules) -> Checked {
        let mut action = self.steps(c, rules).actions.remove(action);
        let i = index(&action);
        self.coordinators[c].flow.start(self.now, &action);
        if action.what == What::Read {
            if rules.reads {
                self.coordinators[c].view[i] = self.objects[i].clone();
            }
            self.coordinators[c].flow.finish(self.now, &action, Outcome::Done);
            return Ok(());
        }
        if rules.cluster && !self.allowed {
            self.coordinators[c].cluster = false;
            self.coordinators[c]
                .flow
                .finish(self.now, &action, Outcome::Withdrawn);
            return Ok(());
        }
        self.check_sending(c, &action, rules)?;
        if let (What::Write(Write::Record { replicas }), false) = (&action.what, rules.record) {
            action.what = What::Write(Write::Scale {
                from: *replicas,
                to: 0,
                unreadable: None,
            });
        }
        if !rules.exclusive && c == 0 {
            return self.answer(c, action, Fate::Answered, rules);
        }
        self.coordinators[c].sent.push(action);
        Ok(())
    }

    fn answer(&mut self, c: usize, action: Action, fate: Fate, rules: Rules) -> Checked {
        let unknown = Outcome::Unknown {
            why: "no answer".into(),
            retry_after: None,
        };
        let outcome = match fate {
            Fate::Answered if self.apply(&action, rules)? => Outcome::Done,
            Fate::Answered => Outcome::Conflict,
            Fate::AppliedButLost => {
                self.apply(&action, rules)?;
                unknown
            }
            Fate::Lost => unknown,
            Fate::Late => {
                self.late.push(action.clone());
                unknown
            }
            Fate::Refused => Outcome::Refused {
                why: "500".into(),
                retry_after: None,
            },
        };
        if rules.deadline || fate == Fate::Answered {
            self.coordinators[c].flow.finish(self.now, &action, outcome);
        }
        Ok(())
    }

    /// The API server gets a write: whether it was applied.
    fn apply(&mut self, action: &Action, rules: Rules) -> Result<bool, String> {
        let i = index(action);
        let (object, wanted) = (&mut self.objects[i], self.wanted[i]);
        if rules.precondition && *action.against != *object.version.to_string() {
            return Ok(false);
        }
        let What::Write(write) = &action.what else {
            return Ok(false);
        };
        match write {
            Write::Record { replicas } => {
                (object.recorded, object.protected) = (Some(*replicas), true);
                object.version += 1;
                if *replicas != object.replicas {
                    return Err(format!(
                        "S6: {replicas} are recorded, there are {}",
                        object.replicas
                    ));
                }
            }
            Write::Scale { to, .. } => {
                object.scale(*to);
                if *to > 0 && *to != wanted {
                    return Err(format!("S6: restored to {to} instead of {wanted}"));
                }
            }
            Write::CleanUp => {
                object.protected = false;
                object.version += 1;
            }
        }
        Ok(true)
    }

    fn crash(&mut self, c: usize, fate: Fate, rules: Rules) -> Checked {
        self.left.crashes -= 1;
        self.left.losses -= u8::from(fate == Fate::Late);
        for action in std::mem::take(&mut self.coordinators[c].sent) {
            self.answer(c, action, fate, rules)?;
        }
        self.retire(c, rules);
        // It will list everything before it acts again; until then it does not matter what it saw.
        let coordinator = &mut self.coordinators[c];
        (coordinator.view, coordinator.cluster, coordinator.lists) = (self.first.clone(), true, true);
        if !rules.durable {
            self.objects.iter_mut().for_each(|object| object.recorded = None);
        }
        Ok(())
    }

    /// A replica forgets a shoot that is not its own any more; what is under way ends by itself. What it sees from now
    /// on is what it saw then: its watches may be late for any time, each by itself.
    fn retire(&mut self, c: usize, rules: Rules) {
        self.coordinators[c].acts = false;
        if rules.anew {
            self.coordinators[c].flow = Flow::default();
        }
    }

    fn acquire(&mut self, c: usize) {
        let coordinator = &mut self.coordinators[c];
        coordinator.acts = true;
        if std::mem::take(&mut coordinator.lists) {
            (coordinator.view, coordinator.cluster) = (self.objects.clone(), self.allowed);
        }
    }
}
