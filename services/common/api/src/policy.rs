//! The annotations on a Shoot by which people set how the watchdog treats it: pure parsers, which lease-probe and the
//! scaling-coordinator share.
//!
//! A malformed value never changes anything: the default of the seed stays in force, and the reason names the value.

use std::time::Duration;

use strum::{Display, EnumString, IntoStaticStr};

use crate::names;
use crate::unix_time::UnixTime;

/// The most characters that a valid annotation has. Of a longer one, one more is kept, so that truncation cannot make
/// it valid.
pub(crate) const LONGEST: usize = 128;

/// The longest part of a malformed value that a reason quotes, in characters.
const QUOTED: usize = 64;

/// How far the watchdog may act on a shoot.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString, IntoStaticStr,
)]
#[strum(serialize_all = "lowercase")]
pub enum Mode {
    /// Scale and restore its dependants.
    #[default]
    Protect,
    /// Decide all that and write nothing.
    Observe,
    /// Leave it alone.
    Off,
}

impl Mode {
    /// As in the annotation, on the command line and in labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The mode that a Shoot asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShootMode {
    /// The mode.
    pub mode: Mode,
    /// The default of the seed applies again from this time on.
    pub until: Option<UnixTime>,
}

/// The mode that is in force for a shoot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModeInForce {
    /// The mode.
    pub mode: Mode,
    /// True if the Shoot asks for it, false if it is the default of the seed.
    pub from_annotation: bool,
    /// When it ends; only a mode of the Shoot does.
    pub until: Option<UnixTime>,
}

/// A mode with a later end is as good as one without an end: nobody remembers it.
const LATEST_END: Duration = Duration::from_secs(31 * 24 * 3600);

impl ModeInForce {
    /// True if it ends by itself within 31 days.
    #[must_use]
    pub fn has_end(self, now: UnixTime) -> bool {
        self.until.is_some_and(|until| until <= now.after(LATEST_END))
    }
}

/// An annotation of a Shoot that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "The annotation {annotation} of the Shoot or its Cluster is {begin:?}, which is not {expected}; the default of the \
     seed applies."
)]
pub struct PolicyError {
    annotation: &'static str,
    /// The begin of its value.
    begin: String,
    /// The values that it may have.
    expected: &'static str,
}

/// The mode that is in force now.
#[must_use]
pub fn mode_in_force(of_shoot: Option<ShootMode>, of_seed: Mode, now: UnixTime) -> ModeInForce {
    match of_shoot {
        Some(ShootMode { mode, until }) if until.is_none_or(|until| now < until) => ModeInForce {
            mode,
            from_annotation: true,
            until,
        },
        _ => ModeInForce {
            mode: of_seed,
            from_annotation: false,
            until: None,
        },
    }
}

/// Reads [`names::MODE_ANNOTATION`]: `protect`, `observe` or `off`, and optionally `until=` with an RFC 3339 time.
///
/// # Errors
/// The values that the annotation may have.
pub fn parse_mode(text: &str) -> Result<ShootMode, PolicyError> {
    let mut words = text.split_ascii_whitespace();
    let mode = words.next().filter(|_| is_whole(text));
    let mode = mode.and_then(|word| word.parse().ok());
    let until = words.next().map(end);
    match (mode, until, words.next()) {
        (Some(mode), None | Some(Some(_)), None) => Ok(ShootMode {
            mode,
            until: until.flatten(),
        }),
        _ => Err(malformed(
            names::MODE_ANNOTATION,
            text,
            "protect, observe or off, and optionally an end such as until=2026-12-01T06:00:00Z",
        )),
    }
}

/// Reads the default of a seed: `protect` or `observe`.
///
/// # Errors
/// The text to write instead.
pub fn parse_seed_mode(text: &str) -> Result<Mode, &'static str> {
    match text.parse() {
        Ok(mode @ (Mode::Protect | Mode::Observe)) => Ok(mode),
        Ok(Mode::Off) => Err("a seed is switched off by removing the program: write protect or observe"),
        Err(_) => Err("write protect or observe"),
    }
}

/// Reads [`names::FAILURE_FRACTION_ANNOTATION`]: a number above 0, at most 1.
///
/// # Errors
/// The values that the annotation may have.
pub fn parse_failure_fraction(text: &str) -> Result<f64, PolicyError> {
    let fraction = text.trim().parse::<f64>().ok();
    fraction
        .filter(|fraction| is_whole(text) && *fraction > 0.0 && *fraction <= 1.0)
        .ok_or_else(|| {
            malformed(
                names::FAILURE_FRACTION_ANNOTATION,
                text,
                "a number above 0, at most 1",
            )
        })
}

/// Returns true if the text was kept whole.
fn is_whole(text: &str) -> bool {
    text.chars().nth(LONGEST).is_none()
}

fn end(word: &str) -> Option<UnixTime> {
    word.strip_prefix("until=")?.parse().ok()
}

