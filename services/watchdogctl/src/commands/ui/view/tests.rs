//! The model of a seed, as a page shows it.

use std::collections::BTreeMap;

use serde_json::Value;
use tokio::time::Instant;
use watchdog_client::failure::{Failure, Reason};
use watchdog_client::follow::{Received, Update};
use watchdog_client::message::{COMPLETE, Completeness};
use watchdog_proto::probe::v1::{Outcome, Verdict, ZoneEvidence};
use watchdog_proto::scaling::v1::ShootScaling;

use super::*;
use crate::render::incident::tests::ended;
use crate::render::testing;
use crate::seed::model::MAX_SAMPLES;
use crate::testing::assert_parts;

/// Clocks that go together.
fn at(start: Instant, seconds: u64) -> ClockReading {
    ClockReading {
        instant: start + Duration::from_secs(seconds),
        wall: testing::pipe().now + Duration::from_secs(seconds),
    }
}

fn received<V>(value: V, now: &ClockReading) -> Received<V> {
    Received {
        value,
        sent_at: now.instant,
        set_at: now.instant,
    }
}

fn named<V>(names: &[&str], now: &ClockReading, value: impl Fn(&str) -> V) -> BTreeMap<String, Received<V>> {
    let item = |name: &&str| ((*name).to_owned(), received(value(name), now));
    names.iter().map(item).collect()
}

fn verdicts(names: &[&str], now: &ClockReading) -> BTreeMap<String, Received<Verdict>> {
    named(names, now, |name| testing::verdict(name, Outcome::Healthy))
}

fn scalings(names: &[&str], now: &ClockReading) -> BTreeMap<String, Received<ShootScaling>> {
    named(names, now, testing::settled)
}

fn following(programs: &[Program]) -> SeedModel {
    let mut model = SeedModel::new("garden".to_owned());
    model.on_connected(programs);
    model
}

/// Shoots that both programs report as healthy.
fn healthy(names: &[&str], now: &ClockReading) -> SeedModel {
    let followed = [Program::LeaseProbe, Program::ScalingCoordinator];
    let mut model = following(&followed);
    model.on_verdicts(Update::Snapshot(verdicts(names, now), COMPLETE), now);
    model.on_scaling(Update::Snapshot(scalings(names, now), COMPLETE), now);
    model
}

fn lost<V>() -> Update<String, V> {
    let failure = Failure::new(Reason::Timeout, &"no answer");
    Update::Lost(failure)
}

/// All that a page gets when it is opened.
fn message(model: &SeedModel, now: &ClockReading) -> Value {
    next(&mut PageView::default(), model, now).1
}

/// The next message to a page, and whether it has news.
fn next(page: &mut PageView, model: &SeedModel, now: &ClockReading) -> (bool, Value) {
    let (is_news, json) = page.next(model, Vec::new(), None, now);
    (is_news, serde_json::from_str(&json).unwrap())
}

/// The line about a program in a message.
fn line(message: &Value, program: usize) -> &str {
    message["programs"][program]["text"].as_str().unwrap()
}

/// Name and state of the cells in a message.
fn states(message: &Value) -> Vec<(&str, &str)> {
    let cells = message["cells"].as_array().unwrap().iter();
    cells
        .map(|cell| (cell["name"].as_str().unwrap(), cell["state"].as_str().unwrap()))
        .collect()
}

#[test]
fn a_page_gets_the_seed_whenever_that_has_changed() {
    let now = at(Instant::now(), 0);
    let mut model = healthy(&["a", "b"], &now);
    let mut page = PageView::default();
    let (_, first) = next(&mut page, &model, &now);
    assert_eq!(states(&first), [("a", "healthy"), ("b", "healthy")]);

    // Renewed without another change: the page needs nothing but the time.
    let renewed = received(testing::verdict("a", Outcome::Healthy), &now);
    model.on_verdicts(Update::Upsert("a".to_owned(), renewed), &now);
    let time = serde_json::json!({"at": testing::NOW * 1_000});
    assert_eq!(next(&mut page, &model, &now), (false, time));

    let expired = received(testing::verdict("a", Outcome::LeasesExpired), &now);
    model.on_verdicts(Update::Upsert("a".to_owned(), expired), &now);
    let (is_news, changed) = next(&mut page, &model, &now);
    assert!(is_news);
    assert_eq!(states(&changed), [("a", "losing"), ("b", "healthy")]);
}

