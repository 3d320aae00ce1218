use proptest::prelude::*;

use super::*;

const NAME: &str = "dwd-prober-leader-election";

fn candidate(holder: &str) -> Candidate {
    Candidate::new(holder.into(), ElectionTiming::default())
}

fn seconds(seconds: u64) -> Moment {
    Duration::from_secs(seconds)
}

/// As an API server stores it.
fn stored(mut lease: Lease, version: u64) -> Lease {
    lease.metadata.uid = Some("u".to_owned());
    lease.metadata.resource_version = Some(version.to_string());
    lease
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

#[test]
fn the_first_candidate_creates_the_lease_and_acts_until_the_renew_deadline() {
    let mut first = candidate("a");
    assert_eq!(first.step(), ElectionStep::Read(Moment::ZERO));
    first.on_read(seconds(1), None, seconds(2));
    assert_eq!(first.step(), ElectionStep::Write(seconds(1)));
    let lease = stored(first.claim(NAME, at(1)), 1);
    let spec = lease.spec.clone().unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("a"));
    assert_eq!(
        (spec.lease_duration_seconds, spec.lease_transitions),
        (Some(15), Some(0))
    );
    first.on_written(seconds(1), seconds(3), lease);
    assert_eq!(first.step(), ElectionStep::Write(seconds(3)));
    assert_eq!(
        first.act_until(seconds(10)),
        Some(seconds(11)),
        "from the start of the request"
    );
    assert_eq!(first.act_until(seconds(11)), None);
    assert!(first.is_leader(), "it leads on until it sees another");
}

#[test]
fn a_lease_that_does_not_change_is_taken_after_its_own_duration() {
    let lease = stored(candidate("a").claim(NAME, at(0)), 1);
    let mut other = candidate("b");
    for second in [5, 7, 19] {
        other.on_read(seconds(second), Some(lease.clone()), seconds(2));
        assert!(!other.is_leader() && matches!(other.step(), ElectionStep::Read(_)));
    }
    assert_eq!(
        other.step(),
        ElectionStep::Read(seconds(20)),
        "15 s after it was first seen"
    );
    other.on_read(seconds(20), Some(lease), seconds(2));
    assert_eq!(other.step(), ElectionStep::Write(seconds(20)));
    let spec = other.claim(NAME, at(20)).spec.unwrap();
    assert_eq!(
        (spec.lease_transitions, spec.acquire_time),
        (Some(1), Some(MicroTime(at(20))))
    );
}

#[test]
fn a_released_lease_is_taken_at_once_and_a_deleted_one_is_not() {
    let mut leader = candidate("a");
    leader.on_read(Moment::ZERO, None, seconds(2));
    leader.on_written(Moment::ZERO, Moment::ZERO, stored(leader.claim(NAME, at(0)), 1));
    let held = leader.base.clone();
    let released = leader.release(at(1)).map(|lease| stored(lease, 2));
    let mut other = candidate("b");
    other.on_read(seconds(1), released, seconds(2));
    assert_eq!(other.step(), ElectionStep::Write(seconds(1)));

    let mut other = candidate("b");
    other.on_read(seconds(1), held, seconds(2));
    other.on_read(seconds(3), None, seconds(2));
    assert_eq!(
        other.step(),
        ElectionStep::Read(seconds(5)),
        "its holder may not know yet"
    );
    other.on_read(seconds(16), None, seconds(2));
    assert_eq!(other.step(), ElectionStep::Write(seconds(16)));
    assert!(!other.replaces());
}

#[test]
fn a_lease_that_is_held_for_years_is_free_soon_after_it_was_deleted() {
    let mut parked = stored(candidate("nobody").claim(NAME, at(0)), 1);
    parked.spec.as_mut().unwrap().lease_duration_seconds = Some(i32::MAX);
    let mut candidate = candidate("a");
    candidate.on_read(seconds(1), Some(parked), seconds(2));
    assert!(candidate.held_for(seconds(1)) > seconds(1_000_000_000));
    candidate.on_read(seconds(3), None, seconds(2));
    assert_eq!(candidate.step(), ElectionStep::Read(seconds(5)));
    candidate.on_read(seconds(18), None, seconds(2));
    assert_eq!(candidate.step(), ElectionStep::Write(seconds(18)));
    assert_eq!(candidate.held_for(seconds(18)), Duration::ZERO);
}

#[test]
fn a_leader_whose_lease_somebody_changed_stops_until_it_has_renewed_it() {
    let mut leader = candidate("a");
    leader.on_read(Moment::ZERO, None, seconds(2));
    leader.on_written(Moment::ZERO, Moment::ZERO, stored(leader.claim(NAME, at(0)), 1));
    leader.on_failed(seconds(2), true);
    assert_eq!(leader.act_until(seconds(2)), None);
    let changed = stored(leader.claim(NAME, at(1)), 2);
    leader.on_read(seconds(3), Some(changed), seconds(2));
    assert_eq!(
        (leader.step(), leader.act_until(seconds(3))),
        (ElectionStep::Write(seconds(3)), None)
    );
    leader.on_written(seconds(3), seconds(3), stored(leader.claim(NAME, at(3)), 3));
    assert_eq!(leader.act_until(seconds(3)), Some(seconds(13)));
}

#[test]
fn a_leader_that_sees_another_stops_at_once() {
    let mut leader = candidate("a");
    leader.on_read(Moment::ZERO, None, seconds(2));
    leader.on_written(Moment::ZERO, Moment::ZERO, stored(leader.claim(NAME, at(0)), 1));
    leader.on_failed(seconds(2), true);
    let other = stored(candidate("b").claim(NAME, at(1)), 2);
    leader.on_read(seconds(3), Some(other), seconds(2));
    assert!(!leader.is_leader() && leader.act_until(seconds(3)).is_none());
    assert_eq!(leader.release(at(3)), None, "the Lease of another is left alone");
}

