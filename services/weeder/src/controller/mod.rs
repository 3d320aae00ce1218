//! Runs the rule: the state that follows from the watches, and the worker that deletes.

use tracing::Span;

use crate::domain::namespaced_name::NamespacedName;

mod seed_updates;
pub(crate) mod shared;
pub(crate) mod state;
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
