use super::*;

fn signed(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

fn received(age: i64, valid_for: i64) -> Received<probe::Verdict> {
    let value = probe::Verdict {
        shoot: "shoot--a".into(),
        outcome: probe::Outcome::LeasesExpired.into(),
        age: signed(age),
        valid_for: signed(valid_for),
        observer: "lease-probe-0".into(),
        message: "x".repeat(10_000),
        ..Default::default()
    };
    let sent_at = Instant::now() + Duration::from_secs(10_000);
    Received {
        value,
        sent_at,
        set_at: sent_at,
    }
}

#[test]
fn validity_counts_from_the_sending_and_is_bounded() {
    let table = [
        (3, 20, 20),
        (3, 0, 0),
        (3, -5, 0),
        (3, i64::MAX, 597),
        (599, 20, 1),
        (600, 20, 0),
        (i64::MAX, i64::MAX, 0),
    ];
    for (age, valid_for, expected) in table {
        let received = received(age, valid_for);
        let verdict = verdict(&received);
        assert_eq!(
            verdict.valid_until - received.sent_at,
            Duration::from_secs(expected)
        );
        let seen = u64::try_from(age).unwrap().min(600);
        assert_eq!(received.sent_at - verdict.observed, Duration::from_secs(seen));
        assert_eq!(verdict.message.len(), LONGEST_MESSAGE);
    }
    let unset = Received {
        value: probe::Verdict::default(),
        sent_at: Instant::now(),
        set_at: Instant::now(),
    };
    assert_eq!(
        verdict(&unset).valid_until,
        unset.sent_at,
        "no validity, no action"
    );
    assert_eq!(verdict(&unset).outcome.direction(), None);
}

#[test]
fn outcomes_that_are_new_hold() {
    assert_eq!(outcome(4711), Outcome::Unknown);
    assert_eq!(outcome(0), Outcome::Unknown);
    assert_eq!(
        outcome(probe::Outcome::ExternalUnreachable.into()),
        Outcome::ExternalUnreachable
    );
}

#[test]
fn clauses_become_sentences() {
    assert_eq!(sentence("it is scaled to 0"), "It is scaled to 0.");
    assert_eq!(sentence("Done."), "Done.");
    assert_eq!(sentence(""), "");
}

#[test]
fn hold_is_no_direction_to_ask_for() {
    assert_eq!(asked_direction(pb::Direction::Down.into()), Some(Direction::Down));
    assert_eq!(asked_direction(pb::Direction::Up.into()), Some(Direction::Up));
    for refused in [0, 1, -1, 4711] {
        assert_eq!(asked_direction(refused), None);
    }
}
