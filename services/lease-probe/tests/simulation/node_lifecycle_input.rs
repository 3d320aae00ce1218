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

/// The time from one instant to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeSpan {
    pub(crate) from: Micros,
    pub(crate) to: Micros,
}

impl TimeSpan {
    pub(crate) const fn new(from: Micros, to: Micros) -> Self {
        Self { from, to }
    }

    pub(crate) const fn contains(&self, at: Micros) -> bool {
        self.from <= at && at < self.to
    }
}

/// The write that the lists of a server show at `at`: the last one by then.
pub(crate) fn last_write(writes: &[LeaseWrite], at: Micros) -> Option<LeaseWrite> {
    let by_then = writes.partition_point(|write| write.at <= at);
    writes[..by_then].last().copied()
}
