//! Durations in Go's notation (`1m30s`, `500ms`), as `metav1.Duration` and DWD's configuration write them.
//!
//! The grammar is that of Go's `time.ParseDuration` and `time.Duration.String`; the humantime family of crates accepts
//! other units and spaces, so this is own code. Nothing in the watchdog may be negative, therefore a negative duration
//! is an error here. The largest value is nearly Go's: about 292 years.

use crate::text::cut;
use std::time::Duration;

/// The units, in nanoseconds. Micro is written with the micro sign (U+00B5) or the Greek letter (U+03BC) too.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("\u{b5}s", 1e3),
    ("\u{3bc}s", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3600e9),
];

/// Go counts nanoseconds in an int64.
const LONGEST: f64 = i64::MAX as f64;

/// Reads a duration in Go's notation: an optional sign and numbers with an optional fraction and a unit each (`ns`,
/// `us` or `µs`, `ms`, `s`, `m`, `h`), or `0`. A fraction is rounded to nanoseconds, and up to 104 days nothing else
/// is.
///
/// # Errors
/// The text, and why it is not a duration that the watchdog can use.
pub fn parse(text: &str) -> Result<Duration, String> {
    let why = match nanos(text.strip_prefix(['-', '+']).unwrap_or(text)) {
        Ok(nanos) if nanos > 0.0 && text.starts_with('-') => {
            "is negative; a duration here must be zero or more".to_owned()
        }
        Ok(nanos) if nanos < LONGEST => return Ok(Duration::from_nanos(nanos.round() as u64)),
        Ok(_) => "is longer than a duration can be (about 292 years)".to_owned(),
        Err(why) => why,
    };
    Err(format!("{:?} {why}", cut(text)))
}

/// Nanoseconds of an unsigned duration, or why it is none.
fn nanos(text: &str) -> Result<f64, String> {
    const INVALID: &str = "is not a duration; write it like 1m30s, 500ms or 0s";
    if text.is_empty() {
        return Err(INVALID.to_owned());
    }
    let is_of_number = |c: char| c == '.' || c.is_ascii_digit();
    let (mut total, mut rest) = (0.0, if text == "0" { "" } else { text });
    while !rest.is_empty() {
        let end = rest.find(|c| !is_of_number(c)).unwrap_or(rest.len());
        let (number, with_unit) = rest.split_at(end);
        let end = with_unit.find(is_of_number).unwrap_or(with_unit.len());
        let (unit, next) = with_unit.split_at(end);
        let Ok(number) = number.parse::<f64>() else {
            return Err(INVALID.to_owned());
        };
        if unit.is_empty() {
            return Err("has no unit; write it like 30s, 500ms or 1m30s".to_owned());
        }
        let Some((_, nanos)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            let unit = cut(unit);
            return Err(format!(
                "has the unknown unit {unit:?}; the units are ns, us, ms, s, m and h"
            ));
        };
        total += number * nanos;
        rest = next;
    }
    Ok(total)
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

#[cfg(test)]
mod tests;
