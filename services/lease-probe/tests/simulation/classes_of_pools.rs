//! Steps of histories in which pools of nodes are rolled, grow, shrink, and are updated in place.

use crate::builder::Builder;
use crate::classes_of_nodes as nodes;
use crate::node_lifecycle_input::TimeSpan;
use crate::random::{Micros, SECOND};
use crate::script::{NodeFact, NodeScript};
use crate::timeline::FOREVER;

pub(crate) fn one_three_or_ten_nodes(history: &mut Builder) {
    let nodes = history.random.pick(&[1, 3, 10]);
    history.set_nodes(nodes);
}

/// A Machine is made, and its node joins at `at`.
fn join(history: &mut Builder, at: Micros) {
    nodes::join(history, at);
    let leads = history.random.seconds(0.0, 90.0);
    if let Some(node) = history.shoot().nodes.last_mut() {
        node.machine_leads = leads;
        // A kubelet registers its node with its conditions.
        node.first_report = Some(at);
    }
}

/// The Lease stays until kube-controller-manager collects it.
fn leave(history: &mut Builder, node: usize, at: Micros) {
    nodes::leave(history, node, at);
    let stays = history.random.pick(&[0, 20 * SECOND, FOREVER]);
    history.shoot().nodes[node].lease_stays = stays;
}

/// All nodes are replaced one after the other (`maxSurge` 1). Returns the beginning and the end.
pub(crate) fn roll(history: &mut Builder) -> (Micros, Micros) {
    let (count, from) = (history.shoot().nodes.len(), history.some_time());
    let mut at = from;
    for node in 0..count {
        join(history, at);
        at += history.random.seconds(5.0, 50.0);
        leave(history, node, at);
        at += history.random.seconds(0.0, 20.0);
    }
    (from, at)
}

fn rolled_around_a_loss_of(history: &mut Builder, lasts: Micros) {
    let (from, to) = roll(history);
    let lost = history.random.between(from - 40 * SECOND, to + 20 * SECOND);
    lose(history, lost, lost.saturating_add(lasts));
}

/// Nodes that are cut off cannot join.
fn lose(history: &mut Builder, from: Micros, to: Micros) {
    let share = history.random.pick(&[0.75, 0.9, 1.0, 1.0]);
    history.cut(share, from, to);
    let joins = |node: &NodeScript| {
        let mut cuts = node.cuts.iter();
        node.created < from || !cuts.any(|cut| cut.contains(node.created))
    };
    history.shoot().nodes.retain(joins);
}

pub(crate) fn rolled_around_a_loss(history: &mut Builder) {
    rolled_around_a_loss_of(history, FOREVER);
}

pub(crate) fn rolled_around_a_loss_that_heals(history: &mut Builder) {
    let lasts = history.random.seconds(30.0, 100.0);
    rolled_around_a_loss_of(history, lasts);
}

/// These many nodes join within 10 s.
fn grow(history: &mut Builder, count: usize, at: Micros) {
    for _ in 0..count {
        let joins = at + history.random.seconds(0.0, 10.0);
        join(history, joins);
    }
}

/// cluster-autoscaler adds up to 20 nodes.
pub(crate) fn scale_up(history: &mut Builder) -> Micros {
    let (count, at) = (1 + history.random.below(20), history.some_time());
    grow(history, count, at);
    at
}

pub(crate) fn grown_before_a_loss(history: &mut Builder) {
    let lost = scale_up(history) + history.random.seconds(0.0, 40.0);
    lose(history, lost, FOREVER);
}

/// All nodes go, others come back, and a loss begins about when they do.
pub(crate) fn scaled_to_zero_and_back_before_a_loss(history: &mut Builder) {
    let (count, at) = (history.shoot().nodes.len(), history.some_time());
    for node in 0..count {
        leave(history, node, at);
    }
    let back = at + history.random.seconds(20.0, 200.0);
    grow(history, count, back);
    let lost = back + history.random.seconds(0.0, 50.0);
    lose(history, lost, FOREVER);
}

/// A third of the nodes after the other is updated in place.
pub(crate) fn updated_in_place(history: &mut Builder) {
    let (count, mut at) = (
        history.shoot().nodes.len(),
        history.random.between(20 * SECOND, 60 * SECOND),
    );
    for third in 0..3 {
        let ends = at + history.random.seconds(30.0, 90.0);
        for node in (third..count).step_by(3) {
            history.fact(node, at, ends, NodeFact::InPlaceUpdate);
            let silent = TimeSpan::new(at + history.random.seconds(2.0, 8.0), ends - 12 * SECOND);
            history.shoot().nodes[node].cuts.push(silent);
        }
        at = ends + history.random.seconds(0.0, 10.0);
        history.until(at);
    }
}