#[test]
fn times_that_could_overlap_are_refused() {
    ElectionTiming::default().check().unwrap();
    let wrong = |lease: u64, renew: u64, retry: u64| {
        let timing = ElectionTiming {
            lease_duration: seconds(lease),
            renew_deadline: seconds(renew),
            retry_period: seconds(retry),
        };
        timing.check().is_err()
    };
    assert!(wrong(12, 10, 2) && wrong(15, 4, 2) && wrong(15, 10, 0));
}

/// The fate of a request.
#[derive(Debug, Clone, Copy)]
enum RequestFate {
    Answered,
    Refused,
    /// It is applied, and its answer is lost.
    AnswerLost,
    /// It is applied after its sender has given up.
    Late,
}

/// A candidate whose clock runs at a speed of its own, with the request that it has sent.
struct Actor {
    candidate: Candidate,
    speed: f64,
    sent: Option<(Moment, u64, RequestFate, Option<Lease>)>,
    frozen_until: u64,
}

impl Actor {
    /// Milliseconds of the world on the own clock.
    fn clock(&self, world: u64) -> Moment {
        Duration::from_millis(world).mul_f64(self.speed)
    }

    fn acts(&self, world: u64) -> bool {
        self.candidate.act_until(self.clock(world)).is_some()
    }
}

#[derive(Default)]
struct Server {
    lease: Option<Lease>,
    version: u64,
    late: Vec<(u64, Lease)>,
}

impl Server {
    fn write(&mut self, lease: &Lease) -> Option<Lease> {
        let current = self
            .lease
            .as_ref()
            .and_then(|lease| lease.metadata.resource_version.clone());
        if lease.metadata.resource_version != current {
            return None;
        }
        self.version += 1;
        self.lease = Some(stored(lease.clone(), self.version));
        self.lease.clone()
    }
}

fn fate() -> impl Strategy<Value = RequestFate> {
    prop_oneof![
        6 => Just(RequestFate::Answered),
        1 => Just(RequestFate::Refused),
        1 => Just(RequestFate::AnswerLost),
        1 => Just(RequestFate::Late),
    ]
}

const REQUEST_MILLIS: u64 = 3_000;

/// One turn of an actor: it sends what is due, or handles what has come back.
fn turn(actor: &mut Actor, server: &mut Server, world: u64, fate: RequestFate, delay: u64) {
    let now = actor.clock(world);
    let Some((started, back, fate, request)) = actor.sent.take() else {
        if actor.candidate.step().due() <= now {
            let write = matches!(actor.candidate.step(), ElectionStep::Write(_));
            let at = at(i64::try_from(world).unwrap());
            let request = write.then(|| actor.candidate.claim(NAME, at));
            let back = if matches!(fate, RequestFate::Answered | RequestFate::Refused) {
                delay
            } else {
                REQUEST_MILLIS
            };
            actor.sent = Some((now, world + back, fate, request));
        }
        return;
    };
    if world < back {
        actor.sent = Some((started, back, fate, request));
        return;
    }
    match (fate, request) {
        (RequestFate::Answered, None) => {
            actor
                .candidate
                .on_read(now, server.lease.clone(), Duration::from_secs(2))
        }
        (RequestFate::Answered, Some(lease)) => match server.write(&lease) {
            Some(lease) => actor.candidate.on_written(started, now, lease),
            None => actor.candidate.on_failed(now, true),
        },
        (RequestFate::AnswerLost, Some(lease)) => {
            server.write(&lease);
            actor.candidate.on_failed(now, false);
        }
        (RequestFate::Late, Some(lease)) => {
            server.late.push((world + delay * 20, lease));
            actor.candidate.on_failed(now, false);
        }
        _ => actor.candidate.on_failed(now, false),
    }
}

proptest! {
    /// Clocks from 10 % slow to 10 % fast; requests that are refused, lost or late; processes that stand still.
    #[test]
    fn at_most_one_acts(
        speeds in proptest::collection::vec(0.9..1.1_f64, 3),
        turns in proptest::collection::vec((0..3_usize, fate(), 1..900_u64, 0..60_u32), 2_000),
    ) {
        let mut server = Server::default();
        let new = |(number, speed): (usize, &f64)| Actor {
            candidate: candidate(&format!("candidate-{number}")),
            speed: *speed,
            sent: None,
            frozen_until: 0,
        };
        let mut actors: Vec<_> = speeds.iter().enumerate().map(new).collect();
        let mut acted = 0;
        for (turns, (index, fate, delay, freeze)) in turns.into_iter().enumerate() {
            let world = turns as u64 * 100;
            let due = |(when, _): &(u64, Lease)| *when <= world;
            let (late, later) = std::mem::take(&mut server.late).into_iter().partition(due);
            server.late = later;
            let late: Vec<(u64, Lease)> = late;
            for (_, lease) in late {
                server.write(&lease);
            }
            if freeze == 0 {
                actors[index].frozen_until = world + delay * 40;
            }
            for actor in actors.iter_mut().filter(|actor| actor.frozen_until <= world) {
                turn(actor, &mut server, world, fate, delay);
            }
            let acting = actors.iter().filter(|actor| actor.acts(world)).count();
            prop_assert!(acting <= 1, "{acting} act at {world} ms");
            acted += acting;
        }
        prop_assert!(acted > 0, "nobody ever acts");
    }
}
