//! Durations in Go's notation (`1m30s`, `500ms`), as `metav1.Duration` and DWD's configuration write them.
//!
//! The grammar and the results are those of Go's `time.ParseDuration` and `time.Duration.String`; the humantime family
//! of crates accepts other units and spaces, so this is own code. Nothing in the watchdog may be negative, therefore a
//! negative duration is an error here. The largest value is Go's: 2^63 - 1 nanoseconds, about 292 years.

use crate::text::cut;
use serde::{Deserialize, Deserializer};
use std::{borrow::Cow, time::Duration};

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
/// Go counts nanoseconds in an int64.
const MAX_NANOS: u64 = i64::MAX as u64;

/// Reads a duration in Go's notation: an optional sign and numbers with an optional fraction and a unit each (`ns`,
/// `us` or `µs`, `ms`, `s`, `m`, `h`), or `0`.
///
/// # Errors
/// The text, and why it is not a duration that the watchdog can use.
pub fn parse(text: &str) -> Result<Duration, String> {
    let magnitude = text.strip_prefix(['-', '+']).unwrap_or(text);
    let why = match nanos(magnitude) {
        Ok(1..) if text.starts_with('-') => "is negative; a duration here must be zero or more".to_owned(),
        Ok(nanos @ 0..=MAX_NANOS) => return Ok(Duration::from_nanos(nanos)),
        Ok(_) => TOO_LONG.to_owned(),
        Err(why) => why,
    };
    Err(format!("{:?} {why}", cut(text)))
}

const TOO_LONG: &str = "is longer than a duration can be (about 292 years)";

/// Nanoseconds of an unsigned duration, or why it is none.
fn nanos(magnitude: &str) -> Result<u64, String> {
    const INVALID: &str = "is not a duration; write it like 1m30s, 500ms or 0s";
    let mut rest = match magnitude {
        "0" => return Ok(0),
        "" => return Err(INVALID.to_owned()),
        magnitude => magnitude,
    };
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (whole, after_whole) = split_digits(rest);
        let (fraction, after_number) = match after_whole.strip_prefix('.') {
            Some(after_point) => split_digits(after_point),
            None => ("", after_whole),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(INVALID.to_owned());
        }
        let unit_end = after_number.find(|c: char| c == '.' || c.is_ascii_digit());
        let (unit, after_unit) = after_number.split_at(unit_end.unwrap_or(after_number.len()));
        let unit = match unit {
            "" => return Err("has no unit; write it like 30s, 500ms or 1m30s".to_owned()),
            "ns" => 1,
            // U+00B5 (micro sign) and U+03BC (Greek mu).
            "us" | "\u{b5}s" | "\u{3bc}s" => MICRO,
            "ms" => MILLI,
            "s" => SECOND,
            "m" => MINUTE,
            "h" => HOUR,
            other => {
                let other = cut(other);
                return Err(format!(
                    "has the unknown unit {other:?}; the units are ns, us, ms, s, m and h"
                ));
            }
        };
        let whole = if whole.is_empty() {
            Ok(0)
        } else {
            whole.parse::<u64>()
        };
        let nanos = { whole.ok() }
            .and_then(|whole| whole.checked_mul(unit))
            .and_then(|nanos| nanos.checked_add(scaled_fraction(fraction, unit)))
            .and_then(|nanos| total.checked_add(nanos))
            // Go's limit for the magnitude is 2^63, because -2^63 is a valid duration there.
            .filter(|nanos| *nanos <= MAX_NANOS + 1);
        total = nanos.ok_or(TOO_LONG)?;
        rest = after_unit;
    }
    Ok(total)
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
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

/// Writes a duration as Go's `time.Duration.String` does: `1m30s`, `1.5s`, `500ms`, `0s`.
#[must_use]
pub fn format(duration: Duration) -> String {
    let (minutes, seconds) = (duration.as_secs() / 60, duration.as_secs() % 60);
    if duration.is_zero() {
        return "0s".to_owned();
    }
    if minutes == 0 {
        // Below a minute Rust writes as Go does.
        return format!("{duration:?}");
    }
    let nanos = format!("{:09}", duration.subsec_nanos());
    let seconds = match nanos.trim_end_matches('0') {
        "" => format!("{seconds}s"),
        fraction => format!("{seconds}.{fraction}s"),
    };
    match (minutes / 60, minutes % 60) {
        (0, minutes) => format!("{minutes}m{seconds}"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
    }
}

/// A pause that began with `first` and has doubled this many times, at most `longest`.
#[must_use]
pub fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    let factor = 1_u32.checked_shl(times).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(longest)
}

/// Serde's `deserialize_with` for an optional `metav1.Duration`; null counts as absent. Use it with
/// `#[serde(default)]`.
pub fn deserialize_option<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<Cow<str>>::deserialize(deserializer)?;
    text.map(|text| parse(&text).map_err(serde::de::Error::custom))
        .transpose()
}

#[cfg(test)]
mod tests;
