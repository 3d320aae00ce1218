//! The recovery of a service, and for how long it counts.

use std::time::Duration;

use watchdog_api::unix_time::UnixTime;
use watchdog_api::weeder::WeederConfig;

use super::readiness::{ServiceState, Slice, SliceWrite};

/// A service may recover this often within [`WINDOW`] before its dependants wait.
const MAX_RECOVERIES: usize = 3;

/// See [`MAX_RECOVERIES`].
const WINDOW: Duration = Duration::from_secs(60);

/// A service that became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// When it was observed or, in a list, the time that the slices name. For people, and for the end of the weeder.
    /// `write` decides which pods were there before.
    pub(crate) at: UnixTime,
    /// True when the service was found ready in a list.
    pub(crate) found_ready: bool,
    /// The write that made the service ready, or an earlier one; `None` if the API server shows none, and then
    /// nothing is deleted.
    pub(crate) write: Option<SliceWrite>,
    pub(crate) deletes_from: UnixTime,
    pub(crate) ends_at: UnixTime,
}

impl Recovery {
    /// The recovery of a service that has these slices now, if it has one that counts. `before` is none if the service
    /// had no slice or was not known. In a list, only the slices tell when a change happened. `recent` are the times of
    /// the service's last recoveries, oldest first.
    pub(crate) fn of(
        before: Option<ServiceState>,
        slices: &[&Slice],
        in_list: bool,
        recent: &[UnixTime],
        config: &WeederConfig,
        now: UnixTime,
    ) -> Option<Self> {
        let ready = slices.iter().filter(|slice| slice.endpoints.is_ready());
        let was_ready = before.is_some_and(|before| before.endpoints.is_ready());
        if was_ready || ready.clone().next().is_none() {
            return None;
        }
        // If one of them has no date, it is unknown since when the service is ready.
        let last_change = ready.clone().map(|slice| slice.last_change()).min().flatten();
        // An endpoints controller that has just started writes the creation time of the Service.
        let last_change = last_change.filter(|(at, _)| before.is_none_or(|before| before.since <= *at));
        let found_ready = in_list && before.is_none();
        let (at, write) = match last_change {
            Some((at, write)) if in_list => (at.min(now), Some(write)),
            // If the service was observed not ready, it has recovered since.
            None if found_ready => return None,
            _ => (now, ready.map(|slice| slice.write).min().flatten()),
        };
        let mut recovery = Self {
            at,
            found_ready,
            write,
            deletes_from: at.after(config.ready_for).max(Self::free_from(recent)),
            ends_at: at,
        };
        recovery.configure(config);
        (now <= recovery.ends_at).then_some(recovery)
    }

    /// It lasts as long as this configuration says. When deletions begin is decided once.
    pub(crate) fn configure(&mut self, config: &WeederConfig) {
        self.ends_at = self.at.after(config.watch_duration);
    }

    /// Returns true if the service flaps.
    pub(crate) fn is_held_back(&self, recent: &[UnixTime]) -> bool {
        self.at < Self::free_from(recent)
    }

    /// The earliest time at which one more recovery does not exceed [`MAX_RECOVERIES`].
    fn free_from(recent: &[UnixTime]) -> UnixTime {
        let third_last = recent.iter().rev().nth(MAX_RECOVERIES - 1);
        third_last.map_or(UnixTime(i64::MIN), |at| at.after(WINDOW))
    }

    /// Adds a moment from which dependants are deleted to the last ones of the service.
    pub(crate) fn note(recent: &mut Vec<UnixTime>, deletes_from: UnixTime) {
        if recent.len() >= MAX_RECOVERIES {
            recent.remove(0);
        }
        recent.push(deletes_from);
    }
}

#[cfg(test)]
mod tests;
