//! Names, durations and times as they are shown.

use std::fmt::Display;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use watchdog_api::text::printable;
use watchdog_client::wire::forward;
use watchdog_proto::probe::v1::{Evidence, Outcome, ZoneEvidence};
use watchdog_proto::scaling::v1::{ResourceRef, ShootScaling};
use watchdog_proto::stream::v1::Completeness;

use crate::program::Program;

/// Outcomes, the most urgent first.
pub(crate) const OUTCOMES: [Outcome; 9] = [
    Outcome::LeasesExpired,
    Outcome::ExternalUnreachable,
    Outcome::TooFewCandidates,
    Outcome::ApiServerUnreachable,
    Outcome::Inconclusive,
    Outcome::Throttled,
    Outcome::Pending,
    Outcome::Skipped,
    Outcome::Healthy,
];

/// The kinds of values of the API by their prefixes, and whether they are shown in lower case.
pub(super) const KINDS: [(&str, bool); 13] = [
    ("ACTION_", false),
    ("DELETION_RESULT_", true),
    ("DIRECTION_", true),
    ("EXCLUSION_", false),
    ("FLOW_STATE_", true),
    ("HOLD_REASON_", false),
    ("KEEP_REASON_", true),
    ("MODE_", true),
    ("OUTCOME_", false),
    ("READINESS_", false),
    ("RESOURCE_STATE_", false),
    ("SKIP_REASON_", false),
    ("WEEDER_STATE_", true),
];

/// A value by its name in the API, without the prefix.
pub(crate) fn value(name: &str) -> String {
    let kinds = KINDS.into_iter();
    let mut bare = kinds.filter_map(|(prefix, is_lower)| Some((name.strip_prefix(prefix)?, is_lower)));
    match bare.next() {
        Some((bare, true)) => bare.to_lowercase(),
        Some((bare, false)) => bare.to_owned(),
        None => name.to_owned(),
    }
}

/// Says where the mode of a shoot comes from.
pub(crate) const fn mode_source(scaling: &ShootScaling) -> &'static str {
    if scaling.mode_from_annotation {
        "annotation"
    } else {
        "default of the seed"
    }
}

/// `Deployment/name`.
pub(crate) fn resource(reference: Option<&ResourceRef>) -> String {
    let shown = |reference: &ResourceRef| format!("{}/{}", reference.kind, reference.name);
    reference.map_or_else(|| "?".to_owned(), shown)
}

/// The name of a zone.
pub(crate) fn zone(zone: &ZoneEvidence) -> &str {
    if zone.zone.is_empty() {
        "(no label)"
    } else {
        &zone.zone
    }
}

/// A number of things.
pub(crate) fn count<N: Copy + Display + PartialEq + From<u8>>(number: N, one: &str, several: &str) -> String {
    format!("{number} {}", if number == N::from(1) { one } else { several })
}

/// A number or a text that may be unset.
pub(crate) fn shown<T: ToString>(known: Option<T>) -> String {
    known.map_or_else(|| "-".to_owned(), |known| known.to_string())
}

/// `100 % (6/6)`.
pub(crate) fn share(evidence: &Evidence) -> String {
    let counts = format!("{}/{}", evidence.expired, evidence.candidates);
    match evidence.expired_fraction {
        Some(fraction) => format!("{} ({counts})", percent(fraction)),
        None => counts,
    }
}

/// `60 %`.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.0} %", fraction * 100.0)
}

/// The two largest units: `350ms`, `12s`, `2m10s`, `3h05m`, `4d06h`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        0 if duration.is_zero() => "0s".to_owned(),
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3_600 => format!("{minutes}m{:02}s", seconds % 60),
        3_600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// A duration that was received; `-` when unset.
pub(crate) fn sent_duration(sent: Option<prost_types::Duration>) -> String {
    shown(sent.map(|sent| duration(forward(Some(&sent)))))
}

/// A time that was received.
pub(crate) fn timestamp(sent: Option<prost_types::Timestamp>) -> Option<Timestamp> {
    let sent = sent?;
    Timestamp::new(sent.seconds, sent.nanos).ok()
}

/// A time that was received, in milliseconds of Unix time.
pub(crate) fn unix_millis(sent: Option<prost_types::Timestamp>) -> Option<i64> {
    timestamp(sent).map(Timestamp::as_millisecond)
}

/// The time of day in UTC; with the day, if that is not the day of `now`.
pub(crate) fn clock(at: Timestamp, now: Timestamp) -> String {
    let (at, now) = (at.to_zoned(TimeZone::UTC), now.to_zoned(TimeZone::UTC));
    let format = if at.date() == now.date() {
        "%H:%M:%SZ"
    } else {
        "%Y-%m-%d %H:%M:%SZ"
    };
    at.strftime(format).to_string()
}

/// The time of day of a time that was received; `-` when unset.
pub(crate) fn sent_clock(sent: Option<prost_types::Timestamp>, now: Timestamp) -> String {
    shown(timestamp(sent).map(|at| clock(at, now)))
}

/// `2026-11-23 00:40:00Z`.
pub(crate) fn day_and_clock(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// The time from one moment to another; none if that was before.
pub(crate) fn passed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// The replicas whose items may be absent from an answer.
pub(crate) fn missing_replicas(program: Program, completeness: Option<&Completeness>) -> Vec<String> {
    match completeness.filter(|found| !found.complete) {
        None => Vec::new(),
        Some(incomplete) if incomplete.missing_replicas.is_empty() => {
            vec![format!("{program} (no leader, or replicas not listed yet)")]
        }
        Some(incomplete) => {
            let replicas = incomplete.missing_replicas.iter();
            replicas.map(|replica| printable(replica)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    #[test]
    fn durations_have_two_units() {
        let table = [
            (0, "0s"),
            (350, "350ms"),
            (12_000, "12s"),
            (130_000, "2m10s"),
            (11_100_000, "3h05m"),
            (367_200_000, "4d06h"),
        ];
        for (millis, text) in table {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn times_are_relative_and_absolute() {
        let frame = testing::pipe();
        assert_eq!(frame.since(testing::ago(130)), "2m10s (00:37:50Z)");
        assert_eq!(frame.since(testing::ago(86_400)), "1d00h (2026-11-22 00:40:00Z)");
        assert_eq!(frame.since(testing::ago(-5)), "0s (00:40:05Z)");
        assert_eq!(frame.since(None), "-");
    }

    #[test]
    fn every_outcome_of_the_api_has_an_urgency() {
        let known = (1..).map_while(|n| Outcome::try_from(n).ok());
        for outcome in known {
            assert!(OUTCOMES.contains(&outcome), "{outcome:?}");
        }
    }
}
