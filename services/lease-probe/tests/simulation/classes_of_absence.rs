//! Steps of histories in which objects are gone, or lists do not show them.

use crate::absence::{Absence, Absent, Form};
use crate::builder::Builder;
use crate::random::{Micros, SECOND};
use crate::script::NodeFact;
use crate::timeline::FOREVER;

fn absent(history: &mut Builder, at: Micros) -> Micros {
    let most = history.random.pick(&[3.0, 20.0, 60.0, 150.0]);
    let to = at + history.random.seconds(1.0, most);
    let share = history.random.seconds(0.3, 0.9) as f64 / SECOND as f64;
    let absence = Absence {
        from: at,
        to,
        absent: history
            .random
            .pick(&[Absent::Leases, Absent::Nodes, Absent::Machines]),
        form: history
            .random
            .pick(&[Form::Empty, Form::Null, Form::NotFound, Form::Partial(share)]),
    };
    history.shoot().absences.push(absence);
    history.until(to);
    to
}

pub(crate) fn objects_absent(history: &mut Builder) {
    let at = history.some_time();
    absent(history, at);
}

/// The time at which a loss began, which no list has shown yet.
fn lost(history: &mut Builder) -> Micros {
    let at = history.some_time();
    history.lose(at);
    at
}

pub(crate) fn absent_around_a_loss(history: &mut Builder) {
    let at = lost(history) + history.random.seconds(-60.0, 60.0);
    absent(history, at);
}

pub(crate) fn absent_in_a_loss(history: &mut Builder) {
    let at = lost(history) + history.random.seconds(45.0, 120.0);
    absent(history, at);
}

/// A prober starts while objects are absent, in a loss or without one.
pub(crate) fn absent_over_a_restart(history: &mut Builder) {
    let at = match history.random.chance(0.5) {
        true => lost(history) + history.random.seconds(45.0, 100.0),
        false => history.some_time(),
    };
    let to = absent(history, at);
    let restarts = history.random.between(at, to);
    history.hand_over(restarts, SECOND);
}

/// All nodes were deleted on purpose, with their Machines, while they were lost.
pub(crate) fn scaled_to_zero_in_a_loss(history: &mut Builder) {
    let at = history.some_time();
    history.cut(1.0, at, FOREVER);
    let terminating = at + history.random.seconds(45.0, 100.0);
    let deleted = terminating + history.random.seconds(5.0, 40.0);
    for node in 0..history.shoot().nodes.len() {
        history.fact(node, terminating, FOREVER, NodeFact::MachineTerminating);
        history.shoot().nodes[node].deleted = deleted;
    }
    history.until(deleted + 60 * SECOND);
}

pub(crate) fn machines_without_labels(history: &mut Builder) {
    for node in 0..history.shoot().nodes.len() {
        if history.random.chance(0.75) {
            history.fact(node, -100 * SECOND, FOREVER, NodeFact::MachineWithoutLabel);
        }
    }
}

/// ReadonlyFilesystem and its like appear on nodes in the middle of a loss and stay.
pub(crate) fn conditions_stick_in_a_loss(history: &mut Builder) {
    let at = lost(history) + history.random.seconds(45.0, 90.0);
    let fact = history
        .random
        .pick(&[NodeFact::DiskPressure, NodeFact::InPlaceUpdate]);
    for node in 0..history.shoot().nodes.len() {
        if history.random.chance(0.8) {
            history.fact(node, at, FOREVER, fact);
        }
    }
}
