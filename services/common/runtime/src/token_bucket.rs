//! The one limit on a rate: a token bucket.

use std::time::Duration;

use tokio::time::Instant;

/// Lets `burst` events pass at once, and then `rate` a second.
#[derive(Debug)]
pub struct TokenBucket {
    rate: f64,
    burst: f64,
    tokens: f64,
    filled: Instant,
}

impl TokenBucket {
    /// A full bucket; `rate` is in tokens a second. Both are at least 1.
    #[must_use]
    pub const fn new(rate: f64, burst: f64, now: Instant) -> Self {
        let (rate, burst) = (rate.max(1.0), burst.max(1.0));
        Self {
            rate,
            burst,
            tokens: burst,
            filled: now,
        }
    }

    /// Succeeds while at least one token is left; takes none.
    ///
    /// # Errors
    /// When there is none: the instant from which there is one.
    pub fn check(&mut self, now: Instant) -> Result<(), Instant> {
        self.check_for(1, now)
    }

    /// Succeeds while at least this many tokens are left, which must not be more than the burst; takes none.
    ///
    /// # Errors
    /// When there are fewer: the instant from which there are as many.
    pub fn check_for(&mut self, tokens: u16, now: Instant) -> Result<(), Instant> {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = passed.mul_add(self.rate, self.tokens).min(self.burst);
        self.filled = now;
        let missing = f64::from(tokens) - self.tokens;
        if missing <= 0.0 {
            return Ok(());
        }
        // A timer fires a millisecond late rather than early; a little more is waited so that the token is there.
        let wait = missing / self.rate + 1e-6;
        Err(now + Duration::from_secs_f64(wait))
    }

    /// Takes this many tokens. The next check waits for those that are missing.
    pub fn take(&mut self, tokens: u32) {
        self.tokens -= f64::from(tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_kept() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(100.0, 10.0, start);
        let (mut now, mut taken) = (start, 0);
        while now < start + Duration::from_secs(10) {
            match bucket.check(now) {
                Ok(()) => {
                    let tokens = 1 + taken % 2;
                    bucket.take(tokens);
                    taken += tokens;
                }
                Err(at) => now = at,
            }
        }
        assert!((1_000..=1_012).contains(&taken), "{taken} tokens in 10 s");
    }
}
