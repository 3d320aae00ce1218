//! The one retry schedule: exponential with full jitter, reset by success.

use std::time::Duration;

/// Exponential back-off with full jitter: each delay is drawn evenly from half the current ceiling to the ceiling,
/// and the ceiling doubles up to a maximum. Jitter keeps thousands of clients that lost the same server from coming
/// back in step; the lower half is left out so that a retry never comes at once.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    ceiling: Duration,
}

impl Backoff {
    /// Starts at `first` and grows to `max`.
    #[must_use]
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self {
            first,
            max,
            ceiling: first,
        }
    }

    /// The delay before the next try.
    pub fn next_delay(&mut self) -> Duration {
        let ceiling = self.ceiling.min(self.max);
        self.ceiling = ceiling.saturating_mul(2).min(self.max);
        ceiling.mul_f64(rand::random_range(0.5..=1.0))
    }

    /// To be called after a success: the next failure starts small again.
    pub const fn reset(&mut self) {
        self.ceiling = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_maximum_and_starts_again() {
        let (first, max) = (Duration::from_millis(100), Duration::from_secs(1));
        let mut backoff = Backoff::new(first, max);
        let mut ceiling = first;
        for _ in 0..10 {
            let delay = backoff.next_delay();
            assert!(
                delay >= ceiling / 2 && delay <= ceiling,
                "{delay:?} is not within half of {ceiling:?}"
            );
            ceiling = (ceiling * 2).min(max);
        }
        backoff.reset();
        assert!(backoff.next_delay() <= first);
    }
}
