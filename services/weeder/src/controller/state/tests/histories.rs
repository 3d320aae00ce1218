//! Any history of a service and of the pods that need it, as two weeders receive it whose clocks are wrong.

use super::*;
use crate::domain::readiness::SliceWrite;

/// A step of a history.
#[derive(Debug, Clone)]
enum Step {
    /// Milliseconds pass.
    Wait(i64),
    /// The slice is written. It has the date of this clock, which is that many seconds off; or none.
    Write {
        ready: bool,
        dated: Option<i64>,
    },
    /// Something else about the slice is written: its date stays.
    Touch,
    Crash(usize),
    /// A process starts.
    Start(usize),
    /// The watch of a process begins anew with a list.
    Relist(usize),
    /// The watch of a process catches up.
    Receive(usize),
    /// A process deletes what is due.
    Act(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let dated = prop::option::weighted(0.8, -5_i64..5);
    let write = (any::<bool>(), dated).prop_map(|(ready, dated)| Step::Write { ready, dated });
    let step = prop_oneof![
        3 => prop_oneof![0_i64..400, 0_i64..5_000, 0_i64..200_000].prop_map(Step::Wait),
        3 => write,
        1 => Just(Step::Touch),
        4 => (0_usize..3).prop_map(Step::Crash),
        1 => (0_usize..2).prop_map(Step::Start),
        1 => (0_usize..2).prop_map(Step::Relist),
        3 => (0_usize..2).prop_map(Step::Receive),
        4 => (0_usize..2).prop_map(Step::Act),
    ];
    prop::collection::vec(step, 0..120)
}

/// A seed with one service and the pods of three controllers.
struct World {
    /// In milliseconds.
    now: i64,
    version: u64,
    writes: Vec<Slice>,
    pods: Vec<PodState>,
}

struct PodState {
    /// The pod, once it crashes.
    pod: Pod,
    created: u64,
    crashes: bool,
}

/// A weeder that leads.
struct PlayedWeeder {
    /// Seconds by which its clock is wrong.
    off: i64,
    /// The writes of the slice that it has received.
    seen: usize,
    state: WeederState,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            now: 1_000_000,
            version: 0,
            writes: Vec::new(),
            pods: Vec::new(),
        };
        for lineage in 0..3 {
            world.create(lineage);
        }
        world.write(false, None);
        world
    }

    /// The time of the latest write.
    const fn second(&self) -> i64 {
        self.now / 1_000
    }

    fn create(&mut self, lineage: usize) {
        self.version += 1;
        let pod = crashing(&format!("pod-{lineage}"), "kcm", self.second(), self.version);
        let uid = format!("{lineage}-{}", self.version);
        let created = PodState {
            pod: Pod { uid, ..pod },
            created: self.version,
            crashes: false,
        };
        match self.pods.get_mut(lineage) {
            Some(known) => *known = created,
            None => self.pods.push(created),
        }
    }

    fn write(&mut self, ready: bool, triggered: Option<UnixTime>) {
        self.version += 1;
        let mut slice = slice("kube-apiserver", ready, 0, 0);
        slice.triggered = triggered;
        slice.write = Some(SliceWrite {
            second: at(self.second()),
            version: self.version,
        });
        self.writes.push(slice);
    }

    fn play(&mut self, weeders: &mut [PlayedWeeder; 2], step: Step) {
        match step {
            Step::Wait(millis) => self.now += millis,
            Step::Write { ready, dated } => {
                let triggered = dated.map(|off| UnixTime(self.now * 1_000 + off * 1_000_000));
                self.write(ready, triggered);
            }
            Step::Touch => {
                let last = self.writes.last().unwrap().clone();
                self.write(last.endpoints.is_ready(), last.triggered);
            }
            Step::Crash(lineage) => {
                self.version += 1;
                let state = &mut self.pods[lineage];
                state.crashes = true;
                state.pod.resource_version = self.version.to_string();
            }
            Step::Start(process) => weeders[process].start(self),
            Step::Relist(process) => weeders[process].relist(self),
            Step::Receive(process) => weeders[process].receive(self),
            Step::Act(process) => weeders[process].act(self),
        }
    }
}

