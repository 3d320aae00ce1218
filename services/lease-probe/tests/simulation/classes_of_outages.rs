//! Steps of histories of API servers that are away, and of probers that are.

use crate::builder::Builder;
use crate::node_lifecycle_input::TimeSpan;
use crate::random::{Micros, SECOND};
use crate::timeline::{Behaviour, FOREVER};

/// An outage of this kind.
pub(crate) fn outage_of(history: &mut Builder, behaviour: Behaviour) {
    let (at, lasts) = (history.some_time(), outage_length(history));
    history.outage(at, lasts, behaviour);
}

/// Short ones matter as much as long ones.
fn outage_length(history: &mut Builder) -> Micros {
    let most = history.random.pick(&[5.0, 20.0, 40.0, 60.0]);
    history.random.seconds(0.5, most)
}

pub(crate) fn of_any_kind(history: &mut Builder) {
    let kind = history.any_outage();
    outage_of(history, kind);
}

pub(crate) fn hang_then_restart(history: &mut Builder) {
    let (at, lasts) = (history.some_time(), history.random.seconds(1.0, 40.0));
    let dies = history.server(at, lasts, Behaviour::Hangs);
    let lasts = history.random.seconds(0.5, 15.0);
    history.outage(dies, lasts, Behaviour::Refuses);
}

/// A hang too short for pings to end the connection, a restart too short for a long outage, and then reads before
/// writes.
pub(crate) fn short_hang_and_restart(history: &mut Builder) {
    let (at, hangs) = (history.some_time(), history.random.seconds(5.0, 9.9));
    let dies = history.server(at, hangs, Behaviour::Hangs);
    let lasts = history.random.seconds(5.0, 14.0);
    let end = history.server(dies, lasts, Behaviour::Refuses);
    let lasts = history.random.seconds(0.1, 3.0);
    history.server(end, lasts, Behaviour::RefusesWrites);
}

/// An outage of any kind that lasts between `least` and `most` seconds, from its start to its end.
pub(crate) fn outage(history: &mut Builder, least: f64, most: f64) -> (Micros, Micros) {
    let (at, lasts, kind) = (
        history.some_time(),
        history.random.seconds(least, most),
        history.any_outage(),
    );
    (at, history.outage(at, lasts, kind))
}

/// The same, of a kind after which nothing has forgotten about connections.
pub(crate) fn survived_up_to_60_s(history: &mut Builder) {
    let (at, lasts) = (history.some_time(), history.random.seconds(0.5, 60.0));
    let kinds = [
        Behaviour::Refuses,
        Behaviour::Hangs,
        Behaviour::BlackHole { forgets: 0.0 },
    ];
    let kind = history.random.pick(&kinds);
    history.outage(at, lasts, kind);
}

/// One soon after the other.
pub(crate) fn two_outages(history: &mut Builder) {
    let (_, end) = outage(history, 0.5, 30.0);
    let at = end + history.random.seconds(0.5, 30.0);
    let (lasts, kind) = (history.random.seconds(0.5, 30.0), history.any_outage());
    history.outage(at, lasts, kind);
}

/// A server that is away in the same rhythm in which it is probed.
pub(crate) fn periodic(history: &mut Builder) {
    let period = history.random.pick(&[5, 10, 10, 20, 30]) * SECOND;
    let (up, kind) = (history.random.seconds(0.3, 4.0), history.any_outage());
    if history.random.chance(0.5) {
        history.server(-60 * SECOND, 300 * SECOND, Behaviour::ClosesAfterAnswers);
    }
    let mut at = 60 * SECOND + history.random.between(0, period);
    while at < 150 * SECOND {
        history.server(at, period - up, kind);
        at += period;
    }
}

/// One of two or three replicas behind a load balancer is gone, and connections to it hang until it is taken out.
pub(crate) fn one_replica_away(history: &mut Builder) {
    let (at, lasts) = (history.some_time(), history.random.seconds(5.0, 60.0));
    let share = history.random.pick(&[0.34, 0.5]);
    history.server(at, lasts, Behaviour::OneReplicaAway { share });
}

/// NAT or a load balancer forgets most connections in a moment.
pub(crate) fn connections_forgotten(history: &mut Builder) {
    let (at, lasts) = (history.some_time(), history.random.seconds(0.2, 5.0));
    history.server(at, lasts, Behaviour::BlackHole { forgets: 0.9 });
}

/// A prober that starts within seconds of the end of an outage, before or after the server takes writes.
pub(crate) fn prober_starts_after_outage(history: &mut Builder) {
    let (at, end) = outage(history, 15.0, 60.0);
    if history.random.chance(0.5) {
        let lasts = history.random.seconds(0.1, 5.0);
        history.server(end, lasts, Behaviour::RefusesWrites);
    }
    let dies = at - history.random.seconds(0.0, 10.0);
    let starts = end + history.random.seconds(0.0, 6.0);
    history.hand_over(dies, starts - dies);
}

/// An outage, from its start to its end.
fn away(history: &mut Builder) -> (Micros, Micros) {
    let (at, lasts, kind) = (history.some_time(), outage_length(history), history.any_outage());
    (at, history.outage(at, lasts, kind))
}

