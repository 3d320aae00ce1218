//! The process's clock: wall time that never jumps.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use watchdog_api::unix_time::micros;

/// Wall time read once at the start and carried on by the monotonic clock. Somebody setting the host's clock while
/// the process runs changes nothing; a slow drift against other hosts is the business of the skew correction.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    started_micros: i64,
}

impl Clock {
    /// Reads the wall clock, for the only time.
    #[must_use]
    pub fn start() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        Self::starting_at(micros(since_epoch))
    }

    /// A clock that shows `unix_micros` now: for tests.
    #[must_use]
    pub fn starting_at(unix_micros: i64) -> Self {
        Self {
            started: Instant::now(),
            started_micros: unix_micros,
        }
    }

    /// Microseconds since the Unix epoch at `instant`.
    #[must_use]
    pub fn micros_at(&self, instant: Instant) -> i64 {
        match instant.checked_duration_since(self.started) {
            Some(since) => self.started_micros.saturating_add(micros(since)),
            None => self
                .started_micros
                .saturating_sub(micros(self.started.duration_since(instant))),
        }
    }

    /// Microseconds since the Unix epoch now.
    #[must_use]
    pub fn now_micros(&self) -> i64 {
        self.micros_at(Instant::now())
    }

    /// When the clock will show `unix_micros`; now for anything in the past.
    #[must_use]
    pub fn instant_at(&self, unix_micros: i64) -> Instant {
        let now = Instant::now();
        let ahead = unix_micros
            .saturating_sub(self.micros_at(now))
            .max(0)
            .unsigned_abs();
        now.checked_add(Duration::from_micros(ahead)).unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn follows_the_monotonic_clock() {
        let clock = Clock::starting_at(1_000_000);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(clock.now_micros(), 3_000_000);
        assert_eq!(
            clock.instant_at(5_000_000) - Instant::now(),
            Duration::from_secs(2)
        );
        assert_eq!(clock.instant_at(0), Instant::now());
    }
}
