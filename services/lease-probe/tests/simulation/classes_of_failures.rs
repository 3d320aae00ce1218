//! Histories of API servers that answer, but not well.

use crate::builder::Builder;
use crate::random::{MILLISECOND, Micros, SECOND};
use crate::script::History;
use crate::timeline::{Behaviour, FOREVER, FailsFor, PacketLoss};

/// Duration of a server's bad behaviour.
const BAD_TIMES: i64 = 150 * SECOND;

pub(crate) fn fails(history: &mut Builder, share: (f64, f64), status: u16, of: FailsFor) {
    let share = (share.1 - share.0).mul_add(history.random.unit(), share.0);
    let at = history.random.between(20 * SECOND, 80 * SECOND);
    history.server(at, BAD_TIMES, Behaviour::Fails { share, status, of });
}

fn with_loss(mut history: Builder) -> History {
    let at = history.random.between(60 * SECOND, 140 * SECOND);
    history.lose(at);
    history.build()
}

/// In a second or two within 40 s after a loss.
fn failing_once(class: &'static str, seed: u64, statuses: &[u16]) -> History {
    let mut history = Builder::new(class, seed);
    let at = history.some_time();
    history.lose(at);
    let (fails, lasts) = (
        at + history.random.seconds(0.0, 40.0),
        history.random.seconds(0.5, 2.0),
    );
    let status = history.random.pick(statuses);
    let of = history.random.pick(&[FailsFor::Everybody, FailsFor::LeaseProbe]);
    history.server(
        fails,
        lasts,
        Behaviour::Fails {
            share: 1.0,
            status,
            of,
        },
    );
    history.build()
}

pub(crate) fn one_failure(class: &'static str, seed: u64) -> History {
    failing_once(class, seed, &[500, 503])
}

pub(crate) fn one_throttled(class: &'static str, seed: u64) -> History {
    failing_once(class, seed, &[429])
}

fn erring(class: &'static str, seed: u64, share: (f64, f64)) -> Builder {
    let mut history = Builder::new(class, seed);
    fails(&mut history, share, 500, FailsFor::Everybody);
    history
}

pub(crate) fn errors(class: &'static str, seed: u64) -> History {
    erring(class, seed, (0.1, 0.5)).build()
}

pub(crate) fn many_errors(class: &'static str, seed: u64) -> History {
    erring(class, seed, (0.5, 0.9)).build()
}

pub(crate) fn errors_loss(class: &'static str, seed: u64) -> History {
    with_loss(erring(class, seed, (0.1, 0.5)))
}

pub(crate) fn many_errors_loss(class: &'static str, seed: u64) -> History {
    with_loss(erring(class, seed, (0.5, 0.9)))
}

fn throttling(class: &'static str, seed: u64) -> Builder {
    let mut history = Builder::new(class, seed);
    let of = history.random.pick(&[FailsFor::Everybody, FailsFor::LeaseProbe]);
    fails(&mut history, (0.1, 0.6), 429, of);
    history
}

pub(crate) fn throttled(class: &'static str, seed: u64) -> History {
    throttling(class, seed).build()
}

pub(crate) fn throttled_loss(class: &'static str, seed: u64) -> History {
    with_loss(throttling(class, seed))
}

fn refusing_token(class: &'static str, seed: u64) -> Builder {
    let mut history = Builder::new(class, seed);
    fails(&mut history, (0.1, 0.6), 401, FailsFor::LeaseProbe);
    history
}

pub(crate) fn unauthorized(class: &'static str, seed: u64) -> History {
    refusing_token(class, seed).build()
}

pub(crate) fn unauthorized_loss(class: &'static str, seed: u64) -> History {
    with_loss(refusing_token(class, seed))
}

/// Authentication or authorization is broken for a while, for kubelets too.
pub(crate) fn refused_to_everybody(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    let (at, lasts) = (history.some_time(), history.random.seconds(5.0, 60.0));
    let (share, of) = (1.0, FailsFor::Everybody);
    let status = history.random.pick(&[401, 403]);
    history.server(at, lasts, Behaviour::Fails { share, status, of });
    history.build()
}

fn slowed(class: &'static str, seed: u64) -> Builder {
    let mut history = Builder::new(class, seed);
    let by = history.random.pick(&[300, 1_000, 3_000, 6_000, 9_000]) * MILLISECOND;
    // Always, for a while, or now and then.
    match history.random.below(3) {
        0 => {
            history.server(-30 * SECOND, 230 * SECOND, Behaviour::Slow { by });
        }
        1 => {
            let at = history.some_time();
            history.server(at, BAD_TIMES / 2, Behaviour::Slow { by });
        }
        _ => {
            let mut at = history.some_time();
            for _ in 0..6 {
                let lasts = history.random.seconds(1.0, 15.0);
                at = history.server(at, lasts, Behaviour::Slow { by }) + history.random.seconds(1.0, 15.0);
            }
        }
    }
    history
}

pub(crate) fn slow(class: &'static str, seed: u64) -> History {
    slowed(class, seed).build()
}

pub(crate) fn slow_loss(class: &'static str, seed: u64) -> History {
    with_loss(slowed(class, seed))
}

