//! Durations in Go's notation (`1m30s`, `500ms`), as `metav1.Duration` and DWD's configuration write them.
//!
//! The grammar and the results are those of Go's `time.ParseDuration` and `time.Duration.String`; the humantime family
//! of crates accepts other units and spaces, so this is own code. Nothing in the watchdog may be negative, therefore a
//! negative duration is an error here. The largest value is Go's: 2^63 - 1 nanoseconds, about 292 years.

use serde::{Deserialize, Deserializer, Serializer};
use std::{borrow::Cow, time::Duration};

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
/// Go counts nanoseconds in an int64.
const MAX_NANOS: u64 = i64::MAX as u64;

/// Why a text is not a duration that the watchdog can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not Go's syntax.
    #[error("{0:?} is not a duration; write it like 1m30s, 500ms or 0s")]
    Invalid(String),
    /// A number without a unit.
    #[error("{0:?} has no unit; write it like 30s, 500ms or 1m30s")]
    MissingUnit(String),
    /// A unit that Go does not know.
    #[error("{text:?} has the unknown unit {unit:?}; the units are ns, us, ms, s, m and h")]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// The part of it that should be a unit.
        unit: String,
    },
    /// More than Go can hold.
    #[error("{0:?} is longer than a duration can be (about 292 years)")]
    TooLong(String),
    /// Below zero.
    #[error("{0:?} is negative; a duration here must be zero or more")]
    Negative(String),
}

/// Reads a duration in Go's notation: an optional sign and numbers with an optional fraction and a unit each (`ns`,
/// `us` or `µs`, `ms`, `s`, `m`, `h`), or `0`.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let (negative, magnitude) = match text.as_bytes().first() {
        Some(b'-') => (true, text.get(1..).unwrap_or_default()),
        Some(b'+') => (false, text.get(1..).unwrap_or_default()),
        _ => (false, text),
    };
    let nanos = parse_magnitude(magnitude, text)?;
    if negative && nanos > 0 {
        return Err(DurationError::Negative(shown(text)));
    }
    if nanos > MAX_NANOS {
        return Err(DurationError::TooLong(shown(text)));
    }
    Ok(Duration::from_nanos(nanos))
}

/// Nanoseconds of an unsigned duration; `text` is the whole input, for messages.
fn parse_magnitude(magnitude: &str, text: &str) -> Result<u64, DurationError> {
    if magnitude == "0" {
        return Ok(0);
    }
    if magnitude.is_empty() {
        return Err(DurationError::Invalid(shown(text)));
    }
    let too_long = || DurationError::TooLong(shown(text));
    let mut rest = magnitude;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (whole, after_whole) = split_digits(rest);
        let (fraction, after_number) = match after_whole.strip_prefix('.') {
            Some(after_point) => split_digits(after_point),
            None => ("", after_whole),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(DurationError::Invalid(shown(text)));
        }
        let unit_end = after_number
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after_number.len());
        let (unit_text, after_unit) = after_number.split_at(unit_end);
        let unit = match unit_text {
            "" => return Err(DurationError::MissingUnit(shown(text))),
            "ns" => 1,
            // U+00B5 (micro sign) and U+03BC (Greek mu).
            "us" | "\u{b5}s" | "\u{3bc}s" => MICRO,
            "ms" => MILLI,
            "s" => SECOND,
            "m" => MINUTE,
            "h" => HOUR,
            other => {
                return Err(DurationError::UnknownUnit {
                    text: shown(text),
                    unit: shown(other),
                });
            }
        };
        let nanos = scaled_whole(whole, unit)
            .and_then(|n| n.checked_add(scaled_fraction(fraction, unit)))
            .and_then(|n| total.checked_add(n))
            // Go's limit for the magnitude is 2^63, because -2^63 is a valid duration there.
            .filter(|n| *n <= MAX_NANOS + 1);
        total = nanos.ok_or_else(too_long)?;
        rest = after_unit;
    }
    Ok(total)
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn scaled_whole(digits: &str, unit: u64) -> Option<u64> {
    if digits.is_empty() {
        Some(0)
    } else {
        digits.parse::<u64>().ok()?.checked_mul(unit)
    }
}

/// The fraction's share of the unit, in Go's floating-point arithmetic, so that the last nanosecond is Go's too
/// (`0.3333333333333333333h` is exactly 20 minutes). Digits beyond an int64 are dropped.
fn scaled_fraction(digits: &str, unit: u64) -> u64 {
    let mut value: u64 = 0;
    let mut scale = 1.0_f64;
    for digit in digits.bytes().map(|b| u64::from(b.wrapping_sub(b'0'))) {
        if value > MAX_NANOS / 10 || value * 10 + digit > MAX_NANOS + 1 {
            break;
        }
        value = value * 10 + digit;
        scale *= 10.0;
    }
    // Below one unit, which is at most 3.6e12: the conversions lose nothing that Go keeps.
    (value as f64 * (unit as f64 / scale)) as u64
}

/// The input, cut to a length that fits a log line.
fn shown(text: &str) -> String {
    const LIMIT: usize = 64;
    if text.chars().count() <= LIMIT {
        text.to_owned()
    } else {
        text.chars().take(LIMIT).chain(['…']).collect()
    }
}

/// Writes a duration as Go's `time.Duration.String` does: `1m30s`, `1.5s`, `500ms`, `0s`.
#[must_use]
pub fn format(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    if nanos < u128::from(SECOND) {
        let (unit, name) = match nanos {
            n if n < u128::from(MICRO) => (1, "ns"),
            n if n < u128::from(MILLI) => (u128::from(MICRO), "µs"),
            _ => (u128::from(MILLI), "ms"),
        };
        return format!("{}{name}", decimal(nanos, unit));
    }
    let seconds = decimal(nanos % u128::from(MINUTE), u128::from(SECOND));
    let minutes = nanos / u128::from(MINUTE);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// `nanos / unit` as a decimal number without trailing zeros; `unit` is a power of ten.
fn decimal(nanos: u128, unit: u128) -> String {
    let (whole, fraction) = (nanos / unit, nanos % unit);
    if fraction == 0 {
        return whole.to_string();
    }
    let width = usize::try_from(unit.ilog10()).unwrap_or(0);
    let digits = format!("{fraction:0width$}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

/// Serde's `with` for a `metav1.Duration`: a string in Go's notation.
pub mod serde_go {
    use super::{Cow, Deserialize, Deserializer, Duration, Serializer, format, parse};

    /// Reads a string in Go's notation.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        parse(&text).map_err(serde::de::Error::custom)
    }

    /// Writes Go's notation.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format(*duration))
    }
}

/// Serde's `with` for an optional `metav1.Duration`; null counts as absent. Use it with `#[serde(default)]`.
pub mod serde_go_option {
    use super::{Cow, Deserialize, Deserializer, Duration, Serializer, parse, serde_go};

    /// Reads null or a string in Go's notation.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<Cow<str>>::deserialize(deserializer)?;
        text.map(|text| parse(&text).map_err(serde::de::Error::custom))
            .transpose()
    }

    /// Writes null or Go's notation.
    pub fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => serde_go::serialize(duration, serializer),
            None => serializer.serialize_none(),
        }
    }
}

#[cfg(test)]
mod tests;
