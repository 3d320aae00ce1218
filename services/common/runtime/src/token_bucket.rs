//! The one limit on a rate: a token bucket.

use std::time::Duration;

use tokio::time::Instant;

/// Lets a burst of events pass at once, and then one in each interval.
#[derive(Debug)]
pub struct TokenBucket {
    interval: Duration,
    burst: u32,
    /// When the whole burst is there again. Each event adds an interval.
    full_at: Instant,
}

impl TokenBucket {
    /// A full bucket; `rate` is in tokens a second. Both are at least 1.
    #[must_use]
    pub fn new(rate: u32, burst: u32) -> Self {
        Self {
            interval: Duration::from_secs(1) / rate.max(1),
            burst: burst.max(1),
            full_at: Instant::now(),
        }
    }

    /// How long it takes until this many tokens are left, which must not be more than the burst; takes none.
    #[must_use]
    pub fn wait_for(&self, tokens: u32) -> Duration {
        let missing_for = self.interval * self.burst.saturating_sub(tokens);
        self.full_at
            .saturating_duration_since(Instant::now() + missing_for)
    }

    /// Takes a token. If there is none, later waits are longer.
    pub fn take(&mut self) {
        self.full_at = self.full_at.max(Instant::now()) + self.interval;
    }
}
