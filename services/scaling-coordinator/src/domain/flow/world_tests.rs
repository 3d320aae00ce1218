//! A small world against which the flow plays: an API server with versions, a lagging watch, controllers, somebody
//! else who writes, lost and late answers, and crashes, in any order.

use proptest::prelude::*;
use watchdog_api::prober::DependentResource;
use watchdog_api::workload::RecordedReplicas;

use super::*;
use crate::domain::next_step::Write;
use crate::domain::observed::ResourceState;
use crate::domain::testing::{S, dependent, dependent_of, gardener, scale_only, start};

#[derive(Debug, Clone, PartialEq)]
struct Object {
    version: u64,
    replicas: i32,
    ready: i32,
    generation: u64,
    observed: u64,
    recorded: Option<i32>,
    protected: bool,
    ignored: bool,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Turn(Option<Direction>),
    Pass(u64),
    Watch(usize),
    Controller(usize),
    /// Make at most this number of the wanted requests.
    Send(usize),
    Answer(usize, Fate),
    Deliver(usize),
    /// Somebody else scales, or merely touches the object with 0.
    Meddle(usize, i32),
    Crash(Fate),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Applied,
    AppliedButLost,
    Lost,
    Refused,
    Late,
}

struct World {
    config: Vec<DependentResource>,
    objects: Vec<Object>,
    view: Vec<Object>,
    /// The replicas that everyone except the watchdog wants, and that must come back.
    wanted: Vec<i32>,
    flow: Flow,
    direction: Option<Direction>,
    sent: Vec<Action>,
    late: Vec<Action>,
    now: Instant,
    version: u64,
}

fn view(object: &Object) -> ResourceState {
    ResourceState {
        resource_version: object.version.to_string().into(),
        replicas: Some(object.replicas),
        ready: object.ready,
        current: object.observed == object.generation,
        recorded: object
            .recorded
            .map_or(RecordedReplicas::Absent, RecordedReplicas::Count),
        protected: object.protected,
        ignored: object.ignored,
        invalid_ignore_scaling: None,
    }
}

impl World {
    fn new(config: Vec<DependentResource>, replicas: &[i32]) -> Self {
        let object = |replicas: &i32| Object {
            version: 1,
            replicas: *replicas,
            ready: *replicas,
            generation: 1,
            observed: 1,
            recorded: None,
            protected: false,
            ignored: false,
        };
        let objects: Vec<_> = replicas.iter().map(object).collect();
        Self {
            config,
            view: objects.clone(),
            objects,
            wanted: replicas.to_vec(),
            flow: Flow::default(),
            direction: None,
            sent: Vec::new(),
            late: Vec::new(),
            now: start(),
            version: 1,
        }
    }

    fn next(&mut self) -> Steps {
        let dependents: Vec<_> = self
            .config
            .iter()
            .zip(&self.view)
            .map(|(d, o)| dependent_of(d, view(o)))
            .collect();
        self.flow.next(self.now, self.direction, &dependents)
    }

    fn index(&self, action: &Action) -> usize {
        self.config
            .iter()
            .position(|d| d.reference == action.reference)
            .unwrap()
    }

    fn send(&mut self, at_most: usize) {
        for action in self.next().actions.into_iter().take(at_most) {
            assert_eq!(Some(action.direction), self.direction, "S1");
            assert!(
                !self.flow.is_under_way(&action.reference),
                "one request at a time"
            );
            let level = action.direction.info(&self.config[self.index(&action)]).level;
            for (dependent, object) in self.config.iter().zip(&self.view) {
                if action.direction.info(dependent).level < level {
                    let under_way = self.sent.iter().any(|sent| sent.reference == dependent.reference);
                    assert!(
                        !under_way,
                        "S3: {action:?} while a write on {} is under way",
                        dependent.reference
                    );
                    let next_step =
                        plan_step(action.direction, &dependent_of(dependent, view(object))).next_step;
                    assert!(
                        next_step.is_done(),
                        "S3: {action:?} while {} needs {next_step:?}",
                        dependent.reference
                    );
                }
            }
            self.flow.start(self.now, &action);
            self.sent.push(action);
        }
    }

