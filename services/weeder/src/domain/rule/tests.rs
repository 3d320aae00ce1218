use proptest::prelude::*;

use super::*;
use crate::domain::fixtures::{at, config, crashing, owner, recovery, slice};
use crate::domain::readiness::{ServiceState, Slice, SliceWrite};

fn of(pod: &Pod, recovery: &Recovery, now: i64) -> PodDecision {
    decide(pod, "kube-apiserver", recovery, &config(), at(now))
}

const YOUNGER: PodDecision = PodDecision::Keep(KeepReason::YoungerThanRecovery);

#[test]
fn what_was_there_before_the_recovery_is_deleted_and_a_successor_never() {
    let recovery = recovery(100, 50);
    let at_100 = |created, version| of(&crashing("pod", "kcm", created, version), &recovery, 100);
    assert_eq!(at_100(99, 60), PodDecision::Delete);
    assert_eq!(at_100(101, 60), YOUNGER);
    // Times are whole seconds, so it is left alone.
    assert_eq!(at_100(100, 51), YOUNGER);
    // Revisions are exact, whatever the times say.
    assert_eq!(at_100(100, 49), PodDecision::Delete);
    assert_eq!(at_100(101, 49), PodDecision::Delete);
    let mut unreadable = crashing("c", "kcm", 100, 49);
    unreadable.resource_version = "opaque".to_owned();
    assert_eq!(of(&unreadable, &recovery, 100), YOUNGER);
    let mut undated = crashing("d", "kcm", 1, 60);
    undated.created = None;
    assert_eq!(of(&undated, &recovery, 100), YOUNGER);
    let unwritten = Recovery {
        write: None,
        ..recovery
    };
    assert_eq!(of(&crashing("old", "kcm", 1, 1), &unwritten, 100), YOUNGER);
}

#[test]
fn only_dependants_are_concerned_and_only_for_a_while() {
    let mut recovery = recovery(100, 50);
    let pod = crashing("old", "kcm", 1, 1);
    let other = crashing("old", "other", 1, 1);
    assert_eq!(of(&other, &recovery, 100), PodDecision::NotConcerned);
    assert_eq!(of(&pod, &recovery, 400), PodDecision::Delete);
    assert_eq!(
        of(&pod, &recovery, 401),
        PodDecision::NotConcerned,
        "watchDuration is over"
    );
    recovery.deletes_from = at(105);
    assert_eq!(of(&pod, &recovery, 104), PodDecision::NotConcerned, "readyFor");
    assert_eq!(of(&pod, &recovery, 105), PodDecision::Delete);
}

#[test]
fn what_is_not_replaced_is_deleted_only_when_the_configuration_says_so() {
    let mut file = config();
    let of = |file: &WeederConfig, kind: Option<&str>| {
        let mut pod = crashing("old", "kcm", 1, 1);
        pod.owner = kind.map(|kind| owner(kind, "1"));
        decide(&pod, "kube-apiserver", &recovery(100, 50), file, at(100))
    };
    assert_eq!(of(&file, Some("ReplicaSet")), PodDecision::Delete);
    assert_eq!(of(&file, Some("StatefulSet")), PodDecision::Delete);
    assert_eq!(of(&file, Some("Job")), PodDecision::Keep(KeepReason::Job));
    assert_eq!(of(&file, Some("Node")), PodDecision::Keep(KeepReason::StaticPod));
    assert_eq!(of(&file, None), PodDecision::Keep(KeepReason::NoController));
    file.exclude_kinds.insert("StatefulSet".to_owned());
    file.delete_pods_of_jobs = true;
    file.delete_pods_without_controller = true;
    assert_eq!(
        of(&file, Some("StatefulSet")),
        PodDecision::Keep(KeepReason::ExcludedKind)
    );
    assert_eq!(of(&file, Some("Job")), PodDecision::Delete);
    assert_eq!(of(&file, None), PodDecision::Delete);
    assert_eq!(of(&file, Some("Node")), PodDecision::Keep(KeepReason::StaticPod));
    file.exclude_kinds.insert("Job".to_owned());
    assert_eq!(
        of(&file, Some("Job")),
        PodDecision::Keep(KeepReason::ExcludedKind)
    );
}

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
    List(usize),
    /// The watch of a process begins anew with a list.
    Relist(usize),
    /// The watch of a process catches up.
    Receive(usize),
    /// A process deletes what the rule says.
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
        1 => (0_usize..2).prop_map(Step::List),
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

