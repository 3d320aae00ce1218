//! The input of the model of the node lifecycle controller: simulated here, recorded from a real control plane in the
//! end-to-end test that checks the model.

use crate::random::Micros;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseWrite {
    /// When the API server made it.
    pub(crate) at: Micros,
    /// By the node's clock.
    pub(crate) renew_time: Micros,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KubeletHistory {
    /// In order.
    pub(crate) writes: Vec<LeaseWrite>,
    /// When it could write its status, if there was something to write.
    pub(crate) reports: Vec<Micros>,
}

/// The time in which one process leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeadershipTerm {
    pub(crate) from: Micros,
    pub(crate) to: Micros,
}

/// A time in which nothing of what happens reaches the caches; all of it does at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WatchGap {
    pub(crate) from: Micros,
    pub(crate) to: Micros,
}
