//! How long kubelet would have waited.

use std::time::Duration;

use watchdog_api::duration::doubled;

use watchdog_api::unix_time::UnixTime;

/// kubelet's first back-off after a crash. Source: Kubernetes, `pkg/kubelet/kubelet.go` (`initialBackOff`,
/// `backOffPeriod`).
const FIRST: Duration = Duration::from_secs(10);

/// The longest. Source: Kubernetes, `pkg/kubelet/kubelet.go` (`MaxContainerBackOff`, `MaxCrashLoopBackOff`).
const LONGEST: Duration = Duration::from_secs(300);

/// The pause between a crash and the next start of a container that was restarted so often: kubelet restarts once at
/// once, then waits 10 s, and doubles that up to 5 min.
pub(crate) fn pause(restarts: i32) -> Duration {
    let doublings = u32::try_from(restarts.saturating_sub(1)).unwrap_or(0);
    doubled(FIRST, doublings, LONGEST)
}

/// The rest of the pause. Where it is not known when the container ended, half of the pause: that is how much is
/// left on average at a moment that has nothing to do with it. Never more than the pause, whatever the clocks say.
pub(crate) fn left(restarts: i32, ended_at: Option<UnixTime>, now: UnixTime) -> Duration {
    let pause = pause(restarts);
    match ended_at {
        Some(ended_at) => pause.saturating_sub(now.since(ended_at)),
        None => pause / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> UnixTime {
        UnixTime(seconds * 1_000_000)
    }

    #[test]
    fn doubles_from_10_s_to_5_min() {
        let seconds: Vec<u64> = (0..=8).map(|restarts| pause(restarts).as_secs()).collect();
        assert_eq!(seconds, [10, 10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(pause(i32::MAX), LONGEST);
        assert_eq!(pause(i32::MIN), FIRST);
    }

    #[test]
    fn what_is_left() {
        assert_eq!(left(3, Some(at(100)), at(110)), Duration::from_secs(30));
        assert_eq!(left(3, Some(at(100)), at(150)), Duration::ZERO);
        assert_eq!(
            left(3, Some(at(200)), at(110)),
            Duration::from_secs(40),
            "a node's clock that is ahead"
        );
        assert_eq!(left(3, None, at(110)), Duration::from_secs(20));
    }
}
