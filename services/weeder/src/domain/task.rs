//! What weeding asks of the API server.

use std::sync::Arc;

use super::candidates::Found;
use super::dependants::Dependants;
use super::moment::Moment;
use super::pods::{CrashLoop, Pod};
use super::service::ServiceKey;

/// A request to be made.
#[derive(Debug, Clone)]
pub enum Task {
    /// List the dependants of a weeder.
    List(List),
    /// Delete a pod, if it is still the same.
    Delete(Delete),
}

/// See [`Task::List`].
#[derive(Debug, Clone)]
pub struct List {
    /// Whose.
    pub key: ServiceKey,
    /// Which pods of its namespace.
    pub dependants: Arc<Dependants>,
    pub(super) start: u64,
}

/// See [`Task::Delete`].
#[derive(Debug, Clone)]
pub struct Delete {
    /// Which; the request is to carry its UID and resourceVersion.
    pub pod: Arc<Pod>,
    /// Why.
    pub crash: CrashLoop,
    /// The weeder that asks for it.
    pub key: ServiceKey,
    /// Since when the pod has been waiting for it.
    pub since: Moment,
    /// See there.
    pub found: Found,
    pub(super) start: u64,
    pub(super) failures: u32,
}
