use proptest::prelude::*;

use super::*;

const NAME: &str = "dwd-prober-leader-election";

/// The times of the drop-in program, whatever the API server does.
fn candidate(holder: &str) -> Candidate {
    Candidate::new(holder.into(), None, LeaseTimes::CLIENT_GO.into())
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

/// A write from one second to another, which makes this version.
fn renew(candidate: &mut Candidate, from: u64, to: u64, version: u64) -> Lease {
    let claim = candidate.claim(seconds(from), NAME, at(from.cast_signed()));
    let lease = stored(claim, version);
    candidate.on_written(seconds(from), seconds(to), lease.clone());
    lease
}

/// As a leader leaves it.
fn released() -> Lease {
    let mut lease = stored(candidate("before").claim(Moment::ZERO, NAME, at(0)), 0);
    let spec = lease.spec.as_mut().unwrap();
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(RELEASED_SECONDS);
    lease
}

/// A candidate that leads from the beginning.
fn leader(holder: &str) -> Candidate {
    let mut leader = candidate(holder);
    leader.on_read(Moment::ZERO, Moment::ZERO, Some(released()), 1.0);
    renew(&mut leader, 0, 0, 1);
    leader
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

#[test]
fn the_first_candidate_creates_the_lease_and_acts_until_the_renew_deadline() {
    let mut first = candidate("a");
    assert_eq!(first.step(), ElectionStep::Read(Moment::ZERO));
    first.on_read(seconds(1), seconds(1), None, 1.0);
    assert_eq!(
        first.step(),
        ElectionStep::Read(seconds(3)),
        "somebody may have deleted it under its leader"
    );
    first.on_read(seconds(15), seconds(15), None, 1.0);
    assert_eq!(first.step(), ElectionStep::Read(seconds(16)));
    first.on_read(seconds(16), seconds(16), None, 1.0);
    assert_eq!(first.step(), ElectionStep::Write(seconds(16)));
    assert!(!first.replaces());
    let lease = stored(first.claim(seconds(16), NAME, at(16)), 1);
    let spec = lease.spec.clone().unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("a"));
    assert_eq!(
        (spec.lease_duration_seconds, spec.lease_transitions),
        (Some(15), Some(0))
    );
    first.on_written(seconds(16), seconds(18), lease);
    assert_eq!(first.step(), ElectionStep::Write(seconds(18)));
    assert_eq!(
        first.act_until(seconds(25)),
        Some(seconds(26)),
        "from the start of the request"
    );
    assert_eq!(first.act_until(seconds(26)), None);
    assert!(first.is_leader(), "it leads on until it sees another");
}

#[test]
fn a_lease_that_does_not_change_is_taken_after_its_own_duration() {
    let mut lease = stored(candidate("a").claim(Moment::ZERO, NAME, at(0)), 1);
    // 1: somebody changed it by hand.
    for (written, free_at) in [(15, 20), (1, 20), (0, 20), (-1, 20), (30, 35)] {
        lease.spec.as_mut().unwrap().lease_duration_seconds = Some(written);
        let mut other = candidate("b");
        for second in [5, 7, free_at - 1] {
            other.on_read(seconds(second), seconds(second), Some(lease.clone()), 1.0);
            assert!(!other.is_leader() && matches!(other.step(), ElectionStep::Read(_)));
        }
        assert_eq!(
            other.step(),
            ElectionStep::Read(seconds(free_at)),
            "after it was first seen"
        );
        other.on_read(seconds(free_at), seconds(free_at), Some(lease.clone()), 1.0);
        assert_eq!(other.step(), ElectionStep::Write(seconds(free_at)));
        let spec = other.claim(seconds(20), NAME, at(20)).spec.unwrap();
        assert_eq!(
            (spec.lease_transitions, spec.acquire_time),
            (Some(1), Some(MicroTime(at(20))))
        );
    }
}

#[test]
fn a_released_lease_is_taken_at_once_and_one_that_was_deleted_or_emptied_is_not() {
    let leader = leader("a");
    let held = leader.base.clone().unwrap();
    let released = leader.release(at(1)).map(|lease| stored(lease, 3));
    let mut other = candidate("b");
    other.on_read(seconds(1), seconds(1), released, 1.0);
    assert_eq!(other.step(), ElectionStep::Write(seconds(1)));

    let emptied = |duration: Option<i32>| {
        let mut lease = stored(held.clone(), 3);
        let spec = lease.spec.as_mut().unwrap();
        (spec.holder_identity, spec.lease_duration_seconds) = (None, duration);
        lease
    };
    let without_spec = Lease {
        spec: None,
        ..emptied(None)
    };
    // Somebody wrote it to keep all processes out.
    let mut parked = stored(candidate("nobody").claim(Moment::ZERO, NAME, at(0)), 2);
    parked.spec.as_mut().unwrap().lease_duration_seconds = Some(i32::MAX);
    let states = [
        None,
        Some(without_spec),
        Some(emptied(Some(15))),
        Some(emptied(Some(i32::MAX))),
    ];
    for state in states {
        for known in [None, Some(&held), Some(&parked)] {
            let mut other = candidate("b");
            if let Some(known) = known {
                other.on_read(seconds(1), seconds(1), Some(known.clone()), 1.0);
                let is_parked = other.held_for(seconds(1)) > seconds(1_000_000_000);
                assert_eq!(is_parked, *known == parked);
            }
            other.on_read(seconds(3), seconds(3), state.clone(), 1.0);
            assert_eq!(
                other.step(),
                ElectionStep::Read(seconds(5)),
                "its leader may not know yet: {state:?}"
            );
            assert_eq!(other.leader().map(|leader| &**leader), Some(""));
            assert_eq!(other.held_for(seconds(3)), Duration::ZERO);
            other.on_read(seconds(17), seconds(17), state.clone(), 1.0);
            assert_eq!(other.step(), ElectionStep::Read(seconds(18)));
            other.on_read(seconds(18), seconds(18), state.clone(), 1.0);
            assert_eq!(other.step(), ElectionStep::Write(seconds(18)));
        }
    }
}

#[test]
fn a_leader_whose_lease_somebody_changed_stops_at_once_and_waits_like_all_others_where_it_lost_it() {
    let mut emptied = stored(leader("a").base.unwrap(), 3);
    emptied.spec.as_mut().unwrap().holder_identity = None;
    let other = stored(candidate("b").claim(seconds(1), NAME, at(1)), 2);
    let changed = stored(leader("a").base.unwrap(), 2);
    for (state, is_leader, step) in [
        (None, false, ElectionStep::Read(seconds(5))),
        (Some(emptied), false, ElectionStep::Read(seconds(5))),
        (Some(other), false, ElectionStep::Read(seconds(5))),
        (Some(changed), true, ElectionStep::Write(seconds(3))),
    ] {
        let mut leader = leader("a");
        leader.on_failed(seconds(2), seconds(2), true);
        assert_eq!(leader.act_until(seconds(2)), None);
        leader.on_read(seconds(3), seconds(3), state, 1.0);
        assert_eq!((leader.is_leader(), leader.step()), (is_leader, step));
        assert_eq!(leader.act_until(seconds(3)), None);
        assert_eq!(
            leader.release(at(3)).is_some(),
            is_leader,
            "another's is left alone"
        );
        if is_leader {
            renew(&mut leader, 3, 3, 3);
            assert_eq!(leader.act_until(seconds(3)), Some(seconds(13)));
        }
    }
}

/// client-go takes two renewals whose times are in the same second for one.
#[test]
fn each_renewal_has_another_second_also_after_the_clock_was_set_back() {
    let mut last = at(0);
    for second in [2, 4, -30, -28, -26, -24] {
        let next = next_renew_time(last, at(second));
        assert!(next.as_second() > last.as_second(), "{second}");
        last = next;
    }
    assert_eq!(last, at(8));
    assert_eq!(next_renew_time(last, at(10)), at(10));
    assert_eq!(
        next_renew_time(Timestamp::MAX, at(10)),
        Timestamp::MAX,
        "there is no later one"
    );
}

#[test]
fn a_renewal_without_an_answer_is_repeated_at_once_and_one_that_was_refused_after_the_retry_period() {
    let mut leader = leader("a");
    leader.on_failed(seconds(2), seconds(7), false);
    assert_eq!(leader.step(), ElectionStep::Write(seconds(7)));
    assert_eq!(leader.act_until(seconds(7)), Some(seconds(10)));
    leader.on_failed(seconds(7), seconds(7), false);
    assert_eq!(leader.step(), ElectionStep::Write(seconds(9)));
}

#[test]
fn times_that_could_overlap_are_refused() {
    ElectionTiming::default().usual.check().unwrap();
    LeaseTimes::SLOW.check().unwrap();
    LeaseTimes::CLIENT_GO.check().unwrap();
    let wrong = |lease: u64, renew: u64, retry: u64| {
        let times = LeaseTimes {
            lease_duration: seconds(lease),
            renew_deadline: seconds(renew),
            retry_period: seconds(retry),
        };
        times.check().is_err()
    };
    assert!(wrong(12, 10, 2) && wrong(15, 4, 2) && wrong(15, 10, 0));
}

#[test]
fn the_lease_says_who_leads_and_where() {
    let own = || {
        Candidate::new(
            "pod-1_0a".into(),
            Some("10.0.0.1:9645".into()),
            LeaseTimes::CLIENT_GO.into(),
        )
    };
    let mut leader = own();
    leader.on_read(Moment::ZERO, Moment::ZERO, Some(released()), 1.0);
    renew(&mut leader, 0, 0, 1);
    let lease = leader.base.clone().unwrap();
    let found = |lease: &Lease, version: u64| {
        let mut other = candidate("b");
        other.on_read(seconds(1), seconds(1), Some(stored(lease.clone(), version)), 1.0);
        other.found()
    };
    let expected = Leader {
        name: "pod-1".into(),
        address: Some("10.0.0.1:9645".into()),
    };
    assert_eq!(leader.found(), Some(expected.clone()));
    assert_eq!(found(&lease, 1), Some(expected));
    assert_eq!(found(&leader.release(at(1)).unwrap(), 2), None);
    let mut hostile = lease;
    let annotations = hostile.metadata.annotations.as_mut().unwrap();
    annotations.insert(ADDRESS_ANNOTATION.to_owned(), "x".repeat(100_000));
    hostile.spec.as_mut().unwrap().holder_identity = Some("y".repeat(100_000));
    let cut = found(&hostile, 3).unwrap();
    assert_eq!((cut.name.len(), cut.address), (MAX_CHARACTERS, None));
}

#[derive(Debug, Clone, Copy)]
enum RequestFate {
    /// It is applied when it is sent, and only its answer is slow.
    AppliedFirst,
    /// It is applied right before its answer.
    AppliedLast,
    Refused,
    /// It is applied after its sender has given up.
    Late,
}

/// Milliseconds between a backup and its restoration.
const BACKUP_AGE: u64 = 70_000;

/// Milliseconds after which the leader of an edited Lease has noticed, or stopped.
const LONGEST_LEASE: u64 = 22_300;

/// A request that is under way.
struct Sent {
    started: Moment,
    /// When its sender learns the outcome, in milliseconds of the world.
    back: u64,
    /// None where the server has not handled it yet.
    outcome: Option<LeaseAnswer>,
    write: Option<Lease>,
}

enum LeaseAnswer {
    Read(Option<Lease>),
    Wrote(Lease),
    Conflict,
    Failed,
}

/// A candidate whose clock runs at a speed of its own, with the request that it has sent.
struct Actor {
    candidate: Candidate,
    speed: f64,
    sent: Option<Sent>,
    frozen_until: u64,
}

impl Actor {
    fn all(timing: ElectionTiming, speeds: &[f64]) -> Vec<Self> {
        let new = |(number, speed): (usize, &f64)| Self {
            candidate: Candidate::new(format!("candidate-{number}").into(), None, timing),
            speed: *speed,
            sent: None,
            frozen_until: 0,
        };
        speeds.iter().enumerate().map(new).collect()
    }

    /// Another process takes its place.
    fn restart(&mut self, timing: ElectionTiming, world: u64, server: &Server) {
        let holder = format!("{}+", self.candidate.holder);
        self.candidate = Candidate::new(holder.into(), None, timing);
        self.sent = None;
        // See [`Server::keep_away`].
        let settled = server.restored_at.map_or(0, |at| at + LONGEST_LEASE);
        self.frozen_until = self.frozen_until.min(world).max(settled);
    }

    /// Milliseconds of the world on the own clock.
    fn clock(&self, world: u64) -> Moment {
        Duration::from_millis(world).mul_f64(self.speed)
    }

    fn acts(&self, world: u64) -> bool {
        self.candidate.act_until(self.clock(world)).is_some()
    }

    /// Sends what is due. Its answer takes `delay` milliseconds of the world, and the candidate gives up before that if
    /// it has waited for as long as it waits for a request.
    fn send(&mut self, server: &mut Server, world: u64, fate: RequestFate, delay: u64) {
        let started = self.clock(world);
        if self.candidate.step().due() > started {
            return;
        }
        let write = matches!(self.candidate.step(), ElectionStep::Write(_)).then(|| {
            self.candidate
                .claim(started, NAME, at(i64::try_from(world).unwrap()))
        });
        let times = self.candidate.times(started);
        let deadline = times.request_timeout().div_f64(self.speed);
        let deadline = u64::try_from(deadline.as_millis()).unwrap();
        let mut outcome = match fate {
            RequestFate::AppliedFirst => Some(server.handle(write.as_ref())),
            RequestFate::AppliedLast if delay <= deadline => None,
            RequestFate::AppliedLast | RequestFate::Late => {
                let arrives = world + delay.max(deadline) * 5;
                server.late.extend(write.clone().map(|lease| (arrives, lease)));
                Some(LeaseAnswer::Failed)
            }
            RequestFate::Refused => Some(LeaseAnswer::Failed),
        };
        if delay > deadline {
            outcome = Some(LeaseAnswer::Failed);
        }
        let back = world + delay.min(deadline);
        self.sent = Some(Sent {
            started,
            back,
            outcome,
            write,
        });
    }

    /// One turn: handles what has come back, or sends what is due.
    fn turn(&mut self, server: &mut Server, world: u64, fate: RequestFate, delay: u64) {
        let Some(sent) = self.sent.take_if(|sent| sent.back <= world) else {
            if self.sent.is_none() {
                self.send(server, world, fate, delay);
            }
            return;
        };
        let now = self.clock(world);
        let outcome = sent.outcome.unwrap_or_else(|| server.handle(sent.write.as_ref()));
        match outcome {
            LeaseAnswer::Read(lease) => self.candidate.on_read(sent.started, now, lease, 1.0),
            LeaseAnswer::Wrote(lease) => self.candidate.on_written(sent.started, now, lease),
            LeaseAnswer::Conflict => self.candidate.on_failed(sent.started, now, true),
            LeaseAnswer::Failed => self.candidate.on_failed(sent.started, now, false),
        }
    }
}

#[derive(Default)]
struct Server {
    lease: Option<Lease>,
    version: u64,
    late: Vec<(u64, Lease)>,
    was_deleted: bool,
    /// The Lease as it was once, and when.
    backup: Option<(u64, Lease)>,
    restored_at: Option<u64>,
}

impl Server {
    fn handle(&mut self, write: Option<&Lease>) -> LeaseAnswer {
        let Some(lease) = write else {
            return LeaseAnswer::Read(self.lease.clone());
        };
        let current = self
            .lease
            .as_ref()
            .and_then(|lease| lease.metadata.resource_version.clone());
        if lease.metadata.resource_version != current {
            return LeaseAnswer::Conflict;
        }
        self.version += 1;
        let lease = stored(lease.clone(), self.version);
        self.lease = Some(lease.clone());
        LeaseAnswer::Wrote(lease)
    }

    /// Now and then somebody deletes the Lease, empties it, changes its duration, or restores it from a backup. It is
    /// deleted once: nobody can tell a Lease that was created and deleted again meanwhile from one that never existed.
    fn edit_by_hand(&mut self, edit: u64, world: u64, actors: &mut [Actor]) {
        let Some(mut lease) = self.lease.clone() else {
            return;
        };
        let mut is_backup = false;
        let spec = lease.spec.get_or_insert_default();
        match edit {
            0 if !self.was_deleted => {
                self.was_deleted = true;
                self.lease = None;
                self.restored_at = Some(world);
                return Self::keep_away(world, actors, |actor| actor.candidate.leader.is_none());
            }
            1 => spec.holder_identity = None,
            // A duration that a leader may write, too.
            2..=4 => spec.lease_duration_seconds = Some(4),
            5 => spec.lease_duration_seconds = Some(20),
            6 if self.backup.is_none() => return self.backup = Some((world, lease)),
            7 => match self.backup.clone() {
                Some((at, backup)) if at + BACKUP_AGE <= world => (lease, is_backup) = (backup, true),
                _ => return,
            },
            _ => return,
        }
        if is_backup {
            self.restored_at = Some(world);
            let renewed = renew_time(Some(&lease));
            Self::keep_away(world, actors, |actor| actor.candidate.renewed <= renewed);
        }
        self.version += 1;
        self.lease = Some(stored(lease, self.version));
    }

    /// Nobody can tell a Lease that was deleted from a new installation without having seen it, or one that was
    /// restored from what its leader wrote without having seen a newer one.
    fn keep_away(world: u64, actors: &mut [Actor], is_misled: impl Fn(&Actor) -> bool) {
        for actor in actors.iter_mut().filter(|actor| is_misled(actor)) {
            actor.sent = None;
            actor.frozen_until = actor.frozen_until.max(world + LONGEST_LEASE);
        }
    }

    fn handle_late(&mut self, world: u64) {
        let due = |(when, _): &(u64, Lease)| *when <= world;
        let (late, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.late).into_iter().partition(due);
        self.late = later;
        for (_, lease) in late {
            self.handle(Some(&lease));
        }
    }
}

/// The events of one turn, drawn from one number, because 4,000 strategies for each case take longer than the case.
struct TurnOfEvents {
    index: usize,
    fate: RequestFate,
    /// Milliseconds from a request to its answer: also more than anybody waits.
    delay: u64,
    freeze: u64,
    edit: u64,
}

impl TurnOfEvents {
    /// Nothing but fast answers.
    const fn calm() -> Self {
        Self {
            index: 0,
            fate: RequestFate::AppliedFirst,
            delay: 1,
            freeze: u64::MAX,
            edit: u64::MAX,
        }
    }

    fn draw(mut number: u64) -> Self {
        let mut roll = |sides: u64| {
            let rolled = number % sides;
            number /= sides;
            rolled
        };
        Self {
            index: roll(3) as usize,
            fate: match roll(10) {
                0..4 => RequestFate::AppliedFirst,
                4..8 => RequestFate::AppliedLast,
                8 => RequestFate::Refused,
                _ => RequestFate::Late,
            },
            delay: match roll(4) {
                0 => 900 + roll(5_100),
                _ => 1 + roll(899),
            },
            freeze: roll(60),
            edit: roll(1_000),
        }
    }
}

proptest! {
    /// Clocks from 10 % slow to 10 % fast; requests that are slow, refused, lost or late; processes that stand still,
    /// or are started again; somebody who deletes, edits or restores the Lease. When all of that is over, one acts.
    #[test]
    fn at_most_one_acts(
        speeds in proptest::collection::vec(0.9..1.1_f64, 3),
        is_adaptive in proptest::bool::ANY,
        turns in proptest::collection::vec(proptest::num::u64::ANY, 5_000),
    ) {
        let mut server = Server { lease: Some(released()), ..Server::default() };
        let timing = match is_adaptive {
            true => ElectionTiming::default(),
            false => LeaseTimes::CLIENT_GO.into(),
        };
        let mut actors = Actor::all(timing, &speeds);
        let mut acted = 0;
        for (turns, number) in turns.into_iter().enumerate() {
            let is_over = turns >= 4_000;
            let TurnOfEvents { index, fate, delay, freeze, edit } = match is_over {
                true => TurnOfEvents::calm(),
                false => TurnOfEvents::draw(number),
            };
            let world = turns as u64 * 100;
            server.handle_late(world);
            server.edit_by_hand(edit, world, &mut actors);
            if freeze == 0 {
                actors[index].frozen_until = world + delay * 10;
            }
            if freeze == 1 {
                actors[index].restart(timing, world, &server);
            }
            for actor in actors.iter_mut().filter(|actor| actor.frozen_until <= world) {
                actor.turn(&mut server, world, fate, delay);
            }
            let acting = actors.iter().filter(|actor| actor.acts(world)).count();
            prop_assert!(acting <= 1, "{acting} act at {world} ms");
            acted += if is_over { acting } else { 0 };
        }
        prop_assert!(acted > 0, "nobody acts when all is over");
    }
}

/// Every request takes 4.5 s. The clock of the leader is 10 % fast, for which that is 4.95 s, or slow. A write that it
/// sends at any moment ends before its leadership does, as that stood when the write was sent.
#[test]
fn a_slow_api_server_keeps_its_leader_until_it_dies() {
    const DIES_AT: u64 = 300_000;
    let cases = [
        ([1.1_f64, 0.9], RequestFate::AppliedFirst),
        ([1.1, 0.9], RequestFate::AppliedLast),
        ([0.9, 1.1], RequestFate::AppliedFirst),
        ([0.9, 1.1], RequestFate::AppliedLast),
    ];
    let timings = [ElectionTiming::default(), LeaseTimes::CLIENT_GO.into()];
    let all = timings.map(|timing| cases.map(|case| (timing, case)));
    for (timing, (speeds, fate)) in all.into_iter().flatten() {
        let mut server = Server {
            lease: Some(released()),
            ..Server::default()
        };
        let mut actors = Actor::all(timing, &speeds);
        // The other one starts first.
        actors[1].frozen_until = 1_000;
        let mut changes: Vec<(u64, Option<usize>)> = Vec::new();
        for world in (0..400_000).step_by(10) {
            if world == DIES_AT {
                actors[0].frozen_until = u64::MAX;
            }
            for actor in actors.iter_mut().filter(|actor| actor.frozen_until <= world) {
                actor.turn(&mut server, world, fate, 4_500);
            }
            let acting: Vec<usize> = (0..2).filter(|index| actors[*index].acts(world)).collect();
            assert!(acting.len() <= 1, "two act at {world} ms");
            let has_time = actors[0].acts(world + 4_500);
            assert!(
                has_time || timing == LeaseTimes::CLIENT_GO.into() || !(20_000..DIES_AT).contains(&world),
                "a write that is sent at {world} ms"
            );
            let acting = acting.first().copied();
            if changes.last().is_none_or(|(_, before)| *before != acting) {
                changes.push((world, acting));
            }
        }
        let who: Vec<_> = changes.iter().map(|(_, acting)| *acting).collect();
        assert_eq!(who, [None, Some(0), None, Some(1)], "{changes:?}");
        let (first, stopped, second) = (changes[1].0, changes[2].0, changes[3].0);
        assert!(first < 12_000 && stopped > DIES_AT, "{changes:?}");
        // The lease by a slow clock, and three requests: one saw it last, one finds it unchanged, one takes it.
        assert!(
            second < DIES_AT + LONGEST_LEASE + 3 * 4_500 + 2_500,
            "{changes:?}"
        );
    }
}

/// Requests take 0.1 s, and from the 100th second on 2 s. The leader acts on,
/// except while it has not noticed yet.
#[test]
fn a_lease_is_long_while_the_api_server_is_slow_and_short_again_once_it_is_fast() {
    const SLOW: std::ops::Range<u64> = 100_000..200_000;
    for speed in [0.9, 1.1] {
        let mut server = Server {
            lease: Some(released()),
            ..Server::default()
        };
        let mut actors = Actor::all(ElectionTiming::default(), &[speed]);
        let (mut idle, mut durations) = (0, Vec::new());
        for world in (0..300_000).step_by(10) {
            let delay = if SLOW.contains(&world) { 2_000 } else { 100 };
            for actor in &mut actors {
                actor.turn(&mut server, world, RequestFate::AppliedLast, delay);
                idle += u64::from(!actor.acts(world)) * 10;
            }
            let spec = server.lease.as_ref().and_then(|lease| lease.spec.as_ref());
            let duration = spec.and_then(|spec| spec.lease_duration_seconds);
            if durations.last() != Some(&duration) {
                durations.push(duration);
            }
        }
        assert_eq!(durations, [Some(1), Some(4), Some(20), Some(4)]);
        assert!(idle < 3_000, "{idle} ms");
    }
}

/// The answer of the first short renewal after long ones is lost: others may have seen it.
#[test]
fn a_leader_acts_no_longer_than_the_shortest_lease_that_it_has_sent() {
    let mut leader = Candidate::new("a".into(), None, ElectionTiming::default());
    leader.on_read(seconds(0), seconds(2), Some(released()), 1.0);
    renew(&mut leader, 2, 3, 1);
    assert_eq!(
        leader.act_until(seconds(3)),
        Some(seconds(17)),
        "the first answer was slow"
    );
    renew(&mut leader, 11, 11, 2);
    assert_eq!(leader.act_until(seconds(11)), Some(seconds(26)));
    leader.claim(seconds(14), NAME, at(14));
    leader.on_failed(seconds(14), seconds(14), false);
    assert_eq!(leader.act_until(seconds(14)), Some(seconds(17)));
}

/// Its leader may lead by a long one, and not know yet.
#[test]
fn a_lease_that_its_leader_did_not_write_is_held_for_the_long_duration() {
    let held = |holder: &str, seconds: i32| {
        let mut leader = Candidate::new("a".into(), None, ElectionTiming::default());
        let mut lease = stored(leader.claim(Moment::ZERO, NAME, at(0)), 1);
        let spec = lease.spec.as_mut().unwrap();
        spec.holder_identity = Some(holder.to_owned());
        spec.lease_duration_seconds = Some(seconds);
        Some(lease)
    };
    // Its leader wrote the duration of the drop-in program.
    let mut shortened = candidate("a").claim(Moment::ZERO, NAME, at(0));
    shortened.spec.as_mut().unwrap().lease_duration_seconds = Some(4);
    for (state, free_at) in [
        (Some(stored(shortened, 1)), 21),
        (held("a", 4), 5),
        (held("a", 20), 21),
        (held("a", 25), 26),
        (held("a", 2), 21),
        (held("a", 6), 21),
        (held("", 4), 21),
        // A new installation.
        (None, 5),
    ] {
        let mut other = Candidate::new("b".into(), None, ElectionTiming::default());
        for second in [1, free_at - 1] {
            other.on_read(seconds(second), seconds(second), state.clone(), 1.0);
        }
        assert_eq!(other.step(), ElectionStep::Read(seconds(free_at)), "{state:?}");
    }
}

#[test]
fn a_lease_that_was_restored_from_a_backup_is_held_for_the_long_duration() {
    let mut leader = Candidate::new("a".into(), None, ElectionTiming::default());
    let short = stored(leader.claim(Moment::ZERO, NAME, at(0)), 1);
    let now = stored(leader.claim(Moment::ZERO, NAME, at(9)), 2);
    for (backup, is_gone) in [(&short, false), (&released(), false), (&short, true)] {
        let mut other = Candidate::new("b".into(), None, ElectionTiming::default());
        other.on_read(seconds(1), seconds(1), Some(now.clone()), 1.0);
        if is_gone {
            other.on_read(seconds(2), seconds(2), None, 1.0);
        }
        let restored = Some(stored(backup.clone(), 3));
        for second in [3, 17] {
            other.on_read(seconds(second), seconds(second), restored.clone(), 1.0);
        }
        assert_eq!(other.step(), ElectionStep::Read(seconds(18)), "{backup:?}");
    }
}

/// By something that marks what it has restored, for example.
#[test]
fn a_backup_that_is_written_once_more_is_held_from_then_on() {
    let now = stored(leader("a").claim(seconds(9), NAME, at(9)), 2);
    let mut other = Candidate::new("b".into(), None, ElectionTiming::default());
    other.on_read(seconds(1), seconds(1), Some(now), 1.0);
    for (second, version) in [(3, 3), (4, 4)] {
        let written = Some(stored(released(), version));
        other.on_read(seconds(second), seconds(second), written.clone(), 1.0);
        assert_eq!(other.step(), ElectionStep::Read(seconds(second + 1)));
    }
    for (second, step) in [
        (23, ElectionStep::Read(seconds(24))),
        (24, ElectionStep::Write(seconds(24))),
    ] {
        other.on_read(seconds(second), seconds(second), Some(stored(released(), 4)), 1.0);
        assert_eq!(other.step(), step);
    }
}
