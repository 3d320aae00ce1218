//! The lists of the leases of a shoot.

use std::time::Duration;

use watchdog_api::lease::LeaseItem;
use watchdog_api::unix_time::UnixTime;

/// Two probes of one shoot, and so two lists, are never closer than this, except for those due at a crossing and for
/// retries in a loss (see [`super::schedule`]). While seconds decide, they follow each other at this pace.
pub(crate) const MIN_SPACING: Duration = Duration::from_secs(1);

/// A complete list of the leases of a shoot.
#[derive(Debug, Clone, Default)]
pub struct LeaseList {
    /// Those that could be decoded.
    pub leases: Vec<LeaseItem>,
    /// How many could not.
    pub malformed: u32,
    /// `metadata.resourceVersion` of the list: it grows with every write by any client of the API server.
    pub revision: u64,
    /// When it was asked for. The leases are judged as of then: one that expired since may have been renewed.
    pub sent: UnixTime,
    /// When the answer was there.
    pub received: UnixTime,
}
