//! The answer to a deletion, and when to try again.

use std::time::Duration;

use watchdog_api::duration::doubled;

/// The pause after the first failure; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// See [`FIRST_PAUSE`]. Also the longest pause that a server can order: a recovery counts for five minutes, and an
/// absurd Retry-After must not stop all deletions for long.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The result of one try to delete a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeletionResult {
    Deleted,
    /// Not sent, because the mode is observe.
    KeptBack,
    /// 404: there is no such pod.
    Gone,
    /// 409: a precondition does not hold, the pod is another one or has changed.
    Changed,
    /// 403: what the API server says, and the permission that is missing.
    Forbidden(String),
    /// 429, with the pause that the server asks for.
    Throttled(Option<Duration>),
    /// No answer, a broken one, or another refusal. The pod may have been deleted.
    Failed(String),
}

impl DeletionResult {
    pub(crate) const ALL: [Self; 7] = [
        Self::Deleted,
        Self::KeptBack,
        Self::Gone,
        Self::Changed,
        Self::Forbidden(String::new()),
        Self::Throttled(None),
        Self::Failed(String::new()),
    ];

    /// As a label value.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::Deleted => "deleted",
            Self::KeptBack => "kept_back",
            Self::Gone => "gone",
            Self::Changed => "changed",
            Self::Forbidden(_) => "forbidden",
            Self::Throttled(_) => "throttled",
            Self::Failed(_) => "failed",
        }
    }

    /// True if the pod was deleted; in mode observe, if it would have been.
    pub(crate) const fn is_done(&self) -> bool {
        matches!(self, Self::Deleted | Self::KeptBack)
    }

    /// True if the pod is left alone, because it is not the one that was seen.
    pub(crate) const fn is_obsolete(&self) -> bool {
        matches!(self, Self::Gone | Self::Changed)
    }

    /// The pause before the next try, after a number of failures in a row (from 1). Without jitter: the number of
    /// requests at one time is bounded, and so is a stampede.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        match self {
            Self::Throttled(asked) => asked.unwrap_or(FIRST_PAUSE).clamp(FIRST_PAUSE, LONGEST_PAUSE),
            _ => doubled(FIRST_PAUSE, failures.saturating_sub(1), LONGEST_PAUSE),
        }
    }
}

impl std::fmt::Display for DeletionResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Deleted => f.write_str("the pod was deleted"),
            Self::KeptBack => f.write_str("the mode is observe"),
            Self::Gone => f.write_str("the pod no longer exists (404)"),
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
        let failed = |n| DeletionResult::Failed(String::new()).pause(n).as_secs();
        assert_eq!((1..8).map(failed).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 30, 30]);
        for (asked, waits) in [(None, 1), (Some(0), 1), (Some(7), 7), (Some(7_000), 30)] {
            let throttled = DeletionResult::Throttled(asked.map(Duration::from_secs));
            assert_eq!(throttled.pause(9).as_secs(), waits);
        }
    }
}
