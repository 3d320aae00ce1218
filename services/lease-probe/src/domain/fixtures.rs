//! Shared by the tests of several rules.

use watchdog_api::unix_time::UnixTime;

use super::answered::ListTimes;

/// A list that takes no time, of an API server that writes all the time.
pub(super) const fn list_at(time: UnixTime) -> ListTimes {
    ListTimes {
        sent: time,
        received: time,
        revision: time.0.unsigned_abs(),
    }
}
