//! Metrics of membership. The label `service` is the service whose replicas share their work.

use watchdog_runtime::metrics::{Metric, describe};

/// Live members.
pub const MEMBERS: Metric = Metric::gauge(
    "watchdog_membership_members",
    "Replicas of the service that this one considers live, itself included once it has joined, by service.",
);

/// Own lease.
pub const LEASE_VALID: Metric = Metric::gauge(
    "watchdog_membership_lease_valid",
    "1 while this replica's own membership lease is valid, by service. At 0 the coordinator does not act.",
);

/// Renewals.
pub const RENEWALS: Metric = Metric::counter(
    "watchdog_membership_renewals_total",
    "Attempts to write this replica's own membership lease, by service and result: ok, or why it failed as \
     watchdog_last_try_failed has it.",
);

/// Changes of ownership.
pub const CHANGES: Metric = Metric::counter(
    "watchdog_membership_changes_total",
    "How often the ownership of some key may have changed: members came or went, or this replica began or ceased to \
     act, by service.",
);

/// Registers the help texts.
pub fn register() {
    describe(&[MEMBERS, LEASE_VALID, RENEWALS, CHANGES]);
}
