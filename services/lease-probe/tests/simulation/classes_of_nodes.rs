//! Steps of histories of networks between nodes and API servers that work, and of the nodes themselves.

use crate::builder::Builder;
use crate::kubelet::{KubeletModel, NodeClock};
use crate::node_lifecycle_input::TimeSpan;
use crate::random::{Micros, SECOND};
use crate::script::{NodeFact, NodeScript, RUN_UP};
use crate::timeline::FOREVER;

pub(crate) fn probed_every_30_s(history: &mut Builder) {
    history.interval = 30 * SECOND;
}

/// Two kubelets that are late make a loss.
pub(crate) fn two_or_three_nodes(history: &mut Builder) {
    let nodes = history.random.pick(&[2, 3]);
    history.set_nodes(nodes);
}

pub(crate) fn two_to_six_nodes(history: &mut Builder) {
    let nodes = 2 + history.random.below(5);
    history.set_nodes(nodes);
}

pub(crate) fn quiet(history: &mut Builder) {
    history.until(170 * SECOND);
}

pub(crate) fn loss(history: &mut Builder) {
    let at = history.some_time();
    history.lose(at);
}

pub(crate) fn loss_around_threshold(history: &mut Builder) {
    let (at, share) = (history.some_time(), history.random.seconds(0.4, 0.8) as f64 / 1e6);
    history.cut(share, at, FOREVER);
}

pub(crate) fn creeping_loss(history: &mut Builder) {
    let mut at = history.some_time();
    let most = history.random.seconds(2.0, 30.0);
    for node in 0..history.shoot().nodes.len() {
        history.shoot().nodes[node].cuts.push(TimeSpan::from_on(at));
        history.until(at);
        at += history.random.between(0, most);
    }
}

pub(crate) fn healed_loss(history: &mut Builder) {
    let (at, lasts) = (history.some_time(), history.random.seconds(10.0, 80.0));
    let share = history.random.pick(&[0.65, 0.8, 1.0]);
    history.cut(share, at, at + lasts);
}

pub(crate) fn swinging_share(history: &mut Builder) {
    let start = history.some_time();
    history.cut(0.4, start, FOREVER);
    let mut at = start + history.random.seconds(0.0, 20.0);
    for _ in 0..3 {
        let lasts = history.random.seconds(5.0, 60.0);
        let share = history.random.pick(&[0.2, 0.3, 0.5]);
        history.cut(share, at, at + lasts);
        at += lasts + history.random.seconds(5.0, 40.0);
    }
}

/// A share of the nodes, at least one.
fn some_nodes(history: &mut Builder) -> Vec<usize> {
    let count = history.shoot().nodes.len();
    let mut nodes: Vec<_> = (0..count).collect();
    history.random.shuffle(&mut nodes);
    let share = history.random.pick(&[0.1, 0.5, 1.0]);
    nodes.truncate(((count as f64 * share) as usize).max(1));
    nodes
}

/// By how much a clock is off: the same for all, or nothing, where each has its own.
fn common_skew(history: &mut Builder) -> Option<Micros> {
    let is_common = history.random.chance(0.3);
    is_common.then(|| history.random.seconds(-120.0, 120.0))
}

pub(crate) fn skewed_clocks(history: &mut Builder) {
    let common = common_skew(history);
    for node in some_nodes(history) {
        let skew = common.unwrap_or_else(|| history.random.seconds(-120.0, 120.0));
        history.shoot().nodes[node].kubelet.clock = NodeClock {
            steps: vec![(RUN_UP, skew)],
        };
    }
}

pub(crate) fn clock_steps(history: &mut Builder) {
    let at = history.some_time();
    let common = common_skew(history);
    for node in some_nodes(history) {
        let step = common.unwrap_or_else(|| history.random.seconds(-120.0, 120.0));
        let when = at + history.random.seconds(0.0, 40.0);
        history.shoot().nodes[node].kubelet.clock.steps.push((when, step));
        history.until(when);
    }
}

/// All clocks are behind, or that of the prober's host is ahead.
pub(crate) fn clocks_behind(history: &mut Builder, least: f64, most: f64) {
    let behind = history.random.seconds(least, most);
    history.set_all_clocks_behind(behind);
}

pub(crate) fn join(history: &mut Builder, at: Micros) {
    let seed = history.random.next();
    let ready = at + history.random.seconds(0.1, 45.0);
    let kubelet = KubeletModel::steady(seed, at + SECOND / 5);
    history.shoot().nodes.push(NodeScript {
        first_report: Some(ready),
        ..NodeScript::steady(kubelet, at)
    });
    history.until(at);
}

/// A node is drained and shut down, and its Machine, Node and Lease go some time later.
pub(crate) fn leave(history: &mut Builder, node: usize, at: Micros) {
    let stops = at + history.random.seconds(2.0, 30.0);
    let deleted = stops + history.random.seconds(0.0, 90.0);
    history.fact(node, at, FOREVER, NodeFact::MachineTerminating);
    let node = &mut history.shoot().nodes[node];
    node.kubelet.stops = node.kubelet.stops.min(stops);
    node.deleted = node.deleted.min(deleted);
    history.until(stops);
}

pub(crate) fn joins_and_leaves(history: &mut Builder) {
    let nodes = history.shoot().nodes.len();
    for _ in 0..1 + history.random.below(6) {
        let at = history.random.between(40 * SECOND, 140 * SECOND);
        if history.random.chance(0.5) {
            join(history, at);
        } else {
            let node = history.random.below(nodes);
            leave(history, node, at);
        }
    }
}

pub(crate) fn facts(history: &mut Builder) {
    for node in some_nodes(history) {
        let fact = history.random.pick(&[
            NodeFact::DiskPressure,
            NodeFact::InPlaceUpdate,
            NodeFact::MachineTerminating,
            NodeFact::MachineFailed,
            NodeFact::NoMachine,
            NodeFact::NotManagedByMcm,
        ]);
        let from = history.random.between(-60 * SECOND, 130 * SECOND);
        let lasts = history.random.seconds(10.0, 120.0);
        history.fact(node, from, from + lasts, fact);
        // What is updated in place or goes is silent for a while.
        if matches!(fact, NodeFact::InPlaceUpdate | NodeFact::MachineTerminating) && lasts > 20 * SECOND {
            let silent = from + history.random.seconds(2.0, 8.0);
            let to = from + lasts - 12 * SECOND;
            history.shoot().nodes[node].cuts.push(TimeSpan::new(silent, to));
            history.until(to);
        }
    }
}

/// One of these lease durations, in seconds.
pub(crate) fn lease_durations(history: &mut Builder, of: &[i64]) {
    let duration = history.random.pick(of) * SECOND;
    for node in &mut history.shoot().nodes {
        node.kubelet.lease_duration = duration;
    }
}
