//! Histories of networks between nodes and API servers that work, and of the nodes themselves.

use crate::builder::Builder;
use crate::kubelet::{KubeletModel, NodeClock};
use crate::random::{Micros, SECOND};
use crate::script::{History, NodeFact, NodeScript, RUN_UP};
use crate::timeline::FOREVER;

pub(crate) fn quiet(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    history.until(170 * SECOND);
    history.build()
}

fn loss(mut history: Builder) -> History {
    let at = history.some_time();
    history.lose(at);
    history.build()
}

pub(crate) fn loss_10(class: &'static str, seed: u64) -> History {
    loss(Builder::new(class, seed).interval(10))
}

pub(crate) fn loss_30(class: &'static str, seed: u64) -> History {
    loss(Builder::new(class, seed).interval(30))
}

pub(crate) fn loss_around_threshold(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    let (at, share) = (history.some_time(), history.random.seconds(0.4, 0.8) as f64 / 1e6);
    history.cut(share, at, FOREVER);
    history.build()
}

pub(crate) fn creeping_loss(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    let mut at = history.some_time();
    let most = history.random.seconds(2.0, 30.0);
    for node in 0..history.shoot().nodes.len() {
        history.shoot().nodes[node]
            .cuts
            .push(crate::timeline::PacketLoss {
                from: at,
                to: FOREVER,
            });
        history.until(at);
        at += history.random.between(0, most);
    }
    history.build()
}

pub(crate) fn healed_loss(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    let (at, lasts) = (history.some_time(), history.random.seconds(10.0, 80.0));
    let share = history.random.pick(&[0.65, 0.8, 1.0]);
    history.cut(share, at, at + lasts);
    history.build()
}

pub(crate) fn swinging_share(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    let start = history.some_time();
    history.cut(0.4, start, FOREVER);
    let mut at = start + history.random.seconds(0.0, 20.0);
    for _ in 0..3 {
        let lasts = history.random.seconds(5.0, 60.0);
        let share = history.random.pick(&[0.2, 0.3, 0.5]);
        history.cut(share, at, at + lasts);
        at += lasts + history.random.seconds(5.0, 40.0);
    }
    history.build()
}

pub(crate) fn small_loss(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    let nodes = history.random.pick(&[2, 3]);
    loss(history.nodes(nodes))
}

pub(crate) fn large_loss(class: &'static str, seed: u64) -> History {
    loss(Builder::new(class, seed).nodes(50))
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

fn skew_clocks(history: &mut Builder) {
    let common = history
        .random
        .chance(0.3)
        .then(|| history.random.seconds(-120.0, 120.0));
    for node in some_nodes(history) {
        let skew = common.unwrap_or_else(|| history.random.seconds(-120.0, 120.0));
        history.shoot().nodes[node].kubelet.clock = NodeClock {
            steps: vec![(RUN_UP, skew)],
        };
    }
}

pub(crate) fn skewed_clocks(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    skew_clocks(&mut history);
    history.until(170 * SECOND);
    history.build()
}

pub(crate) fn skewed_clocks_loss(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    skew_clocks(&mut history);
    loss(history)
}

fn set_clocks(history: &mut Builder) {
    let at = history.some_time();
    let common = history
        .random
        .chance(0.3)
        .then(|| history.random.seconds(-120.0, 120.0));
    for node in some_nodes(history) {
        let step = common.unwrap_or_else(|| history.random.seconds(-120.0, 120.0));
        let when = at + history.random.seconds(0.0, 40.0);
        history.shoot().nodes[node].kubelet.clock.steps.push((when, step));
        history.until(when);
    }
}

pub(crate) fn clock_steps(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    set_clocks(&mut history);
    history.build()
}

pub(crate) fn clock_steps_loss(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    set_clocks(&mut history);
    loss(history)
}

fn join(history: &mut Builder, at: Micros) {
    let seed = history.random.next();
    let ready = at + history.random.seconds(0.1, 45.0);
    history.shoot().nodes.push(NodeScript {
        kubelet: KubeletModel::steady(seed, at + SECOND / 5),
        cuts: vec![],
        created: at,
        deleted: FOREVER,
        first_report: Some(ready),
        facts: vec![],
    });
    history.until(at);
}

/// A node is drained and shut down, and its Machine, Node and Lease go some time later.
fn leave(history: &mut Builder, node: usize, at: Micros) {
    let stops = at + history.random.seconds(2.0, 30.0);
    let deleted = stops + history.random.seconds(0.0, 90.0);
    history.fact(node, at, FOREVER, NodeFact::MachineTerminating);
    let node = &mut history.shoot().nodes[node];
    node.kubelet.stops = node.kubelet.stops.min(stops);
    node.deleted = node.deleted.min(deleted);
    history.until(stops);
}

fn joins_and_departures(history: &mut Builder) {
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

pub(crate) fn joins_and_leaves(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    joins_and_departures(&mut history);
    history.build()
}

pub(crate) fn joins_and_leaves_loss(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    joins_and_departures(&mut history);
    loss(history)
}

fn draw_facts(history: &mut Builder) {
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
            history.shoot().nodes[node]
                .cuts
                .push(crate::timeline::PacketLoss { from: silent, to });
            history.until(to);
        }
    }
}

pub(crate) fn facts(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    draw_facts(&mut history);
    history.build()
}

pub(crate) fn facts_loss(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    draw_facts(&mut history);
    loss(history)
}

pub(crate) fn lease_durations_loss(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    let duration = history.random.pick(&[20, 30, 60, 80]) * SECOND;
    for node in &mut history.shoot().nodes {
        node.kubelet.lease_duration = duration;
    }
    loss(history)
}