    /// The API server gets a write.
    fn apply(&mut self, action: &Action) -> bool {
        let index = self.index(action);
        let What::Write(write) = &action.what else {
            self.view[index] = self.objects[index].clone();
            return true;
        };
        self.version += 1;
        let object = &mut self.objects[index];
        if *action.against != *object.version.to_string() {
            return false;
        }
        object.version = self.version;
        match write {
            Write::Record { replicas } => {
                assert!(*replicas > 0, "zero is never recorded");
                assert_eq!(*replicas, object.replicas);
                (object.recorded, object.protected) = (Some(*replicas), true);
            }
            Write::Scale { from, to, record, .. } => {
                assert_eq!(*from, object.replicas);
                if *record {
                    (object.recorded, object.protected) = (Some(*from), true);
                }
                if action.direction == Direction::Down {
                    assert!(object.protected && object.recorded == Some(object.replicas), "S6");
                }
                object.replicas = *to;
                object.generation += 1;
            }
            Write::CleanUp => {
                assert!(object.replicas > 0, "what is held down stays protected");
                object.protected = false;
            }
        }
        true
    }

    fn answer(&mut self, action: &Action, fate: Fate) {
        let unknown = Outcome::Unknown {
            why: "lost".into(),
            retry_after: None,
        };
        let outcome = match fate {
            Fate::Applied if self.apply(action) => Outcome::Done,
            Fate::Applied => Outcome::Conflict,
            Fate::AppliedButLost => {
                self.apply(action);
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
        self.flow.finish(self.now, action, outcome);
    }

    fn play(&mut self, event: Event) {
        let pick = |index: usize, len: usize| (len > 0).then(|| index % len);
        match event {
            Event::Turn(direction) => self.direction = direction,
            Event::Pass(millis) => self.now += std::time::Duration::from_millis(millis),
            Event::Watch(index) => {
                let index = index % self.view.len();
                self.view[index] = self.objects[index].clone();
            }
            Event::Controller(index) => {
                let index = index % self.objects.len();
                self.converge(index);
            }
            Event::Send(at_most) => self.send(at_most),
            Event::Answer(index, fate) => {
                if let Some(index) = pick(index, self.sent.len()) {
                    let action = self.sent.remove(index);
                    self.answer(&action, fate);
                }
            }
            Event::Deliver(index) => {
                if let Some(index) = pick(index, self.late.len()) {
                    let action = self.late.remove(index);
                    self.apply(&action);
                }
            }
            Event::Meddle(index, replicas) => {
                let index = index % self.objects.len();
                self.version += 1;
                let object = &mut self.objects[index];
                object.version = self.version;
                if replicas > 0 {
                    object.replicas = replicas;
                    object.generation += 1;
                    self.wanted[index] = replicas;
                }
            }
            Event::Crash(fate) => {
                for action in std::mem::take(&mut self.sent) {
                    self.answer(&action, fate);
                }
                self.flow = Flow::default();
                self.view = self.objects.clone();
            }
        }
        self.next();
    }

    fn converge(&mut self, index: usize) {
        let object = &mut self.objects[index];
        if object.observed != object.generation || object.ready != object.replicas {
            self.version += 1;
            object.version = self.version;
            (object.observed, object.ready) = (object.generation, object.replicas);
        }
    }

    /// Everything works from now on: the flow must come to its end, and soon.
    fn settle(&mut self, direction: Direction) -> State {
        self.direction = Some(direction);
        for action in std::mem::take(&mut self.late) {
            self.apply(&action);
        }
        for _ in 0..200 {
            for action in std::mem::take(&mut self.sent) {
                self.answer(&action, Fate::Applied);
            }
            for index in 0..self.objects.len() {
                self.converge(index);
            }
            self.view = self.objects.clone();
            let steps = self.next();
            if steps.status.state == State::Settled {
                return State::Settled;
            }
            if steps.actions.is_empty() {
                self.now = steps.wake.unwrap_or(self.now + S);
            }
            self.send(usize::MAX);
        }
        self.next().status.state
    }
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Applied),
        1 => Just(Fate::AppliedButLost),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Refused),
        1 => Just(Fate::Late),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let direction = prop_oneof![Just(None), Just(Some(Direction::Down)), Just(Some(Direction::Up))];
    prop_oneof![
        2 => direction.prop_map(Event::Turn),
        2 => (1..40_000_u64).prop_map(Event::Pass),
        4 => (0..3_usize).prop_map(Event::Watch),
        3 => (0..3_usize).prop_map(Event::Controller),
        6 => (1..4_usize).prop_map(Event::Send),
        6 => (0..3_usize, fate()).prop_map(|(index, fate)| Event::Answer(index, fate)),
        1 => (0..3_usize).prop_map(Event::Deliver),
        1 => (0..3_usize, 0..4_i32).prop_map(|(index, replicas)| Event::Meddle(index, replicas)),
        1 => fate().prop_map(Event::Crash),
    ]
}