#[test]
fn texts_of_programs_are_printable() {
    let now = at(Instant::now(), 0);
    let name = "shoot--\u{202e}a\u{200b}".to_owned();
    let mut model = following(&Program::ALL);
    let verdict = Verdict {
        message: "\u{1b}[31mred\u{202e}".to_owned(),
        ..testing::verdict(&name, Outcome::Healthy)
    };
    let items = BTreeMap::from([(name, received(verdict, &now))]);
    let missing = Completeness {
        complete: false,
        missing_replicas: vec!["replica\u{1b}-1".to_owned()],
    };
    model.on_verdicts(Update::Snapshot(items, missing), &now);
    let seed = message(&model, &now);
    assert_eq!(states(&seed)[0].0, "shoot-- a ");
    let shoot = shoot_view(&model, "shoot-- a ", &now).to_string();
    assert_parts(&shoot, &["\" [31mred \""]);
    assert_parts(line(&seed, 0), &["INCOMPLETE: replica -1 not reached"]);
    assert!(
        (seed.to_string() + &shoot)
            .chars()
            .all(watchdog_api::text::is_printable)
    );
}

#[test]
fn a_shoot_is_gone_when_no_program_reports_it() {
    let now = at(Instant::now(), 0);
    let mut model = healthy(&["a", "b"], &now);
    model.on_verdicts(Update::Removed("a".to_owned()), &now);
    let half = message(&model, &now);
    assert_eq!(states(&half), [("a", "unknown"), ("b", "healthy")]);
    model.on_scaling(Update::Removed("a".to_owned()), &now);
    assert_eq!(states(&message(&model, &now)), [("b", "healthy")]);
}

#[test]
fn a_snapshot_without_a_replica_takes_nothing_away() {
    let now = at(Instant::now(), 0);
    let mut model = healthy(&["a", "b"], &now);
    let incomplete = Completeness {
        complete: false,
        missing_replicas: vec!["lease-probe-1".to_owned()],
    };
    model.on_verdicts(Update::Snapshot(verdicts(&["b"], &now), incomplete), &now);
    let shown = message(&model, &now);
    assert_eq!(states(&shown), [("a", "healthy"), ("b", "healthy")]);
    assert_parts(line(&shown, 0), &["INCOMPLETE: lease-probe-1 not reached"]);
    let unnamed = Completeness::default();
    model.on_scaling(Update::Completeness(unnamed), &now);
    let shown = message(&model, &now);
    let missing = "scaling-coordinator (no leader, or replicas not listed yet) not reached";
    assert_parts(line(&shown, 1), &[missing]);
    model.on_verdicts(Update::Snapshot(verdicts(&["b"], &now), COMPLETE), &now);
    model.on_scaling(Update::Snapshot(scalings(&["b"], &now), COMPLETE), &now);
    assert_eq!(states(&message(&model, &now)), [("b", "healthy")]);
}

#[test]
fn what_a_lost_program_reported_becomes_stale() {
    let start = Instant::now();
    let mut model = healthy(&["a"], &at(start, 0));
    model.on_scaling(lost(), &at(start, 1));
    model.on_scaling(lost(), &at(start, 5));
    let shown = message(&model, &at(start, 5));
    assert_eq!(states(&shown), [("a", "healthy")]);
    // Since the first failure.
    let since = "scaling-coordinator lost since 00:40:01Z: ";
    assert_parts(line(&shown, 1), &[since, "no answer"]);

    let renewed = received(testing::verdict("a", Outcome::Healthy), &at(start, 16));
    model.on_verdicts(Update::Upsert("a".to_owned(), renewed), &at(start, 16));
    let shown = message(&model, &at(start, 16));
    assert_eq!(
        states(&shown),
        [("a", "stale")],
        "the verdict is valid, its scaling unknown"
    );
    model.on_scaling(
        Update::Snapshot(scalings(&["a"], &at(start, 17)), COMPLETE),
        &at(start, 17),
    );
    let shown = message(&model, &at(start, 17));
    assert_eq!(states(&shown), [("a", "healthy")]);
    assert_eq!(line(&shown, 1), "scaling-coordinator connected");

    // Verdicts end by themselves, 12 s after the last one.
    assert_eq!(states(&message(&model, &at(start, 27))), [("a", "healthy")]);
    assert_eq!(states(&message(&model, &at(start, 28))), [("a", "stale")]);
}

/// As lease-probe sends it: without validity.
#[test]
fn a_shoot_is_skipped_while_lease_probe_reports() {
    let start = Instant::now();
    let skipped = Verdict {
        valid_for: None,
        ..testing::verdict("a", Outcome::Skipped)
    };
    let mut model = healthy(&["a"], &at(start, 0));
    let update = Update::Upsert("a".to_owned(), received(skipped, &at(start, 0)));
    model.on_verdicts(update, &at(start, 0));
    model.on_verdicts(lost(), &at(start, 60));
    assert_eq!(states(&message(&model, &at(start, 60))), [("a", "skipped")]);
    assert_eq!(states(&message(&model, &at(start, 75))), [("a", "stale")]);
}

