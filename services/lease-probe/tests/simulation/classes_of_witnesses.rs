//! Steps of histories with two witnesses.

use crate::builder::Builder;
use crate::node_lifecycle_input::TimeSpan;
use crate::random::{Micros, SECOND};
use crate::timeline::{Behaviour, FOREVER, FailsFor, Segment};
use crate::witnesses::SecondWitness;

/// Another prober starts some time after the first one and goes on.
pub(crate) fn two_witnesses(history: &mut Builder) {
    let from = history.random.seconds(0.0, 30.0);
    history.second = Some(SecondWitness {
        probers: vec![TimeSpan::from_on(from)],
        segments: vec![],
        freezes: false,
        lags: 0,
        clock_ahead: 0,
    });
}

/// Of three API servers, the one of a witness does that for a while.
fn server_of_one(history: &mut Builder, behaviour: Behaviour) -> (Micros, Micros) {
    let (from, lasts) = (history.some_time(), history.random.seconds(20.0, 150.0));
    let to = from + lasts;
    history.until(to);
    if let Some(second) = &mut history.second {
        second.segments.push(Segment { from, to, behaviour });
    }
    (from, to)
}

pub(crate) fn one_stale(history: &mut Builder) -> (Micros, Micros) {
    let by = history.random.seconds(2.0, 90.0);
    server_of_one(history, Behaviour::ListsStale { by })
}

/// It has lost etcd: it serves what it knew, or nothing, or errors.
pub(crate) fn one_partitioned(history: &mut Builder) -> (Micros, Micros) {
    let fails = Behaviour::Fails {
        share: 1.0,
        status: 500,
        of: FailsFor::LeaseProbe,
    };
    let behaviour = history.random.pick(&[
        Behaviour::ListsFrozen,
        Behaviour::ListsFrozen,
        Behaviour::EtcdHangs,
        fails,
    ]);
    server_of_one(history, behaviour)
}

fn lose_around(history: &mut Builder, (from, to): (Micros, Micros)) {
    let at = history.random.between(from - 40 * SECOND, to);
    history.lose(at.max(60 * SECOND));
}

pub(crate) fn one_stale_in_a_loss(history: &mut Builder) {
    let span = one_stale(history);
    lose_around(history, span);
}

pub(crate) fn one_stale_in_a_loss_that_heals(history: &mut Builder) {
    let (from, to) = one_stale(history);
    let at = history.random.between(from - 40 * SECOND, to).max(60 * SECOND);
    let lasts = history.random.seconds(20.0, 100.0);
    history.cut(1.0, at, at + lasts);
}

pub(crate) fn one_partitioned_in_a_loss(history: &mut Builder) {
    let span = one_partitioned(history);
    lose_around(history, span);
}

/// Either one is killed, or frozen, and does not come back.
fn kill_one(history: &mut Builder, at: Micros) {
    let freezes = history.random.chance(0.5);
    let first = history.random.chance(0.5);
    if let Some(second) = &mut history.second {
        second.freezes = freezes;
        if !first {
            second.probers[0].to = at;
        }
    }
    if first {
        history.end_prober(at);
    }
    history.until(at);
}

pub(crate) fn one_killed_around_a_loss(history: &mut Builder) {
    let at = history.some_time();
    history.lose(at);
    let killed = at + history.random.seconds(-20.0, 60.0);
    kill_one(history, killed);
}

pub(crate) fn one_killed(history: &mut Builder) {
    let at = history.random.between(40 * SECOND, 160 * SECOND);
    kill_one(history, at);
}

/// One witness after the other is replaced. The chart keeps them this far apart (`initialDelaySeconds`).
pub(crate) fn rolling_update_around_a_loss(history: &mut Builder) {
    let first = history.random.between(40 * SECOND, 80 * SECOND);
    let second = first + history.random.seconds(45.0, 90.0);
    // Members are listed every 5 s.
    let [after, then] = [(); 2].map(|()| history.random.seconds(0.0, 5.0));
    history.hand_over(first, after);
    if let Some(witness) = &mut history.second {
        witness.probers[0].to = second;
        witness.probers.push(TimeSpan::from_on(second + then));
    }
    let lost = history.random.between(first - 40 * SECOND, second + 20 * SECOND);
    history.lose(lost.max(40 * SECOND));
}

/// The second witness restarts on a host whose clock is off, and knows of no renewal yet.
pub(crate) fn one_restarts_with_another_clock_around_a_loss(history: &mut Builder) {
    let at = history.some_time();
    history.lose(at);
    let ends = at + history.random.seconds(-15.0, 35.0);
    let down_for = history.random.seconds(0.5, 5.0);
    let by = history.random.seconds(2.0, 30.0);
    let behind = history.random.chance(0.5);
    if let Some(second) = &mut history.second {
        second.clock_ahead = if behind { -by } else { by };
        second.probers[0].to = ends;
        second.probers.push(TimeSpan::from_on(ends + down_for));
    }
    history.until(ends + down_for);
}

/// The second witness learns of other inputs up to a minute later, or not at all.
pub(crate) fn one_learns_late(history: &mut Builder) {
    let up_to_a_minute = history.random.seconds(0.0, 60.0);
    let lags = history.random.pick(&[up_to_a_minute, FOREVER / 2]);
    if let Some(second) = &mut history.second {
        second.lags = lags;
    }
}
