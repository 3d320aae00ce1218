//! Shared by the tests of several rules.

use jiff::Timestamp;
use watchdog_api::lease::LeaseItem;
use watchdog_api::unix_time::UnixTime;

use super::renewals::LeaseList;

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
