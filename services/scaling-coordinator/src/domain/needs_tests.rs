use proptest::prelude::*;
use watchdog_api::prober::DependentResource;

use super::*;
use crate::domain::testing::{dependent, held, item, scale_only, seen};

fn need(direction: Direction, dependent: &DependentResource, sight: impl Into<Sight>) -> Need {
    assess(direction, &item(dependent, sight)).need
}

fn scale(from: i32, to: i32) -> Need {
    Need::Write(Write::Scale {
        from,
        to,
        record: false,
        unreadable: None,
    })
}

fn record_and_scale(from: i32, to: i32) -> Need {
    Need::Write(Write::Scale {
        from,
        to,
        record: true,
        unreadable: None,
    })
}

#[test]
fn down_is_one_write_for_deployments_and_two_for_kinds_with_only_a_scale_sub_resource() {
    let (kcm, etcd) = (dependent("kcm", 0, 0), scale_only(dependent("etcd", 0, 0)));
    let one = |seen: Seen| need(Direction::Down, &kcm, seen);
    let need = |seen: Seen| need(Direction::Down, &etcd, seen);
    let recorded = |n| Seen {
        recorded: RecordedReplicas::Count(n),
        ..seen(3, 3)
    };
    let protected = |n| Seen {
        protected: true,
        ..recorded(n)
    };
    let record = |replicas| Need::Write(Write::Record { replicas });
    for already in [seen(3, 3), recorded(3), protected(2), protected(3)] {
        assert_eq!(one(already), record_and_scale(3, 0));
    }
    for down in [held(3), seen(0, 0)] {
        assert_eq!(one(down), Need::Nothing);
    }
    assert_eq!(need(seen(3, 3)), record(3));
    assert_eq!(need(recorded(3)), record(3), "a leftover count does not protect");
    assert_eq!(need(protected(2)), record(3), "somebody scaled it since");
    assert_eq!(need(protected(3)), scale(3, 0));
    assert_eq!(need(Seen { ready: 1, ..held(3) }), Need::Wait);
    assert_eq!(
        need(Seen {
            current: false,
            ..held(3)
        }),
        Need::Wait,
        "the status may be that of before"
    );
    assert_eq!(need(held(3)), Need::Nothing);
    assert_eq!(need(seen(0, 0)), Need::Nothing, "zero is never recorded");
}

#[test]
fn down_to_more_than_zero_never_scales_up_and_is_restored() {
    let mut kcm = dependent("kcm", 0, 0);
    kcm.scale_down.replicas = Some(2);
    assert_eq!(need(Direction::Down, &kcm, seen(1, 1)), Need::Nothing);
    assert_eq!(need(Direction::Down, &kcm, seen(3, 3)), record_and_scale(3, 2));
    let half = Seen {
        replicas: Some(2),
        ready: 2,
        ..held(3)
    };
    assert_eq!(
        need(Direction::Down, &kcm, half.clone()),
        Need::Nothing,
        "2 is not recorded over 3"
    );
    assert_eq!(need(Direction::Up, &kcm, half.clone()), scale(2, 3));
    let recorded_only = Seen {
        replicas: Some(3),
        ..half
    };
    assert_eq!(
        need(Direction::Up, &kcm, recorded_only),
        Need::Write(Write::CleanUp),
        "it was not scaled yet"
    );
}

#[test]
fn up_scales_then_waits_then_cleans_up() {
    let mut kcm = dependent("kcm", 0, 0);
    assert_eq!(need(Direction::Up, &kcm, held(3)), scale(0, 3));
    assert_eq!(need(Direction::Up, &kcm, seen(0, 0)), scale(0, 1));
    let unreadable = Seen {
        recorded: RecordedReplicas::Unreadable("two".into()),
        ..held(1)
    };
    let fallback = |to| {
        Need::Write(Write::Scale {
            from: 0,
            to,
            record: false,
            unreadable: Some("two".into()),
        })
    };
    assert_eq!(need(Direction::Up, &kcm, unreadable.clone()), fallback(1));
    kcm.scale_up.replicas = Some(2);
    assert_eq!(need(Direction::Up, &kcm, seen(0, 0)), scale(0, 2));
    assert_eq!(need(Direction::Up, &kcm, unreadable), fallback(2));
    assert_eq!(
        need(Direction::Up, &kcm, held(3)),
        scale(0, 3),
        "a recorded count wins"
    );
    let restored = |ready| Seen {
        replicas: Some(3),
        ready,
        ..held(3)
    };
    assert_eq!(need(Direction::Up, &kcm, restored(0)), Need::Wait);
    assert_eq!(
        need(Direction::Up, &kcm, restored(1)),
        Need::Write(Write::CleanUp)
    );
    assert_eq!(need(Direction::Up, &kcm, seen(3, 0)), Need::Wait);
    assert_eq!(
        need(
            Direction::Up,
            &kcm,
            Seen {
                current: false,
                ..seen(3, 1)
            }
        ),
        Need::Wait
    );
    assert_eq!(
        need(Direction::Up, &kcm, seen(3, 1)),
        Need::Nothing,
        "one is enough"
    );
}

