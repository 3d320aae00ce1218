//! The end of the validity of a verdict, by the local monotonic clock.

use std::time::Duration;

use tokio::time::Instant;
use watchdog_proto::probe::v1::Verdict;

use crate::wire::forward;

/// The longest validity of a verdict, even if its observer sends a longer one: a verdict that old no longer describes
/// the shoot.
pub const LONGEST_VALIDITY: Duration = Duration::from_secs(600);

/// When a verdict was observed, and when its validity ends. Both count from when the verdict was sent, so no
/// wall clock is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// When it was observed.
    pub observed: Instant,
    /// The end of the validity. A verdict that was sent as valid for zero is never valid.
    pub valid_until: Instant,
}

impl Validity {
    /// Of a verdict that was sent at `sent_at`: [`crate::follow::Received::sent_at`] in a stream and in the answer to a
    /// unary call. An earlier instant is safe, a later one is not.
    #[must_use]
    pub fn of_verdict(verdict: &Verdict, sent_at: Instant) -> Self {
        let age = forward(verdict.age.as_ref()).min(LONGEST_VALIDITY);
        let observed = sent_at.checked_sub(age).unwrap_or(sent_at);
        let valid_for = forward(verdict.valid_for.as_ref()).min(LONGEST_VALIDITY);
        Self {
            observed,
            // An old observation is not valid, whatever it claims.
            valid_until: (sent_at + valid_for).min(observed + LONGEST_VALIDITY),
        }
    }

    /// True if the verdict is valid at `now`.
    #[must_use]
    pub fn is_valid_at(&self, now: Instant) -> bool {
        now < self.valid_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validity(age: i64, valid_for: i64, sent_at: Instant) -> Validity {
        let of = |seconds| prost_types::Duration { seconds, nanos: 0 };
        let verdict = Verdict {
            age: Some(of(age)),
            valid_for: Some(of(valid_for)),
            ..Verdict::default()
        };
        Validity::of_verdict(&verdict, sent_at)
    }

    #[test]
    fn validity_counts_from_the_sending_and_is_bounded() {
        let sent = Instant::now() + Duration::from_secs(10_000);
        let table = [
            (3, 20, 20),
            (3, 0, 0),
            (3, -5, 0),
            (3, 9_999_999, 597),
            (599, 20, 1),
            (600, 20, 0),
            (9_999_999, 9_999_999, 0),
            (3, i64::MAX, 597),
            (3, i64::MIN, 0),
            (i64::MAX, i64::MAX, 0),
            (i64::MIN, 20, 20),
        ];
        for (age, valid_for, expected) in table {
            let validity = validity(age, valid_for, sent);
            let until = sent + Duration::from_secs(expected);
            assert_eq!(validity.valid_until, until, "{age} {valid_for}");
            assert!(!validity.is_valid_at(until));
            assert_eq!(validity.is_valid_at(sent), expected > 0);
            let seen = Duration::from_secs(age.clamp(0, 600).unsigned_abs());
            assert_eq!(sent - validity.observed, seen);
        }
    }
}
