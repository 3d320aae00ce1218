//! Histories of shoots of 2 or 3 nodes, in which two kubelets that are late make a loss.

use crate::builder::Builder;
use crate::classes_of_failures::{external_around, fails, many_things};
use crate::classes_of_outages::{any_outage, flap, prober_outage, start_after_outage};
use crate::script::History;
use crate::timeline::{Behaviour, FailsFor};

pub(crate) fn small(class: &'static str, seed: u64) -> Builder {
    let mut history = Builder::new(class, seed);
    let nodes = history.random.pick(&[2, 3]);
    history.nodes(nodes)
}

pub(crate) fn outage(class: &'static str, seed: u64) -> History {
    let mut history = small(class, seed);
    any_outage(&mut history, 0.5, 60.0);
    history.build()
}

/// One soon after the other.
pub(crate) fn two_outages(class: &'static str, seed: u64) -> History {
    let mut history = small(class, seed);
    let (_, end) = any_outage(&mut history, 0.5, 30.0);
    let at = end + history.random.seconds(0.5, 30.0);
    let (lasts, kind) = (history.random.seconds(0.5, 30.0), history.any_outage());
    history.outage(at, lasts, kind);
    history.build()
}

pub(crate) fn flapping(class: &'static str, seed: u64) -> History {
    let mut history = small(class, seed);
    flap(&mut history);
    history.build()
}

pub(crate) fn errors(class: &'static str, seed: u64) -> History {
    let mut history = small(class, seed);
    fails(&mut history, (0.1, 0.9), 500, FailsFor::Everybody);
    history.build()
}

pub(crate) fn prober_restarts_outage(class: &'static str, seed: u64) -> History {
    prober_outage(small(class, seed), (0.5, 17.0))
}

pub(crate) fn prober_starts_after_outage(class: &'static str, seed: u64) -> History {
    start_after_outage(small(class, seed))
}

/// The external endpoint is away for lease-probe only, around an outage.
pub(crate) fn external(class: &'static str, seed: u64) -> History {
    let mut history = small(class, seed);
    let outage = any_outage(&mut history, 0.5, 40.0);
    external_around(&mut history, outage);
    history.build()
}

pub(crate) fn anything(class: &'static str, seed: u64) -> History {
    many_things(small(class, seed))
}

/// A hang too short for pings to end the connection, a restart too short for a long outage, and then reads before
/// writes.
pub(crate) fn hang_and_restart(class: &'static str, seed: u64) -> History {
    let mut history = Builder::new(class, seed);
    let nodes = 2 + history.random.below(5);
    let mut history = history.nodes(nodes);
    let (at, hangs) = (history.some_time(), history.random.seconds(5.0, 9.9));
    let dies = history.server(at, hangs, Behaviour::Hangs);
    let lasts = history.random.seconds(5.0, 14.0);
    let end = history.server(dies, lasts, Behaviour::Refuses);
    let lasts = history.random.seconds(0.1, 3.0);
    history.server(end, lasts, Behaviour::RefusesWrites);
    history.build()
}

pub(crate) fn writes_refused(class: &'static str, seed: u64) -> History {
    let mut history = small(class, seed);
    let (at, lasts) = (history.some_time(), history.random.seconds(10.0, 20.4));
    history.server(at, lasts, Behaviour::RefusesWrites);
    history.build()
}

pub(crate) fn one_replica_away(class: &'static str, seed: u64) -> History {
    let mut history = small(class, seed);
    crate::classes_of_outages::lose_a_replica(&mut history);
    history.build()
}

/// Those of all nodes, or that of the prober's host is ahead.
pub(crate) fn clocks_behind(class: &'static str, seed: u64) -> History {
    let mut history = small(class, seed);
    let behind = history.random.seconds(2.0, 10.0);
    history.set_all_clocks_behind(behind);
    any_outage(&mut history, 0.5, 40.0);
    history.build()
}
