use super::*;
use proptest::prelude::*;

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// About 104 days: up to here nothing is rounded.
const EXACT: u64 = 1 << 53;

/// The accepted half of the table of Go's own test (`time_test.go`, TestParseDuration), without the negative and the
/// longest ones.
const GO_CASES: &[(&str, u64)] = &[
    ("0", 0),
    ("5s", 5 * SECOND),
    ("30s", 30 * SECOND),
    ("1478s", 1478 * SECOND),
    ("+5s", 5 * SECOND),
    ("-0", 0),
    ("+0", 0),
    ("5.0s", 5 * SECOND),
    ("5.6s", 5 * SECOND + 600 * MILLI),
    ("5.s", 5 * SECOND),
    (".5s", 500 * MILLI),
    ("1.0s", SECOND),
    ("1.00s", SECOND),
    ("1.004s", SECOND + 4 * MILLI),
    ("1.0040s", SECOND + 4 * MILLI),
    ("100.00100s", 100 * SECOND + MILLI),
    ("10ns", 10),
    ("11us", 11 * MICRO),
    ("12µs", 12 * MICRO),
    ("12μs", 12 * MICRO),
    ("13ms", 13 * MILLI),
    ("14s", 14 * SECOND),
    ("15m", 15 * MINUTE),
    ("16h", 16 * HOUR),
    ("3h30m", 3 * HOUR + 30 * MINUTE),
    ("10.5s4m", 4 * MINUTE + 10 * SECOND + 500 * MILLI),
    (
        "1h2m3s4ms5us6ns",
        HOUR + 2 * MINUTE + 3 * SECOND + 4 * MILLI + 5 * MICRO + 6,
    ),
    ("39h9m14.425s", 39 * HOUR + 9 * MINUTE + 14 * SECOND + 425 * MILLI),
    ("52763797000ns", 52_763_797_000),
    ("0.3333333333333333333h", 20 * MINUTE),
    ("9007199254740992ns", EXACT),
    ("0.100000000000000000000h", 6 * MINUTE),
];

#[test]
fn reads_what_go_reads() {
    for (text, nanos) in GO_CASES {
        assert_eq!(parse(text), Ok(Duration::from_nanos(*nanos)), "{text}");
    }
}

#[test]
fn refuses_what_go_refuses_and_what_is_negative_and_says_why() {
    const INVALID: &str = "is not a duration; write it like 1m30s, 500ms or 0s";
    const NO_UNIT: &str = "has no unit; write it like 30s, 500ms or 1m30s";
    const NEGATIVE: &str = "is negative; a duration here must be zero or more";
    const TOO_LONG: &str = "is longer than a duration can be (about 292 years)";
    const UNITS: &str = "; the units are ns, us, ms, s, m and h";
    let rows: [(&[&str], &str); 5] = [
        (
            &[
                "",
                "-",
                "s",
                ".",
                "-.",
                ".s",
                "+.s",
                "\u{85}\u{85}",
                "\u{ffff}",
                "hello \u{ffff} world",
                " 5s",
                "--5s",
                "infs",
                "nan",
                "soon",
                "1.2.3s",
            ],
            INVALID,
        ),
        (&["3", "1m30"], NO_UNIT),
        (&["1d", "5s ", "1 s", "5S", "0x1s", "1e3s", "5s-3s"], UNITS),
        (&["-5s", "-1m30s", "-9223372036854775808ns", "-.5s"], NEGATIVE),
        (
            &["9223372036854775808ns", "3000000h", "99999999999999999999h"],
            TOO_LONG,
        ),
    ];
    for (texts, end) in rows {
        for text in texts {
            let why = parse(text).unwrap_err();
            assert!(
                why.starts_with(&format!("{text:?} ")) && why.ends_with(end),
                "{why}"
            );
        }
    }
    assert!(parse("1d").unwrap_err().contains(" has the unknown unit \"d\"; "));
    assert!(parse(&"x".repeat(10_000)).unwrap_err().chars().count() < 200);
}

/// The table of Go's TestDurationString.
#[test]
fn writes_what_go_writes() {
    let cases = [
        (0, "0s"),
        (1, "1ns"),
        (1100, "1.1µs"),
        (2_200_000, "2.2ms"),
        (3_300 * MILLI, "3.3s"),
        (4 * MINUTE + 5 * SECOND, "4m5s"),
        (4 * MINUTE + 5_001 * MILLI, "4m5.001s"),
        (5 * HOUR + 6 * MINUTE + 7_001 * MILLI, "5h6m7.001s"),
        (8 * MINUTE + 1, "8m0.000000001s"),
        (5 * MINUTE, "5m0s"),
        (30 * SECOND, "30s"),
        (HOUR, "1h0m0s"),
    ];
    for (nanos, text) in cases {
        assert_eq!(format(Duration::from_nanos(nanos)), text);
    }
}

#[test]
fn pauses_double_up_to_their_limit() {
    let [first, longest] = [10, 300].map(Duration::from_secs);
    let pauses = [0, 1, 4, 5, 31, 32, u32::MAX].map(|times| doubled(first, times, longest).as_secs());
    assert_eq!(pauses, [10, 20, 160, 300, 300, 300, 300]);
    assert_eq!(doubled(first, 40, Duration::MAX), first * u32::MAX);
}

proptest! {
    #[test]
    fn what_is_written_is_read(nanos in 0..=EXACT) {
        let duration = Duration::from_nanos(nanos);
        prop_assert_eq!(parse(&format(duration)), Ok(duration));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "(.{0,40}|[-+0-9.nuµmsh]{0,60})") {
        if let Ok(duration) = parse(&text) {
            prop_assert!(duration.as_nanos() <= i64::MAX as u128);
        }
    }
}
