//! The tasks that the manager gives the worker: requests, and findings to report.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::domain::attempts::Attempt;
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::pods::{CrashLoop, Pod};
use watchdog_api::unix_time::UnixTime;

/// A request that must be made.
#[derive(Debug, Clone)]
pub(crate) enum Task {
    Delete(Box<Deletion>),
    ReadEndpoints(EndpointRead),
}

#[derive(Debug, Clone)]
pub(crate) struct Deletion {
    pub(crate) pod: Arc<Pod>,
    pub(crate) crash: CrashLoop,
    /// The weeder that is responsible.
    pub(crate) key: NamespacedName,
    pub(crate) service_ready_since: UnixTime,
    /// True when the pod crashed after its weeder had started.
    pub(crate) crashed_later: bool,
    /// Since when the pod could have been deleted.
    pub(crate) waiting_since: UnixTime,
    pub(super) attempt: Attempt,
}

#[derive(Debug, Clone)]
pub(crate) struct EndpointRead {
    pub(crate) key: NamespacedName,
    pub(crate) pods: BTreeSet<Arc<str>>,
    pub(super) generation: u64,
}

/// Reported in Events, logs and metrics.
#[derive(Debug)]
pub(crate) enum Finding {
    /// A service comes and goes.
    Flapping(NamespacedName),
    /// A container keeps crashing although its service is ready.
    LeftAlone {
        key: NamespacedName,
        pod: Arc<Pod>,
        crash: CrashLoop,
    },
    /// A pod is gone whose deletion mode observe had kept back.
    DeletedByOthers {
        key: NamespacedName,
        pod: Arc<Pod>,
        kept_back_at: UnixTime,
    },
    /// Deletions that helped.
    Useful(u64),
    /// A deletion that did not help.
    Useless,
}