fn closing(class: &'static str, seed: u64) -> Builder {
    let mut history = Builder::new(class, seed);
    history.shoot().server.speaks_http2 = history.random.chance(0.5);
    history.server(-60 * SECOND, 230 * SECOND, Behaviour::ClosesAfterAnswers);
    if history.random.chance(0.5) {
        let (at, lasts, kind) = (
            history.some_time(),
            history.random.seconds(0.5, 30.0),
            history.any_outage(),
        );
        history.outage(at, lasts, kind);
    }
    history
}

pub(crate) fn closes(class: &'static str, seed: u64) -> History {
    closing(class, seed).build()
}

pub(crate) fn closes_loss(class: &'static str, seed: u64) -> History {
    with_loss(closing(class, seed))
}

/// Something on the way closes connections that are idle for a few seconds.
fn closing_idle(class: &'static str, seed: u64) -> Builder {
    let mut history = Builder::new(class, seed);
    let after = history.random.seconds(0.5, 9.0);
    history.server(-60 * SECOND, 230 * SECOND, Behaviour::ClosesIdle { after });
    history
}

pub(crate) fn closes_idle(class: &'static str, seed: u64) -> History {
    let mut history = closing_idle(class, seed);
    let (at, lasts, kind) = (
        history.some_time(),
        history.random.seconds(0.5, 40.0),
        history.any_outage(),
    );
    history.outage(at, lasts, kind);
    history.build()
}

pub(crate) fn closes_idle_loss(class: &'static str, seed: u64) -> History {
    with_loss(closing_idle(class, seed))
}

/// Lists come from a watch cache that lags behind, now and then or all the time.
fn lagging(class: &'static str, seed: u64) -> Builder {
    let mut history = Builder::new(class, seed);
    let by = history.random.seconds(0.5, 8.0);
    let mut at = history.random.between(0, 60 * SECOND);
    while at < 180 * SECOND {
        let lasts = history.random.seconds(1.0, 60.0);
        at = history.server(at, lasts, Behaviour::ListsStale { by });
        at += history.random.seconds(0.0, 20.0);
    }
    history
}

pub(crate) fn stale(class: &'static str, seed: u64) -> History {
    lagging(class, seed).build()
}

pub(crate) fn stale_loss(class: &'static str, seed: u64) -> History {
    with_loss(lagging(class, seed))
}

fn external_away(class: &'static str, seed: u64) -> Builder {
    let mut history = Builder::new(class, seed);
    let at = history.some_time();
    let to = at + history.random.seconds(1.0, 120.0);
    history.shoot().external_cuts = Some(vec![PacketLoss { from: at, to }]);
    history.until(to);
    history
}

/// The seed's egress is broken, or its resolver: leases are renewed.
pub(crate) fn external(class: &'static str, seed: u64) -> History {
    let mut history = external_away(class, seed);
    if history.random.chance(0.5) {
        let (at, lasts, kind) = (
            history.some_time(),
            history.random.seconds(0.5, 40.0),
            history.any_outage(),
        );
        history.outage(at, lasts, kind);
    }
    history.build()
}

/// The external endpoint is away from some time before or after an outage starts until after its end.
pub(crate) fn external_around(history: &mut Builder, (starts, ends): (Micros, Micros)) {
    let from = starts + history.random.seconds(-60.0, 40.0);
    let to = ends + history.random.seconds(20.0, 90.0);
    history.shoot().external_cuts = Some(vec![PacketLoss { from, to }]);
    history.until(to);
}

/// The endpoint that nodes use is away, so the nodes are cut off with it.
pub(crate) fn external_loss(class: &'static str, seed: u64) -> History {
    let mut history = external_away(class, seed);
    let cuts = history.shoot().external_cuts.clone().unwrap_or_default();
    let share = history.random.pick(&[0.5, 0.7, 1.0]);
    for PacketLoss { from, to } in cuts {
        history.cut(share, from, to);
    }
    history.build()
}

/// Everything at once but stale lists: a list that lags hides the end of a loss from everybody who reads it.
pub(crate) fn anything(class: &'static str, seed: u64) -> History {
    many_things(Builder::new(class, seed))
}

pub(crate) fn many_things(mut history: Builder) -> History {
    history.shoot().server.speaks_http2 = history.random.chance(0.8);
    for _ in 0..1 + history.random.below(5) {
        let at = history.random.between(30 * SECOND, 180 * SECOND);
        let lasts = history.random.seconds(0.3, 40.0);
        match history.random.below(7) {
            0..=2 => {
                let kind = history.any_outage();
                history.outage(at, lasts, kind);
            }
            3 => {
                let share = history.random.unit();
                let status = history.random.pick(&[500, 429]);
                let of = FailsFor::Everybody;
                history.server(at, lasts, Behaviour::Fails { share, status, of });
            }
            4 => {
                let by = history.random.seconds(0.2, 8.0);
                history.server(at, lasts, Behaviour::Slow { by });
            }
            5 => history.shoot().prober_cuts.push(PacketLoss {
                from: at,
                to: at + lasts,
            }),
            _ => {
                let share = history.random.unit();
                let to = if history.random.chance(0.5) {
                    FOREVER
                } else {
                    at + lasts
                };
                history.cut(share, at, to);
            }
        }
    }
    history.until(220 * SECOND);
    if history.random.chance(0.2) {
        let (at, after) = (
            history.random.between(40 * SECOND, 180 * SECOND),
            history.random.seconds(0.5, 17.0),
        );
        history.hand_over(at, after);
    }
    history.build()
}
