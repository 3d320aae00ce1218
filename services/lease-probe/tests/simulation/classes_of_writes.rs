//! Steps of histories of etcd, of gateways that fail over, and of other grace periods.

use crate::builder::{Builder, DIED_LONG_AGO};
use crate::random::{Micros, SECOND};
use crate::timeline::{Behaviour, FailsFor};

/// A gateway fails over at `at`: what was on the way forgets nearly all connections.
fn fails_over(history: &mut Builder, at: Micros) -> Micros {
    let lasts = history.random.seconds(0.2, 1.0);
    history.server(at, lasts, Behaviour::BlackHole { forgets: 0.9 })
}

/// These nodes died long ago, and their Machines still count.
fn dead(history: &mut Builder, nodes: usize) {
    for node in history.shoot().nodes.iter_mut().take(nodes) {
        node.cuts = vec![DIED_LONG_AGO];
    }
}

pub(crate) fn one_dead_of_ten(history: &mut Builder) {
    history.set_nodes(10);
    dead(history, 1);
}

pub(crate) fn a_third_dead(history: &mut Builder) {
    let nodes = history.shoot().nodes.len();
    dead(history, nodes / 3);
}

pub(crate) fn loss_after_a_recovery(history: &mut Builder) {
    let (at, lasts) = (history.some_time(), history.random.seconds(50.0, 80.0));
    history.cut(1.0, at, at + lasts);
    let again = at + lasts + history.random.seconds(30.0, 90.0);
    history.lose(again);
}

pub(crate) fn etcd_hangs(history: &mut Builder, least: f64, most: f64) -> Micros {
    let (at, lasts) = (history.some_time(), history.random.seconds(least, most));
    history.server(at, lasts, Behaviour::EtcdHangs)
}

pub(crate) fn etcd_hangs_then_gateway_fails_over(history: &mut Builder, least: f64, most: f64) {
    let end = etcd_hangs(history, least, most);
    let at = end + history.random.seconds(0.0, 10.0);
    fails_over(history, at);
}

pub(crate) fn nodes_cut_then_connections_forgotten(history: &mut Builder) {
    let (at, lasts) = (history.some_time(), history.random.seconds(4.0, 20.0));
    history.cut(1.0, at, at + lasts);
    fails_over(history, at + lasts);
}

/// Such as a full etcd, or a webhook that is away.
pub(crate) fn writes_refused(history: &mut Builder, least: f64, most: f64) {
    let (at, lasts) = (history.some_time(), history.random.seconds(least, most));
    history.server(at, lasts, Behaviour::RefusesWrites);
}

/// A webhook or a priority level that concerns kubelets only.
pub(crate) fn kubelets_refused(history: &mut Builder) {
    let (at, lasts) = (history.some_time(), history.random.seconds(20.0, 60.0));
    let status = history.random.pick(&[429, 500]);
    let (share, of) = (1.0, FailsFor::Kubelets);
    history.server(at, lasts, Behaviour::Fails { share, status, of });
}

pub(crate) fn slow_writes(history: &mut Builder) {
    let by = history.random.seconds(0.5, 6.0);
    let (at, lasts) = (history.some_time(), history.random.seconds(5.0, 100.0));
    history.server(at, lasts, Behaviour::SlowWrites { by });
}

/// A gateway fails over, and new connections are slow after that.
pub(crate) fn slow_connections(history: &mut Builder, least: f64, most: f64) {
    let at = history.some_time();
    let end = fails_over(history, at);
    let by = history.random.seconds(least, most);
    history.server(end, 60 * SECOND, Behaviour::SlowConnects { by });
}

pub(crate) fn gateway_fails_over(history: &mut Builder) {
    let at = history.some_time();
    fails_over(history, at);
}

/// In a loss, lists lag by so much that they show renewals from before other lists.
pub(crate) fn stale_lists_in_a_loss(history: &mut Builder) {
    let at = history.some_time();
    history.lose(at);
    let mut from = at + history.random.seconds(30.0, 60.0);
    for _ in 0..3 {
        let (by, lasts) = (
            history.random.seconds(5.0, 90.0),
            history.random.seconds(1.0, 20.0),
        );
        from = history.server(from, lasts, Behaviour::ListsStale { by });
        from += history.random.seconds(1.0, 20.0);
    }
}

fn restored(history: &mut Builder, at: Micros) {
    let by = history.random.seconds(20.0, 120.0);
    history.server(at, SECOND, Behaviour::Restored { by });
    history.until(at);
}

pub(crate) fn etcd_restored(history: &mut Builder) {
    let at = history.some_time();
    restored(history, at);
}

pub(crate) fn etcd_restored_in_a_loss(history: &mut Builder) {
    let at = history.some_time();
    history.lose(at);
    let later = at + history.random.seconds(35.0, 80.0);
    restored(history, later);
}

/// One of these grace periods.
pub(crate) fn grace(history: &mut Builder, seconds: &[i64]) {
    let grace = history.random.pick(seconds) * SECOND;
    history.shoot().grace = grace;
    // Until it is over.
    let end = history.some_time() + grace;
    history.until(end);
}

/// The prober's clock is off by 5 to 120 s from those of all nodes, and it starts when connections are forgotten.
pub(crate) fn prober_starts_with_a_clock_that_is_off(history: &mut Builder) {
    let by = history.random.seconds(5.0, 120.0);
    let behind = if history.random.chance(0.5) { by } else { -by };
    history.set_all_clocks_behind(behind);
    let at = history.some_time();
    fails_over(history, at);
    let starts = at + history.random.seconds(-15.0, 25.0);
    history.hand_over(starts - SECOND, SECOND);
}