#[test]
fn what_is_ignored_absent_or_unknown() {
    let mandatory = dependent("kcm", 0, 0);
    let optional = DependentResource {
        optional: true,
        ..mandatory.clone()
    };
    for direction in [Direction::Down, Direction::Up] {
        for replicas in [0, 3] {
            let ignored = Seen {
                ignored: true,
                ..seen(replicas, 0)
            };
            assert_eq!(need(direction, &mandatory, ignored.clone()), Need::Ignored);
            let leftover = Seen {
                protected: true,
                ..ignored
            };
            assert_eq!(need(direction, &mandatory, leftover), Need::Write(Write::CleanUp));
        }
        for gone in [Sight::Absent, Sight::Deleting] {
            assert_eq!(need(direction, &mandatory, gone.clone()), Need::Absent);
            assert_eq!(need(direction, &optional, gone), Need::AbsentOptional);
        }
        assert_eq!(
            need(direction, &optional, Sight::Unusable("bad".into())),
            Need::Repair
        );
        assert_eq!(
            need(direction, &optional, Sight::Unknown("not listed".into())),
            Need::Sight
        );
        assert_eq!(
            need(
                direction,
                &optional,
                Seen {
                    replicas: None,
                    ..seen(0, 0)
                }
            ),
            Need::Read
        );
    }
}

fn any_seen() -> impl Strategy<Value = Seen> {
    let recorded = prop_oneof![
        Just(RecordedReplicas::Absent),
        (1..5_i32).prop_map(RecordedReplicas::Count),
        Just(RecordedReplicas::Unreadable("x".into())),
    ];
    (
        0..5_i32,
        0..5_i32,
        any::<bool>(),
        recorded,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(replicas, ready, current, recorded, protected, ignored)| Seen {
            current,
            recorded,
            protected,
            ignored,
            ..seen(replicas, ready)
        })
}

proptest! {
    /// The writes of a direction come to an end, leave the resource alone then, and lose no count.
    #[test]
    fn writes_lead_to_the_target(
        first in any_seen(),
        down in any::<bool>(),
        in_two_steps in any::<bool>(),
        down_to in prop::option::of(0..4_i32),
        up_to in prop::option::of(1..4_i32),
    ) {
        let mut kcm = dependent("kcm", 0, 0);
        if in_two_steps {
            kcm = scale_only(kcm);
        }
        kcm.scale_down.replicas = down_to;
        kcm.scale_up.replicas = up_to;
        let direction = if down { Direction::Down } else { Direction::Up };
        let mut now = first.clone();
        let mut writes = 0;
        let most = if down && !in_two_steps { 1 } else { 2 };
        while let Need::Write(write) = need(direction, &kcm, now.clone()) {
            writes += 1;
            prop_assert!(writes <= most, "{write:?} after {most} writes");
            match write {
                Write::Record { replicas } => {
                    prop_assert!(down && in_two_steps && replicas > 0 && !now.ignored);
                    now.recorded = RecordedReplicas::Count(replicas);
                    now.protected = true;
                }
                Write::Scale { from, to, record, .. } => {
                    prop_assert_eq!(Some(from), now.replicas);
                    prop_assert!(!now.ignored);
                    if record {
                        prop_assert!(down && !in_two_steps);
                        now.recorded = RecordedReplicas::Count(from);
                        now.protected = true;
                    }
                    if down {
                        prop_assert!(to < from && now.protected);
                        prop_assert_eq!(&now.recorded, &RecordedReplicas::Count(from));
                    } else {
                        prop_assert!(to > from);
                    }
                    now.replicas = Some(to);
                    if !down {
                        (now.ready, now.current) = (to, true);
                    }
                }
                Write::CleanUp => {
                    prop_assert!(now.protected && (now.ignored || now.replicas != Some(0)));
                    now.protected = false;
                }
            }
        }
        let end = need(direction, &kcm, now.clone());
        prop_assert!(matches!(end, Need::Nothing | Need::Wait | Need::Ignored), "{end:?}");
        if !first.ignored && !down {
            prop_assert!(now.replicas > Some(0) && (!now.protected || end == Need::Wait));
        }
        if !first.ignored && down {
            prop_assert!(now.replicas <= first.replicas && now.replicas <= Some(down_to.unwrap_or(0)));
        }
        // And there and back again: whatever was scaled down comes up with the count that it had.
        if !first.ignored && down && now.replicas < first.replicas {
            let Need::Write(Write::Scale { to, .. }) = need(Direction::Up, &kcm, now.clone()) else {
                return Err(TestCaseError::fail("it is not restored"));
            };
            prop_assert_eq!(Some(to), first.replicas);
        }
    }
}

