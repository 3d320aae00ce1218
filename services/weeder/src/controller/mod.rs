//! Runs the rules: the state, the schedule of requests, and the worker that makes them.

use tracing::Span;

use crate::domain::namespaced_name::NamespacedName;

pub(crate) mod manager;
mod seed_updates;
pub(crate) mod shared;
pub(crate) mod state;
pub(crate) mod task;
pub(crate) mod worker;

/// The span of all that happens to the weeder of a service.
fn weeder_span(service: &NamespacedName) -> Span {
    // A span of a lower level would be left out, with its fields, where only warnings are logged.
    tracing::error_span!(
        "weeder",
        namespace = &*service.namespace,
        service = &*service.name
    )
}
