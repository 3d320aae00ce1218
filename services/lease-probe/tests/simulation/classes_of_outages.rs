//! Histories of API servers that are away, and of probers that are.

use crate::builder::{Builder, OUTAGES};
use crate::random::{Micros, SECOND};
use crate::script::History;
use crate::timeline::{Behaviour, FOREVER, PacketLoss};

fn outage(mut history: Builder, behaviour: Behaviour) -> History {
    let (at, lasts) = (history.some_time(), outage_length(&mut history));
    history.outage(at, lasts, behaviour);
    history.build()
}

/// Short ones matter as much as long ones.
fn outage_length(history: &mut Builder) -> Micros {
    let most = history.random.pick(&[5.0, 20.0, 40.0, 60.0]);
    history.random.seconds(0.5, most)
}

pub(crate) fn refused(class: &'static str, seed: u64) -> History {
    outage(Builder::new(class, seed), Behaviour::Refuses)
}

pub(crate) fn hangs(class: &'static str, seed: u64) -> History {
    outage(Builder::new(class, seed), Behaviour::Hangs)
}

pub(crate) fn black_hole(class: &'static str, seed: u64) -> History {
    outage(Builder::new(class, seed), OUTAGES[2])
}

pub(crate) fn forgotten(class: &'static str, seed: u64) -> History {
    outage(Builder::new(class, seed), OUTAGES[3])
}

pub(crate) fn hang_then_restart(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    let (at, lasts) = (history.some_time(), history.random.seconds(1.0, 40.0));
    let dies = history.server(at, lasts, Behaviour::Hangs);
    let lasts = history.random.seconds(0.5, 15.0);
    history.outage(dies, lasts, Behaviour::Refuses);
    history.build()
}

pub(crate) fn between_probes(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed).interval(30);
    let (at, lasts, kind) = (
        history.some_time(),
        history.random.seconds(8.0, 26.0),
        history.any_outage(),
    );
    history.outage(at, lasts, kind);
    history.build()
}

/// An outage of any kind that lasts between `least` and `most` seconds, from its start to its end.
pub(crate) fn any_outage(history: &mut Builder, least: f64, most: f64) -> (Micros, Micros) {
    let (at, lasts, kind) = (
        history.some_time(),
        history.random.seconds(least, most),
        history.any_outage(),
    );
    (at, history.outage(at, lasts, kind))
}

/// Kubelets that renew every 5 to 20 s.
pub(crate) fn lease_durations(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    let duration = history.random.pick(&[20, 20, 30, 60, 80]) * SECOND;
    for node in &mut history.shoot().nodes {
        node.kubelet.lease_duration = duration;
    }
    any_outage(&mut history, 0.5, 60.0);
    history.build()
}

/// A server that is away in the same rhythm in which it is probed.
pub(crate) fn periodic(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
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
    history.build()
}

/// One of two or three replicas behind a load balancer is gone, and connections to it hang until it is taken out.
pub(crate) fn lose_a_replica(history: &mut Builder) {
    let (at, lasts) = (history.some_time(), history.random.seconds(5.0, 60.0));
    let share = history.random.pick(&[0.34, 0.5]);
    history.server(at, lasts, Behaviour::OneReplicaAway { share });
}

pub(crate) fn one_replica_away(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    lose_a_replica(&mut history);
    history.build()
}

/// Such as a full etcd, or a webhook that is away.
pub(crate) fn writes_refused(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    let (at, lasts) = (history.some_time(), history.random.seconds(5.0, 22.0));
    history.server(at, lasts, Behaviour::RefusesWrites);
    history.build()
}

/// All clocks are behind, or that of the prober's host is ahead.
pub(crate) fn clocks_behind(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    let behind = history.random.seconds(2.0, 10.0);
    history.set_all_clocks_behind(behind);
    any_outage(&mut history, 0.5, 40.0);
    history.build()
}

/// NAT or a load balancer forgets most connections in a moment.
fn blip(history: &mut Builder) {
    let (at, lasts) = (history.some_time(), history.random.seconds(0.2, 5.0));
    history.server(at, lasts, Behaviour::BlackHole { forgets: 0.9 });
}

pub(crate) fn connections_forgotten(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    blip(&mut history);
    history.build()
}

pub(crate) fn connections_forgotten_clocks_behind(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    let behind = history.random.seconds(0.5, 10.0);
    history.set_all_clocks_behind(behind);
    blip(&mut history);
    history.build()
}

/// A prober that starts within seconds of the end of an outage, before or after the server takes writes.
pub(crate) fn start_after_outage(mut history: Builder) -> History {
    let (at, end) = any_outage(&mut history, 15.0, 60.0);
    if history.random.chance(0.5) {
        let lasts = history.random.seconds(0.1, 5.0);
        history.server(end, lasts, Behaviour::RefusesWrites);
    }
    let dies = at - history.random.seconds(0.0, 10.0);
    let starts = end + history.random.seconds(0.0, 6.0);
    history.hand_over(dies, starts - dies);
    history.build()
}

pub(crate) fn prober_starts_after_outage(class: &'static str, seed: u64) -> History {
    start_after_outage(Builder::new(class, seed))
}

/// A history with an outage, from its start to its end.
fn away(mut history: Builder) -> (Builder, Micros, Micros) {
    let (at, lasts, kind) = (
        history.some_time(),
        outage_length(&mut history),
        history.any_outage(),
    );
    let end = history.outage(at, lasts, kind);
    (history, at, end)
}