/// A weeder, whose clock is wrong.
#[derive(Default)]
struct Weeder {
    clock: i64,
    service: Option<ServiceState>,
    seen: usize,
    recovery: Option<Recovery>,
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

    fn play(&mut self, weeders: &mut [Weeder; 2], step: Step) {
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
            Step::List(process) => weeders[process].list(self),
            Step::Relist(process) => weeders[process].relist(self),
            Step::Receive(process) => weeders[process].receive(self),
            Step::Act(process) => weeders[process].act(self),
        }
    }
}

impl Weeder {
    fn now(&self, world: &World) -> UnixTime {
        UnixTime(world.now * 1_000 + self.clock)
    }

    /// As a process that has just started.
    fn list(&mut self, world: &World) {
        (self.service, self.recovery) = (None, None);
        self.seen = world.writes.len();
        self.changed(world.writes.last().unwrap(), true, world);
    }

    fn relist(&mut self, world: &World) {
        let (before, slice) = (&world.writes[..self.seen], world.writes.last().unwrap());
        let stayed_ready = before
            .last()
            .is_some_and(|before| slice.stayed_ready_since(before));
        self.service = self
            .service
            .and_then(|service| service.known_before_list(stayed_ready));
        self.seen = world.writes.len();
        self.changed(slice, true, world);
    }

    fn receive(&mut self, world: &World) {
        for slice in &world.writes[self.seen..] {
            self.changed(slice, false, world);
        }
        self.seen = world.writes.len();
    }

    fn changed(&mut self, slice: &Slice, in_list: bool, world: &World) {
        let (before, now) = (self.service, self.now(world));
        let recovery = Recovery::of(before, &[slice], in_list, &[], &config(), now);
        let is_ready = slice.endpoints.is_ready();
        let unchanged = before.filter(|before| before.endpoints.is_ready() == is_ready);
        self.service = Some(ServiceState {
            endpoints: slice.endpoints,
            since: unchanged.map_or(now, |before| before.since),
        });
        if recovery.is_some() || !is_ready {
            self.recovery = recovery;
        }
    }

    fn act(&mut self, world: &mut World) {
        let Some(recovery) = self.recovery else { return };
        for lineage in 0..world.pods.len() {
            let PodState {
                pod,
                created,
                crashes,
            } = &world.pods[lineage];
            let now = self.now(world).0 / 1_000_000;
            if !crashes || of(pod, &recovery, now) != PodDecision::Delete {
                continue;
            }
            let seen = &world.writes[..self.seen];
            let last = seen.last().unwrap();
            assert!(last.endpoints.is_ready());
            // So between two deletions of one controller the slice has changed: a successor is younger than all that
            // the weeder had seen.
            let ready = seen.iter().rev().take_while(|slice| slice.endpoints.is_ready());
            let versions = ready.map(|slice| slice.write.unwrap().version);
            assert!(
                versions.max().unwrap() > *created,
                "it is younger than the recovery"
            );
            world.create(lineage);
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
        let mut weeders = clocks.map(|seconds| Weeder { clock: seconds * 1_000_000, ..Weeder::default() });
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
        let mut weeders = clocks.map(|seconds| Weeder { clock: seconds * 1_000_000, ..Weeder::default() });
        let mut deletions = std::collections::BTreeMap::<_, u32>::new();
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
