//! Why a request did not succeed, and when to try again.

use std::time::Duration;

use watchdog_api::duration::doubled;

/// A missing permission is not back sooner for asking every second.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(10);

/// The pause after the first failure of another kind; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// See [`FIRST_PAUSE`].
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Longest pause that a server can order: a weeder lives for five minutes, and an absurd Retry-After must not stop all
/// of them for long.
const LONGEST_THROTTLE: Duration = Duration::from_secs(30);

/// Why a list or a deletion did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestFailure {
    /// 404: there is no such pod.
    Gone,
    /// 409: a precondition does not hold, the pod is another one or has changed.
    Changed,
    /// 403: what the API server says, and the permission that is missing.
    Forbidden(String),
    /// 429, with the pause that the server asks for.
    Throttled(Option<Duration>),
    /// No answer, a broken one, or another refusal. Whether a deletion took place is not known.
    Failed(String),
}

impl RequestFailure {
    /// The pause before the next try, after a number of failures in a row (from 1). Without jitter: the number of
    /// requests at one time is bounded, and so is a stampede.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        match self {
            Self::Gone => Duration::ZERO,
            // The first time its watch may have brought the newer state already. A pod that changes all the time must
            // not be asked for all the time.
            Self::Changed => match failures.checked_sub(2) {
                Some(doublings) => doubled(FIRST_PAUSE, doublings, LONGEST_PAUSE),
                None => Duration::ZERO,
            },
            Self::Forbidden(_) => FORBIDDEN_PAUSE,
            Self::Throttled(asked) => asked.unwrap_or(FIRST_PAUSE).clamp(FIRST_PAUSE, LONGEST_THROTTLE),
            Self::Failed(_) => doubled(FIRST_PAUSE, failures.saturating_sub(1), LONGEST_PAUSE),
        }
    }
}

impl std::fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gone => f.write_str("the pod is gone (404)"),
            Self::Changed => f.write_str("the pod has changed or was replaced (409)"),
            Self::Forbidden(why) => write!(f, "it is forbidden (403): {why}"),
            Self::Throttled(Some(wait)) => {
                let wait = watchdog_api::duration::format(*wait);
                write!(f, "the API server throttles (429) and asks to wait for {wait}")
            }
            Self::Throttled(None) => f.write_str("the API server throttles (429)"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses() {
        let seconds = |failure: RequestFailure, n| failure.pause(n).as_secs();
        let failed: Vec<u64> = (1..8)
            .map(|n| seconds(RequestFailure::Failed(String::new()), n))
            .collect();
        assert_eq!(failed, [1, 2, 4, 8, 16, 30, 30]);
        let changed: Vec<u64> = (1..8).map(|n| seconds(RequestFailure::Changed, n)).collect();
        assert_eq!(changed, [0, 1, 2, 4, 8, 16, 30]);
        assert_eq!(
            seconds(RequestFailure::Throttled(Some(Duration::from_secs(7))), 1),
            7
        );
        assert_eq!(
            seconds(RequestFailure::Throttled(Some(Duration::from_secs(7000))), 1),
            30
        );
        assert_eq!(seconds(RequestFailure::Throttled(None), 9), 1);
        assert_eq!(seconds(RequestFailure::Forbidden(String::new()), 1), 10);
    }
}
