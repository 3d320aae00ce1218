//! The cost of an outage.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The price that one shoot paid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutageCost {
    /// Nodes that were ever Unknown.
    pub nodes_unknown: usize,
    /// Machines that were given up and replaced.
    pub machines_replaced: u64,
    /// From the end of the outage until all nodes were ready, all machines ran and all dependants were as before; none
    /// when that did not come in time.
    pub restored: Option<Duration>,
}

/// With the watchdog, and without it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// A shoot that is watched over.
    pub protected: OutageCost,
    /// Its twin, to which the same happened, where it has one.
    pub unprotected: Option<OutageCost>,
}
