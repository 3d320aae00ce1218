//! Points in time.

use std::time::Duration;

/// Microseconds since the Unix epoch, by the process's clock. Arithmetic saturates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixMicros(pub i64);

impl UnixMicros {
    /// Later by `duration`.
    pub fn after(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// Time since `earlier`; zero when that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0).max(0).unsigned_abs())
    }
}

impl std::fmt::Display for UnixMicros {
    /// RFC 3339 in whole seconds, as Kubernetes writes times.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match jiff::Timestamp::from_second(self.0.div_euclid(1_000_000)) {
            Ok(time) => write!(f, "{time}"),
            Err(_) => f.write_str("unknown"),
        }
    }
}