#[test]
fn a_program_that_is_not_followed_makes_nothing_stale() {
    let now = at(Instant::now(), 0);
    let mut model = following(&[Program::LeaseProbe]);
    model.on_verdicts(Update::Snapshot(verdicts(&["a"], &now), COMPLETE), &now);
    let shown = message(&model, &now);
    assert_eq!(states(&shown), [("a", "healthy")]);
    assert_eq!(line(&shown, 1), "scaling-coordinator not asked");
}

#[test]
fn after_the_machine_slept_nothing_is_healthy_until_it_is_renewed() {
    let start = Instant::now();
    let mut model = healthy(&["a"], &at(start, 0));
    let woken = ClockReading {
        instant: start + Duration::from_secs(2),
        wall: at(start, 3_600).wall,
    };
    assert_eq!(states(&message(&model, &woken)), [("a", "stale")]);
    let renewed = received(testing::verdict("a", Outcome::Healthy), &woken);
    model.on_verdicts(Update::Upsert("a".to_owned(), renewed), &woken);
    assert_eq!(states(&message(&model, &woken)), [("a", "healthy")]);
}

#[test]
fn the_strip_keeps_changes_of_the_counts_only_and_not_all_of_them() {
    let start = Instant::now();
    let mut model = healthy(&["a"], &at(start, 0));
    let mut verdict = testing::verdict("a", Outcome::LeasesExpired);
    let mut send = |expired: u32, seconds: u64| {
        let evidence = verdict.evidence.as_mut().unwrap();
        evidence.expired = expired;
        evidence.zones = vec![ZoneEvidence {
            zone: "a".to_owned(),
            candidates: 6,
            expired,
        }];
        let now = at(start, seconds);
        model.on_verdicts(
            Update::Upsert("a".to_owned(), received(verdict.clone(), &now)),
            &now,
        );
        let shown = shoot_view(&model, "a", &now);
        shown["samples"].as_array().unwrap().clone()
    };
    send(1, 1);
    send(1, 2);
    let samples = send(2, 3);
    let expected = serde_json::json!({
        "at": (testing::NOW + 3) * 1_000, "candidates": 6, "expired": 2, "zones": [["a", 6, 2]],
    });
    assert_eq!((samples.len(), &samples[2]), (3, &expected));
    let mut last = samples;
    for second in 4..400 {
        last = send(u32::try_from(second % 2).unwrap(), second);
    }
    assert_eq!(last.len(), MAX_SAMPLES);
    assert_eq!(last[MAX_SAMPLES - 1]["at"], (testing::NOW + 399) * 1_000);
}

#[test]
fn a_shoot_has_its_messages_how_long_the_verdict_is_valid_and_what_happened() {
    let start = Instant::now();
    let now = at(start, 0);
    let mut model = following(&Program::ALL);
    let expired = received(testing::verdict("a", Outcome::LeasesExpired), &now);
    model.on_verdicts(Update::Upsert("a".to_owned(), expired), &now);
    let scaling = ShootScaling {
        last_incident: Some(ended()),
        ..testing::scaling_down("a")
    };
    model.on_scaling(Update::Upsert("a".to_owned(), received(scaling, &now)), &now);
    for (seconds, valid_for) in [(2, 10_000), (15, -3_000)] {
        let shown = shoot_view(&model, "a", &at(start, seconds));
        let verdict = &shown["verdict"];
        assert_eq!(verdict["validForMillis"], valid_for);
        assert_eq!(verdict["observedMillisAgo"], (seconds + 1) * 1_000);
        assert_eq!(verdict["message"]["evidence"]["expiryAge"], "32s");
        assert_eq!(shown["scaling"]["meltdownProtectionActive"], true);
        let incident = &shown["incidents"][0];
        assert_eq!(
            (&incident["isRunning"], &incident["length"]),
            (&false.into(), &312.0.into())
        );
        let last = incident["moments"].as_array().unwrap().last().unwrap();
        assert_eq!(
            (&last["what"], &last["after"]),
            (&"everything restored".into(), &312.0.into())
        );
    }
    let unknown = shoot_view(&model, "b", &now);
    assert_eq!((&unknown["name"], &unknown["state"]), (&"b".into(), &Value::Null));
}