impl PlayedWeeder {
    fn new(off: i64) -> Self {
        Self {
            off,
            seen: 0,
            state: super::new(config()),
        }
    }

    fn now(&self, world: &World) -> UnixTime {
        UnixTime(world.now * 1_000 + self.off * 1_000_000)
    }

    fn start(&mut self, world: &World) {
        self.state = super::new(config());
        self.relist(world);
    }

    fn relist(&mut self, world: &World) {
        let listed = WatchUpdate::Listed(vec![world.writes.last().unwrap().clone()]);
        self.state.slices_updated(None, listed, self.now(world));
        self.seen = world.writes.len();
    }

    fn receive(&mut self, world: &World) {
        for slice in &world.writes[self.seen..] {
            let applied = WatchUpdate::Applied(slice.clone());
            self.state.slices_updated(None, applied, self.now(world));
        }
        self.seen = world.writes.len();
    }

    fn act(&mut self, world: &mut World) {
        let now = self.now(world);
        let selector = &config().services["kube-apiserver"][0];
        for PodState { pod, crashes, .. } in &world.pods {
            let update = match crashes {
                true => WatchUpdate::Applied(pod.clone()),
                false => WatchUpdate::Removed(pod.key.clone()),
            };
            self.state.pods_updated(selector, update, now);
        }
        self.state.tick(now);
        while let Some(deletion) = self.state.take("shoot", now) {
            let is_deleted = |state: &PodState| state.pod.uid == deletion.pod.uid;
            let lineage = world.pods.iter().position(is_deleted).unwrap();
            let seen = &world.writes[..self.seen];
            assert!(seen.last().unwrap().endpoints.is_ready());
            // So between two deletions of one controller the slice has changed: a successor is younger than all that
            // the weeder had seen.
            let ready = seen.iter().rev().take_while(|slice| slice.endpoints.is_ready());
            let versions = ready.map(|slice| slice.write.unwrap().version);
            assert!(
                versions.max().unwrap() > world.pods[lineage].created,
                "it is younger than the recovery"
            );
            world.create(lineage);
            self.state.answered(&deletion, &DeletionResult::Deleted, now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// For any history, with clocks of weeders that are minutes off: a pod is deleted only after a change by which its
    /// service was ready, and only if it was there before that change. A deleted pod is gone, so each is deleted once.
    #[test]
    fn nothing_younger_than_the_recovery_is_deleted(
        steps in steps(),
        clocks in [-600_i64..600, -600_i64..600],
    ) {
        let mut world = World::new();
        let mut weeders = clocks.map(PlayedWeeder::new);
        for step in steps {
            world.play(&mut weeders, step);
        }
    }

    /// Where the slice is written only when its readiness changes, nothing is deleted twice for a recovery, however
    /// often weeders start, watch late, and overlap.
    #[test]
    fn at_most_once_for_a_recovery(
        steps in steps(),
        clocks in [-600_i64..600, -600_i64..600],
    ) {
        let mut world = World::new();
        let mut weeders = clocks.map(PlayedWeeder::new);
        let mut deletions = BTreeMap::<_, u32>::new();
        for step in steps {
            let is_ready = world.writes.last().unwrap().endpoints.is_ready();
            let is_written = match step {
                Step::Write { ready, .. } => ready != is_ready,
                Step::Touch => false,
                _ => true,
            };
            // A watch that is behind may act for a recovery whose service has failed meanwhile.
            let acts_late = matches!(step, Step::Act(process) if weeders[process].seen < world.writes.len());
            if !is_written || acts_late {
                continue;
            }
            let before: Vec<_> = world.pods.iter().map(|state| state.pod.uid.clone()).collect();
            world.play(&mut weeders, step);
            for (lineage, uid) in before.iter().enumerate() {
                if world.pods[lineage].pod.uid != *uid {
                    *deletions.entry((lineage, world.writes.len())).or_default() += 1;
                }
            }
        }
        prop_assert!(deletions.values().all(|count| *count == 1), "{:?}", deletions);
    }
}
