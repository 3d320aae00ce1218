//! Simulated shoots: kubelets, controllers and a control plane on the seed, all writing to the stores of the
//! two API servers. One task per shoot drives everything; it sleeps until something is due.

mod endpoints;
mod engine;
mod kubelets;
mod lifecycle;
mod machines;
mod objects;
mod pod;
mod podstatus;
mod shoot;
mod spec;
mod timing;
mod views;
mod workloads;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use self::timing::SimClock;
use crate::{
    status::ApiError,
    store::{Store, object::Object},
};

pub use self::{
    objects::PROBE_SECRET,
    shoot::SimulatedShoot,
    spec::{Cut, SimulatedShootSpec},
    timing::SimTiming,
    views::{MachineView, NodeView, PodView, WorkloadView},
};

/// The inputs of a simulator in one step.
struct StepInputs<'a> {
    /// Objects of the shoot cluster.
    shoot: &'a Arc<Store>,
    /// Objects of the seed.
    seed: &'a Arc<Store>,
    /// The shoot's namespace on the seed.
    namespace: &'a str,
    timing: &'a SimTiming,
    clock: SimClock,
    now: Instant,
    wall: Timestamp,
}

impl StepInputs<'_> {
    /// Notes a write that failed: somebody deleted the object in between, or the namespace is gone.
    fn report<T>(&self, what: &'static str, result: Result<T, ApiError>) {
        if let Err(error) = result {
            tracing::debug!(namespace = self.namespace, what, %error, "simulated write failed");
        }
    }
}

/// Status of a Node's Ready condition; empty when it has none.
fn node_ready(node: &Object) -> &str {
    node.value()
        .pointer("/status/conditions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .find(|condition| condition.get("type").and_then(Value::as_str) == Some("Ready"))
        .and_then(|condition| condition.get("status")?.as_str())
        .unwrap_or_default()
}