fn lost_between(mut history: Builder, from: Micros, to: Micros) -> History {
    let lost = history.random.between(from, to);
    history.lose(lost);
    history.build()
}

pub(crate) fn loss_before(class: &'static str, seed: u64) -> History {
    let (history, at, _) = away(Builder::new(class, seed));
    lost_between(history, at - 45 * SECOND, at)
}

pub(crate) fn loss_within(class: &'static str, seed: u64) -> History {
    let (history, at, end) = away(Builder::new(class, seed));
    lost_between(history, at, end)
}

pub(crate) fn loss_after(class: &'static str, seed: u64) -> History {
    let (history, _, end) = away(Builder::new(class, seed));
    lost_between(history, end, end + 60 * SECOND)
}

fn speaks_http1(class: &'static str, seed: u64) -> Builder {
    let mut history = Builder::new(class, seed);
    history.shoot().server.speaks_http2 = false;
    history
}

pub(crate) fn http1(class: &'static str, seed: u64) -> History {
    let mut history = speaks_http1(class, seed);
    let kind = history.any_outage();
    outage(history, kind)
}

pub(crate) fn http1_loss(class: &'static str, seed: u64) -> History {
    let (history, at, end) = away(speaks_http1(class, seed));
    lost_between(history, at - 45 * SECOND, end + 20 * SECOND)
}

pub(crate) fn flap(history: &mut Builder) {
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

pub(crate) fn flapping(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    flap(&mut history);
    history.build()
}

fn lose_some_time(history: &mut Builder) {
    let at = history.random.between(50 * SECOND, 150 * SECOND);
    history.lose(at);
}

pub(crate) fn flapping_loss(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    flap(&mut history);
    lose_some_time(&mut history);
    history.build()
}

/// Crashes soon after each start, and is started after longer and longer pauses.
fn crash_loop(history: &mut Builder) {
    let mut at = history.some_time();
    let mut pause = history.random.seconds(0.5, 5.0);
    for _ in 0..4 + history.random.below(4) {
        at = history.outage(at, pause, Behaviour::Refuses);
        at += history.random.seconds(0.5, 8.0);
        pause = (2 * pause).min(40 * SECOND);
    }
}

pub(crate) fn restart_loop(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    crash_loop(&mut history);
    history.build()
}

pub(crate) fn restart_loop_loss(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    crash_loop(&mut history);
    lose_some_time(&mut history);
    history.build()
}

pub(crate) fn prober_restarts(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    let (at, after) = (history.some_time(), history.random.seconds(0.5, 5.0));
    history.hand_over(at, after);
    history.build()
}

pub(crate) fn prober_outage(mut history: Builder, after: (f64, f64)) -> History {
    let (at, lasts, kind) = (
        history.some_time(),
        outage_length(&mut history),
        history.any_outage(),
    );
    let end = history.outage(at, lasts, kind);
    let ends = history.random.between(at - 30 * SECOND, end + 30 * SECOND);
    let after = history.random.seconds(after.0, after.1);
    history.hand_over(ends, after);
    history.build()
}

fn prober_loss(class: &'static str, seed: u64, after: (f64, f64)) -> History {
    let mut history = Builder::new(class, seed);
    let at = history.some_time();
    history.lose(at);
    let ends = at + history.random.seconds(-30.0, 60.0);
    let after = history.random.seconds(after.0, after.1);
    history.hand_over(ends, after);
    history.build()
}

pub(crate) fn prober_restarts_outage(class: &'static str, seed: u64) -> History {
    prober_outage(Builder::new(class, seed), (0.5, 5.0))
}

pub(crate) fn prober_restarts_loss(class: &'static str, seed: u64) -> History {
    prober_loss(class, seed, (0.5, 5.0))
}

pub(crate) fn handover_outage(class: &'static str, seed: u64) -> History {
    prober_outage(Builder::new(class, seed), (2.0, 17.0))
}

pub(crate) fn handover_loss(class: &'static str, seed: u64) -> History {
    prober_loss(class, seed, (2.0, 17.0))
}

fn cut_prober(history: &mut Builder) {
    let (at, lasts) = (history.some_time(), outage_length(history));
    history.shoot().prober_cuts.push(PacketLoss {
        from: at,
        to: at + lasts,
    });
    history.until(at + lasts);
}

pub(crate) fn prober_cut(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    cut_prober(&mut history);
    history.build()
}

pub(crate) fn prober_cut_loss(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    cut_prober(&mut history);
    lose_some_time(&mut history);
    history.build()
}

/// All shoots of a prober lose their API servers at once, one in twenty really loses its nodes within. `SHOOTS` says
/// how many.
pub(crate) fn shared_limiter(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    let shoots = history.random.pick(&[2, 20, 70, 200]);
    let shoots = crate::setting("SHOOTS").map_or(shoots, |shoots| shoots.parse().unwrap());
    shared_outage(history, shoots)
}

/// A history of `shoots` shoots with the same outage.
pub(crate) fn shared_outage(mut history: Builder, shoots: usize) -> History {
    let (at, lasts, kind) = (
        history.some_time(),
        outage_length(&mut history),
        history.any_outage(),
    );
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
    history.build()
}
