//! The feed's own parts on the wire, and the times that go with them.

use std::time::Duration;

use prost_types::Timestamp;
use watchdog_proto::feed::v1 as pb;

use crate::message::Position;

/// A position.
#[must_use]
pub fn position(position: &Position) -> pb::Position {
    pb::Position {
        epoch: position.epoch.to_string(),
        revision: position.revision,
        uptime: Some(signed(micros_of(position.uptime))),
        item_age: None,
    }
}

/// A position that was received.
#[must_use]
pub fn received_position(position: pb::Position) -> Position {
    Position {
        epoch: position.epoch.into(),
        revision: position.revision,
        uptime: forward(position.uptime.as_ref()),
    }
}

/// A moment in microseconds since the Unix epoch.
#[must_use]
pub const fn timestamp(unix_micros: i64) -> Timestamp {
    Timestamp {
        seconds: unix_micros.div_euclid(1_000_000),
        // Below 10^9.
        nanos: (unix_micros.rem_euclid(1_000_000) * 1_000) as i32,
    }
}

/// A duration.
#[must_use]
pub fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        // Below 10^9.
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0),
    }
}

/// A signed number of microseconds; both parts carry the sign, as protobuf wants it.
#[must_use]
pub const fn signed(micros: i64) -> prost_types::Duration {
    prost_types::Duration {
        seconds: micros / 1_000_000,
        nanos: ((micros % 1_000_000) * 1_000) as i32,
    }
}

/// The microseconds of a duration that was received; 0 when unset.
#[must_use]
pub fn micros(duration: Option<&prost_types::Duration>) -> i64 {
    duration.map_or(0, |d| {
        d.seconds
            .saturating_mul(1_000_000)
            .saturating_add(i64::from(d.nanos) / 1_000)
    })
}

/// A duration that was received; zero when unset or negative.
#[must_use]
pub fn forward(duration: Option<&prost_types::Duration>) -> Duration {
    Duration::from_micros(micros(duration).max(0).unsigned_abs())
}

fn micros_of(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_their_sign() {
        for value in [-61_500_000, -1, 0, 1, 2_000_001] {
            assert_eq!(micros(Some(&signed(value))), value);
        }
        assert_eq!(forward(Some(&signed(-1))), Duration::ZERO);
        assert_eq!(
            timestamp(-1),
            Timestamp {
                seconds: -1,
                nanos: 999_999_000
            }
        );
    }
}