fn malformed(annotation: &'static str, text: &str, expected: &'static str) -> PolicyError {
    PolicyError {
        annotation,
        begin: text.chars().take(QUOTED).collect(),
        expected,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOON: UnixTime = UnixTime(1_796_126_400_000_000);

    #[test]
    fn modes_are_read_with_and_without_an_end() {
        let mode = |mode, until| Ok(ShootMode { mode, until });
        assert_eq!(parse_mode("protect"), mode(Mode::Protect, None));
        assert_eq!(parse_mode(" off\n"), mode(Mode::Off, None));
        let noon = mode(Mode::Observe, Some(NOON));
        for text in [
            "observe until=2026-12-01T12:00:00Z",
            "observe  until=2026-12-01T13:00:00+01:00",
        ] {
            assert_eq!(parse_mode(text), noon, "{text}");
        }
    }

    #[test]
    fn a_malformed_mode_is_named_with_its_value() {
        for text in [
            "",
            "Observe",
            "watch",
            "observe 2026-12-01T12:00:00Z",
            "observe until=",
            "observe until=tomorrow",
            "observe until=2026-12-01T12:00:00",
            "observe until=2026-12-01T12:00:00Z please",
            "until=2026-12-01T12:00:00Z",
            "observe until=2026-12-01T12:00:00 Europe/Berlin",
            "observe until=2026-12-01T12:00:00+99:00",
            "observe until=2026-12-01T12:00:00Z until=2026-12-02T12:00:00Z",
        ] {
            let why = parse_mode(text).unwrap_err().to_string();
            assert!(
                why.contains(names::MODE_ANNOTATION) && why.contains(&format!("{text:?}")),
                "{why}"
            );
        }
    }

    #[test]
    fn an_end_in_the_past_or_far_away_is_taken_as_it_is() {
        let in_force = |text: &str| mode_in_force(parse_mode(text).ok(), Mode::Protect, NOON).mode;
        assert_eq!(in_force("off until=1970-01-01T00:00:00Z"), Mode::Protect);
        assert_eq!(in_force("off until=-009999-01-02T00:00:00Z"), Mode::Protect);
        assert_eq!(in_force("off until=9999-12-31T23:59:59Z"), Mode::Off);
        assert_eq!(in_force("off until=9999-12-31T23:59:59-23:00"), Mode::Off);
    }

    #[test]
    fn an_end_that_is_years_away_counts_as_none() {
        let has_end = |text: &str| mode_in_force(parse_mode(text).ok(), Mode::Protect, NOON).has_end(NOON);
        assert!(has_end("off until=2026-12-01T12:00:01Z"));
        assert!(has_end("off until=2027-01-01T12:00:00Z"));
        assert!(!has_end("off until=2027-01-01T12:00:01Z"));
        assert!(!has_end("observe until=9999-12-31T23:59:59.9Z"));
        assert!(!has_end("off"));
    }

    #[test]
    fn fractions_are_those_of_the_configuration() {
        assert_eq!(parse_failure_fraction("0.8"), Ok(0.8));
        assert_eq!(parse_failure_fraction(" 1 "), Ok(1.0));
        for text in ["", "0", "-0.1", "1.01", "NaN", "inf", "80%", "0,8"] {
            let why = parse_failure_fraction(text).unwrap_err().to_string();
            assert!(why.contains(names::FAILURE_FRACTION_ANNOTATION), "{why}");
        }
    }

    #[test]
    fn the_default_of_the_seed_holds_from_the_end_on() {
        let asked = Some(ShootMode {
            mode: Mode::Off,
            until: Some(NOON),
        });
        let before = mode_in_force(asked, Mode::Observe, NOON.shifted(-1));
        assert_eq!(
            (before.mode, before.from_annotation, before.until),
            (Mode::Off, true, Some(NOON))
        );
        let after = ModeInForce {
            mode: Mode::Observe,
            ..ModeInForce::default()
        };
        assert_eq!(mode_in_force(asked, Mode::Observe, NOON), after);
        assert_eq!(mode_in_force(None, Mode::Observe, NOON), after);
    }

    proptest! {
        #[test]
        fn any_text_gives_a_setting_or_a_bounded_reason(text in "\\PC{0,200}") {
            for reason in [parse_mode(&text).err(), parse_failure_fraction(&text).err()].into_iter().flatten() {
                prop_assert!(reason.to_string().len() < 2_000, "{reason}");
            }
            if let Ok(fraction) = parse_failure_fraction(&text) {
                prop_assert!(fraction > 0.0 && fraction <= 1.0);
            }
        }

        #[test]
        fn what_is_written_is_read_again(second in 0_i64..=253_402_300_799, mode in 0_usize..3) {
            let mode = [Mode::Protect, Mode::Observe, Mode::Off][mode];
            let until = UnixTime(second * 1_000_000);
            let expected = ShootMode { mode, until: Some(until) };
            prop_assert_eq!(parse_mode(&format!("{mode} until={until}")), Ok(expected));
        }
    }
}