#[test]
fn what_is_dropped_from_the_configuration_is_only_restored() {
    let kcm = dependent("kcm", 0, 0);
    let need = |direction, sight: Sight| {
        let dropped = Item {
            dropped: true,
            ..item(&kcm, sight)
        };
        assess(direction, &dropped).need
    };
    let ignored = Seen {
        ignored: true,
        ..held(3)
    };
    let anything: [Sight; 8] = [
        seen(3, 3).into(),
        seen(0, 0).into(),
        held(3).into(),
        ignored.clone().into(),
        Sight::Absent,
        Sight::Deleting,
        Sight::Unusable("no spec".into()),
        Sight::Unknown("not listed".into()),
    ];
    for sight in anything {
        assert_eq!(need(Direction::Down, sight.clone()), Need::Nothing, "{sight:?}");
        if sight.seen().is_none() {
            assert_eq!(need(Direction::Up, sight.clone()), Need::Nothing, "{sight:?}");
        }
    }
    assert_eq!(need(Direction::Up, held(3).into()), scale(0, 3));
    let scaled = Seen {
        replicas: Some(3),
        ready: 3,
        ..held(3)
    };
    let clean_up = Need::Write(Write::CleanUp);
    assert_eq!(need(Direction::Up, scaled.into()), clean_up);
    assert_eq!(need(Direction::Up, ignored.into()), clean_up);
    assert_eq!(
        need(Direction::Up, seen(3, 0).into()),
        Need::Wait,
        "the next level waits for what was restored"
    );
    assert_eq!(need(Direction::Up, seen(3, 1).into()), Need::Nothing);
    assert_eq!(
        need(Direction::Up, seen(0, 0).into()),
        Need::Nothing,
        "somebody else wants none"
    );
}

#[test]
fn a_release_removes_the_annotation_and_nothing_else() {
    let kcm = dependent("kcm", 0, 0);
    let scaled = Seen {
        replicas: Some(3),
        ..held(3)
    };
    for protected in [held(3), scaled] {
        for dropped in [false, true] {
            let held_down = Item {
                dropped,
                ..item(&kcm, protected.clone())
            };
            let need = assess(Direction::Release, &held_down).need;
            assert_eq!(need, Need::Write(Write::CleanUp));
        }
    }
    let rest: [Sight; 5] = [
        seen(0, 0).into(),
        seen(3, 0).into(),
        Sight::Absent,
        Sight::Unusable("no spec".into()),
        Sight::Unknown("not listed".into()),
    ];
    for sight in rest {
        assert_eq!(
            need(Direction::Release, &kcm, sight.clone()),
            Need::Nothing,
            "{sight:?}"
        );
    }
}

#[test]
fn a_write_shows_in_what_it_leaves() {
    let record = Write::Record { replicas: 3 };
    let down = Write::Scale {
        from: 3,
        to: 0,
        record: true,
        unreadable: None,
    };
    let recorded = Seen {
        replicas: Some(3),
        ..held(3)
    };
    let unread = Seen {
        replicas: None,
        ..held(3)
    };
    assert_eq!(record.shows_in(&recorded), Some(true));
    assert_eq!(record.shows_in(&seen(3, 3)), Some(false));
    assert_eq!(record.shows_in(&held(2)), Some(false), "another count");
    assert_eq!(down.shows_in(&held(3)), Some(true));
    assert_eq!(down.shows_in(&seen(0, 0)), Some(false), "somebody else scaled it");
    assert_eq!(down.shows_in(&recorded), Some(false));
    assert_eq!(down.shows_in(&unread), None);
    assert_eq!(Write::CleanUp.shows_in(&recorded), Some(false));
    assert_eq!(Write::CleanUp.shows_in(&seen(3, 3)), Some(true));
}