fn config() -> impl Strategy<Value = Vec<DependentResource>> {
    let levels = || prop::collection::vec(0..3_i32, 3);
    let any = (levels(), levels()).prop_map(|(up, down)| {
        let names = ["a", "b", "c"];
        names
            .iter()
            .zip(up.into_iter().zip(down))
            .map(|(name, (up, down))| dependent(name, up, down))
            .map(|any| {
                if any.reference.name == "b" {
                    scale_only(any)
                } else {
                    any
                }
            })
            .collect()
    });
    prop_oneof![Just(gardener()), any]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_counts_are_kept_and_restored(
        config in config(),
        replicas in prop::collection::vec(1..4_i32, 3),
        events in prop::collection::vec(event(), 0..120),
    ) {
        let mut world = World::new(config, &replicas);
        for event in events {
            world.play(event);
        }
        let recorded: Vec<_> = world.objects.iter().map(|o| o.recorded).collect();
        prop_assert_eq!(world.settle(Direction::Down), State::Settled, "{:?}", world.next().status);
        for (object, wanted) in world.objects.iter().zip(&world.wanted) {
            prop_assert_eq!((object.replicas, object.ready), (0, 0));
            prop_assert_eq!((object.recorded, object.protected), (Some(*wanted), true), "before: {:?}", &recorded);
        }
        prop_assert_eq!(world.settle(Direction::Up), State::Settled, "{:?}", world.next().status);
        for (object, wanted) in world.objects.iter().zip(&world.wanted) {
            prop_assert_eq!((object.replicas, object.ready), (*wanted, *wanted));
            prop_assert!(!object.protected);
        }
    }
}

#[test]
fn a_crash_after_any_number_of_requests_changes_nothing() {
    // Down, up again, with a crash after every possible number of requests, applied or lost.
    for fate in [Fate::Applied, Fate::Lost] {
        for crash_after in 0..40 {
            let mut world = World::new(gardener(), &[2, 1, 3]);
            let mut requests = 0;
            for direction in [Direction::Down, Direction::Up] {
                world.direction = Some(direction);
                for _ in 0..100 {
                    world.send(1);
                    if let Some(action) = world.sent.pop() {
                        if requests == crash_after {
                            world.sent.push(action);
                            world.play(Event::Crash(fate));
                        } else {
                            world.answer(&action, Fate::Applied);
                        }
                        requests += 1;
                    }
                    for index in 0..3 {
                        world.converge(index);
                    }
                    world.view = world.objects.clone();
                    let steps = world.next();
                    if steps.actions.is_empty() {
                        world.now = steps.wake.unwrap_or(world.now);
                    }
                }
                assert_eq!(world.next().status.state, State::Settled);
                let replicas: Vec<_> = world.objects.iter().map(|o| o.replicas).collect();
                let expected = if direction == Direction::Down {
                    [0, 0, 0]
                } else {
                    [2, 1, 3]
                };
                assert_eq!(replicas, expected, "crash after {crash_after} requests");
            }
        }
    }
}
