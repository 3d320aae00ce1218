//! A deletion, which the leader takes from the state.

use std::sync::Arc;

use watchdog_api::unix_time::UnixTime;

use crate::domain::namespaced_name::NamespacedName;
use crate::domain::pods::Pod;
use crate::domain::recovery::Recovery;

/// A pod that must be deleted now, and why.
#[derive(Debug, Clone)]
pub(crate) struct Deletion {
    pub(crate) service: NamespacedName,
    pub(crate) recovery: Recovery,
    pub(crate) pod: Arc<Pod>,
    /// When its crash loop was seen.
    pub(crate) seen_at: UnixTime,
}
