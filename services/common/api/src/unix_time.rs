//! Points in time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use jiff::civil::DateTime;

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// The last moment of the year 9999, after which neither RFC 3339 nor a Timestamp of Protobuf has one.
const LATEST: UnixTime = UnixTime(253_402_300_799_999_999);

/// Microseconds since the Unix epoch: the resolution of a Lease's `renewTime`. Arithmetic saturates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixTime(pub i64);

impl UnixTime {
    /// Later by `duration`.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }

    /// Earlier by `duration`.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros(duration)))
    }

    /// Time since `earlier`; zero when that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0).max(0).unsigned_abs())
    }

    /// The last multiple of `period` since the epoch that is not later; itself when `period` is below a microsecond.
    #[must_use]
    pub fn at_multiple_of(self, period: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(self.0.checked_rem_euclid(micros(period)).unwrap_or(0)),
        )
    }

    /// Moved by a signed number of microseconds.
    #[must_use]
    pub const fn shifted(self, by: i64) -> Self {
        Self(self.0.saturating_add(by))
    }
}

impl From<jiff::Timestamp> for UnixTime {
    /// Leaves out what is below a microsecond.
    fn from(time: jiff::Timestamp) -> Self {
        Self(time.as_microsecond())
    }
}

impl FromStr for UnixTime {
    type Err = jiff::Error;

    /// Reads RFC 3339. A jiff timestamp ends 26 hours before the year 9999 does, a jiff date with it, and what is later
    /// by its offset counts as that end.
    fn from_str(text: &str) -> Result<Self, jiff::Error> {
        text.parse::<jiff::Timestamp>().map(Self::from).or_else(|error| {
            let pieces = jiff::fmt::temporal::Pieces::parse(text)?;
            let (Some(time), Some(offset)) = (pieces.time(), pieces.to_numeric_offset()) else {
                return Err(error);
            };
            let since = pieces.date().to_datetime(time).duration_since(EPOCH);
            let micros = since.as_micros() - i128::from(offset.seconds()) * 1_000_000;
            i64::try_from(micros)
                .map(|micros| Self(micros).min(LATEST))
                .map_err(|_| error)
        })
    }
}

impl fmt::Display for UnixTime {
    /// RFC 3339 in whole seconds, as Kubernetes writes times.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match EPOCH.checked_add(SignedDuration::from_secs(self.0.div_euclid(1_000_000))) {
            Ok(time) => write!(f, "{time}Z"),
            Err(_) => f.write_str("unknown"),
        }
    }
}

/// A duration in microseconds.
#[must_use]
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
