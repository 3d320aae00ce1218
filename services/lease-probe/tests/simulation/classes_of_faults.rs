//! Steps of histories of API servers that answer, but not well.

use crate::builder::Builder;
use crate::classes_of_outages::outage;
use crate::input_changes::SecretChange;
use crate::node_lifecycle_input::TimeSpan;
use crate::random::{MILLISECOND, SECOND};
use crate::timeline::{Behaviour, FOREVER, FailsFor};

/// Duration of a server's bad behaviour.
const BAD_TIMES: i64 = 150 * SECOND;

fn fails(history: &mut Builder, share: (f64, f64), status: u16, of: FailsFor) {
    let share = (share.1 - share.0).mul_add(history.random.unit(), share.0);
    let at = history.random.between(20 * SECOND, 80 * SECOND);
    history.server(at, BAD_TIMES, Behaviour::Fails { share, status, of });
}

/// In a second or two within 40 s after a loss.
pub(crate) fn failing_once(history: &mut Builder, statuses: &[u16]) {
    let at = history.some_time();
    history.lose(at);
    let (fails, lasts) = (
        at + history.random.seconds(0.0, 40.0),
        history.random.seconds(0.5, 2.0),
    );
    let status = history.random.pick(statuses);
    let of = history.random.pick(&[FailsFor::Everybody, FailsFor::LeaseProbe]);
    let share = 1.0;
    history.server(fails, lasts, Behaviour::Fails { share, status, of });
}

pub(crate) fn errors(history: &mut Builder, least: f64, most: f64) {
    fails(history, (least, most), 500, FailsFor::Everybody);
}

pub(crate) fn throttled(history: &mut Builder) {
    let of = history.random.pick(&[FailsFor::Everybody, FailsFor::LeaseProbe]);
    fails(history, (0.1, 0.6), 429, of);
}

pub(crate) fn unauthorized(history: &mut Builder) {
    fails(history, (0.1, 0.6), 401, FailsFor::LeaseProbe);
}

/// Authentication or authorization is broken for a while, for kubelets too.
pub(crate) fn refused_to_everybody(history: &mut Builder) {
    let (at, lasts) = (history.some_time(), history.random.seconds(5.0, 60.0));
    let (share, of) = (1.0, FailsFor::Everybody);
    let status = history.random.pick(&[401, 403]);
    history.server(at, lasts, Behaviour::Fails { share, status, of });
}

pub(crate) fn slow(history: &mut Builder) {
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
}

pub(crate) fn closes(history: &mut Builder) {
    history.shoot().server.speaks_http2 = history.random.chance(0.5);
    history.server(-60 * SECOND, 230 * SECOND, Behaviour::ClosesAfterAnswers);
    if history.random.chance(0.5) {
        outage(history, 0.5, 30.0);
    }
}

/// Something on the way closes connections that are idle for a few seconds.
pub(crate) fn closes_idle(history: &mut Builder) {
    let after = history.random.seconds(0.5, 9.0);
    history.server(-60 * SECOND, 230 * SECOND, Behaviour::ClosesIdle { after });
}

/// Lists come from a watch cache that lags behind, now and then or all the time.
pub(crate) fn stale(history: &mut Builder) {
    let by = history.random.seconds(0.5, 8.0);
    let mut at = history.random.between(0, 60 * SECOND);
    while at < 180 * SECOND {
        let lasts = history.random.seconds(1.0, 60.0);
        at = history.server(at, lasts, Behaviour::ListsStale { by });
        at += history.random.seconds(0.0, 20.0);
    }
}

/// The seed's egress is broken, or its resolver: leases are renewed.
pub(crate) fn external_away(history: &mut Builder) {
    let from = history.some_time();
    let to = from + history.random.seconds(1.0, 120.0);
    history.shoot().external_cuts = Some(vec![TimeSpan::new(from, to)]);
    history.until(to);
}

/// Up to eight times, and once in a while it has another kubeconfig, or none.
pub(crate) fn external_flaps(history: &mut Builder) {
    let (mut at, mut cuts) = (history.random.between(30 * SECOND, 100 * SECOND), Vec::new());
    for number in 0..1 + history.random.below(8) {
        let to = at + history.random.seconds(1.0, 40.0);
        cuts.push(TimeSpan::new(at, to));
        let secret = history.random.pick(&[
            None,
            None,
            Some(SecretChange::Broken),
            Some(SecretChange::Deleted),
        ]);
        if let Some(secret) = secret {
            let (broken, mended) = (history.random.between(at, to), history.random.seconds(1.0, 20.0));
            let changes = [(broken, secret), (broken + mended, SecretChange::Rotated(number))];
            history.shoot().input_changes.external_secrets.extend(changes);
        }
        at = to + history.random.seconds(20.0, 40.0);
    }
    history.shoot().external_cuts = Some(cuts);
    history.until(at);
}

pub(crate) fn perhaps_outage(history: &mut Builder) {
    if history.random.chance(0.5) {
        outage(history, 0.5, 40.0);
    }
}

/// The external endpoint is away for lease-probe only, from some time before or after an outage starts until after its
/// end.
pub(crate) fn external_away_around_outage(history: &mut Builder) {
    let (starts, ends) = outage(history, 0.5, 40.0);
    let from = starts + history.random.seconds(-60.0, 40.0);
    let to = ends + history.random.seconds(20.0, 90.0);
    history.shoot().external_cuts = Some(vec![TimeSpan::new(from, to)]);
    history.until(to);
}

/// The endpoint that nodes use is the external one, so the nodes are cut off with it.
pub(crate) fn nodes_cut_off_with_external(history: &mut Builder) {
    let cuts = history.shoot().external_cuts.clone().unwrap_or_default();
    let share = history.random.pick(&[0.5, 0.7, 1.0]);
    for TimeSpan { from, to } in cuts {
        history.cut(share, from, to);
    }
}

/// Everything at once but stale lists: a list that lags hides the end of a loss from everybody who reads it.
pub(crate) fn anything(history: &mut Builder) {
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
            5 => history.shoot().prober_cuts.push(TimeSpan::new(at, at + lasts)),
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
}
