//! Shared by the tests of several rules.

use std::time::Duration;

use jiff::Timestamp;
use watchdog_api::lease::LeaseItem;
use watchdog_api::unix_time::UnixTime;

use super::assessment::{Assessment, ExpiryRule, assess};
use super::lease_list::LeaseList;
use super::outcome::Outcome;
use super::renewals::Renewals;

/// The rule of a shoot with the default grace period, but a shorter age.
pub(super) const RULE: ExpiryRule = ExpiryRule {
    grace: Duration::from_secs(40),
    expiry_age: Duration::from_secs(30),
    threshold: 0.6,
};

/// A healthy shoot without leases at second 0.
pub(super) fn nothing_found() -> Assessment {
    Assessment {
        outcome: Outcome::Healthy,
        ..assess(
            &LeaseList::default(),
            &Renewals::default(),
            None,
            RULE,
            false,
            None,
        )
    }
}

/// A list that takes no time, of an API server that writes all the time.
pub(super) fn list_at(time: UnixTime, leases: &[LeaseItem]) -> LeaseList {
    LeaseList {
        leases: leases.to_vec(),
        malformed: 0,
        revision: time.0.unsigned_abs(),
        sent: time,
        received: time,
    }
}

/// A lease with this renewal, or without any, which was written when it was made.
pub(super) fn lease_of(name: &str, renewed: Option<UnixTime>) -> LeaseItem {
    let timestamp = |renewed: UnixTime| Timestamp::from_microsecond(renewed.0).unwrap();
    LeaseItem {
        name: name.into(),
        revision: renewed.unwrap_or_default().0.unsigned_abs(),
        renew_time: renewed.map(timestamp),
        lease_duration_seconds: Some(40),
    }
}