pub(crate) fn loss_before(history: &mut Builder) {
    let (at, _) = away(history);
    history.lose_between(at - 45 * SECOND, at);
}

pub(crate) fn loss_within(history: &mut Builder) {
    let (at, end) = away(history);
    history.lose_between(at, end);
}

pub(crate) fn loss_after(history: &mut Builder) {
    let (_, end) = away(history);
    history.lose_between(end, end + 60 * SECOND);
}

pub(crate) fn loss_before_within_or_after(history: &mut Builder) {
    let (at, end) = away(history);
    history.lose_between(at - 45 * SECOND, end + 20 * SECOND);
}

pub(crate) fn flapping(history: &mut Builder) {
    let mut at = history.some_time();
    let (up, down) = (
        history.random.seconds(2.0, 30.0),
        history.random.seconds(0.5, 15.0),
    );
    let kind = history.any_outage();
    let end = at + 120 * SECOND;
    while at < end {
        let lasts = history.random.between(down / 3, down);
        at = history.outage(at, lasts, kind);
        at += history.random.between(up / 3, up);
    }
}

/// Crashes soon after each start, and is started after longer and longer pauses.
pub(crate) fn restart_loop(history: &mut Builder) {
    let mut at = history.some_time();
    let mut pause = history.random.seconds(0.5, 5.0);
    for _ in 0..4 + history.random.below(4) {
        at = history.outage(at, pause, Behaviour::Refuses);
        at += history.random.seconds(0.5, 8.0);
        pause = (2 * pause).min(40 * SECOND);
    }
}

pub(crate) fn prober_restarts(history: &mut Builder) {
    let (at, after) = (history.some_time(), history.random.seconds(0.5, 5.0));
    history.hand_over(at, after);
}

/// A prober ends around an outage, and the next one starts `least` to `most` seconds later.
pub(crate) fn hand_over_around_outage(history: &mut Builder, least: f64, most: f64) {
    let (at, end) = away(history);
    let ends = history.random.between(at - 30 * SECOND, end + 30 * SECOND);
    let after = history.random.seconds(least, most);
    history.hand_over(ends, after);
}

/// The same around a loss.
pub(crate) fn hand_over_around_loss(history: &mut Builder, least: f64, most: f64) {
    let at = history.some_time();
    history.lose(at);
    let ends = at + history.random.seconds(-30.0, 60.0);
    let after = history.random.seconds(least, most);
    history.hand_over(ends, after);
}

pub(crate) fn prober_cut(history: &mut Builder) {
    let (from, lasts) = (history.some_time(), outage_length(history));
    let to = from + lasts;
    history.shoot().prober_cuts.push(TimeSpan::new(from, to));
    history.until(to);
}

/// All nodes are cut off until about when the loss is proven. Returns a span that begins at about that time, too.
fn loss_that_heals(history: &mut Builder) -> TimeSpan {
    let (at, lasts) = (history.some_time(), history.random.seconds(28.0, 45.0));
    history.cut(1.0, at, at + lasts);
    let from = at + history.random.seconds(28.0, 42.0);
    let to = from + history.random.seconds(0.5, 15.0);
    history.until(to);
    TimeSpan::new(from, to)
}

/// An answer that comes after the end of the cut may be older than the last renewals.
pub(crate) fn prober_cut_in_a_loss_that_heals(history: &mut Builder) {
    let cut = loss_that_heals(history);
    history.shoot().prober_cuts.push(cut);
}

/// The process is stopped for some time, by a signal or with its machine.
pub(crate) fn prober_stopped(history: &mut Builder) {
    let mut at = history.random.between(30 * SECOND, 130 * SECOND);
    for _ in 0..1 + history.random.below(3) {
        let longest = history.random.pick(&[1.0, 3.0, 8.0, 15.0, 40.0, 90.0]);
        let to = at + history.random.seconds(longest / 2.0, longest);
        history.stops.push(TimeSpan::new(at, to));
        history.until(to);
        at = to + history.random.seconds(0.1, 30.0);
    }
}

pub(crate) fn prober_stopped_in_a_loss_that_heals(history: &mut Builder) {
    let stop = loss_that_heals(history);
    history.stops.push(stop);
}

/// All shoots of a prober lose their API servers at once, one in twenty really loses its nodes within. `SHOOTS` says
/// how many.
pub(crate) fn shared_limiter(history: &mut Builder) {
    let shoots = history.random.pick(&[2, 20, 70, 200]);
    let shoots = crate::setting("SHOOTS").map_or(shoots, |shoots| shoots.parse().unwrap());
    let (at, lasts, kind) = (history.some_time(), outage_length(history), history.any_outage());
    history.shoots.clear();
    for _ in 0..shoots {
        history.add_shoot(6);
        // The last one that was added is the one that the builder's steps apply to.
        let last = history.shoots.len() - 1;
        history.shoots.swap(0, last);
        let end = history.outage(at, lasts, kind);
        if history.random.chance(0.05) {
            let lost = history.random.between(at - 20 * SECOND, end);
            history.cut(1.0, lost, FOREVER);
        }
    }
}
