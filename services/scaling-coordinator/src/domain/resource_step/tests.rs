use proptest::prelude::*;
use watchdog_api::prober::DependentResource;

use super::*;
use crate::domain::testing::{dependent, dependent_of, held, recorded, scale_only, seen, unread};

fn next_step(
    direction: Direction,
    dependent: &DependentResource,
    observed: impl Into<Observed>,
) -> ResourceStep {
    plan_step(direction, &dependent_of(dependent, observed)).step
}

fn scale(from: i32, to: i32) -> ResourceStep {
    ResourceStep::Write(ResourceWrite::Scale {
        from,
        to,
        record: false,
        unreadable: None,
    })
}

fn record_and_scale(from: i32, to: i32) -> ResourceStep {
    ResourceStep::Write(ResourceWrite::Scale {
        from,
        to,
        record: true,
        unreadable: None,
    })
}

#[test]
fn down_is_one_write_for_deployments_and_two_for_kinds_with_only_a_scale_sub_resource() {
    let (kcm, etcd) = (dependent("kcm", 0, 0), scale_only(dependent("etcd", 0, 0)));
    let one = |seen: ObservedResource| next_step(Direction::Down, &kcm, seen);
    let next_step = |seen: ObservedResource| next_step(Direction::Down, &etcd, seen);
    let recorded = |n| ObservedResource {
        recorded: RecordedReplicas::Count(n),
        ..seen(3, 3)
    };
    let protected = |n| ObservedResource {
        protected: true,
        ..recorded(n)
    };
    let record = |replicas| ResourceStep::Write(ResourceWrite::Record { replicas });
    for already in [seen(3, 3), recorded(3), protected(2), protected(3)] {
        assert_eq!(one(already), record_and_scale(3, 0));
    }
    for down in [held(3), seen(0, 0)] {
        assert_eq!(one(down), ResourceStep::Nothing);
    }
    assert_eq!(next_step(seen(3, 3)), record(3));
    assert_eq!(
        next_step(recorded(3)),
        record(3),
        "a leftover count does not protect"
    );
    assert_eq!(next_step(protected(2)), record(3), "somebody scaled it since");
    assert_eq!(next_step(protected(3)), scale(3, 0));
    assert_eq!(
        next_step(ObservedResource { ready: 1, ..held(3) }),
        ResourceStep::Wait
    );
    assert_eq!(
        next_step(ObservedResource {
            current: false,
            ..held(3)
        }),
        ResourceStep::Wait,
        "the status may be that of before"
    );
    assert_eq!(next_step(held(3)), ResourceStep::Nothing);
    assert_eq!(
        next_step(seen(0, 0)),
        ResourceStep::Nothing,
        "zero is never recorded"
    );
}

#[test]
fn down_to_more_than_zero_never_scales_up_and_is_restored() {
    let mut kcm = dependent("kcm", 0, 0);
    kcm.scale_down.replicas = Some(2);
    assert_eq!(
        next_step(Direction::Down, &kcm, seen(1, 1)),
        ResourceStep::Nothing
    );
    assert_eq!(
        next_step(Direction::Down, &kcm, seen(3, 3)),
        record_and_scale(3, 2)
    );
    let half = ObservedResource {
        recorded: RecordedReplicas::Count(3),
        ..recorded(2)
    };
    assert_eq!(
        next_step(Direction::Down, &kcm, half.clone()),
        ResourceStep::Nothing,
        "2 is not recorded over 3"
    );
    assert_eq!(next_step(Direction::Up, &kcm, half.clone()), scale(2, 3));
    let recorded_only = ObservedResource {
        replicas: Some(3),
        ..half
    };
    assert_eq!(
        next_step(Direction::Up, &kcm, recorded_only),
        ResourceStep::Write(ResourceWrite::CleanUp),
        "it was not scaled yet"
    );
}

#[test]
fn up_scales_then_waits_then_cleans_up() {
    let mut kcm = dependent("kcm", 0, 0);
    assert_eq!(next_step(Direction::Up, &kcm, held(3)), scale(0, 3));
    assert_eq!(next_step(Direction::Up, &kcm, seen(0, 0)), scale(0, 1));
    let unreadable = ObservedResource {
        recorded: RecordedReplicas::Unreadable("two".into()),
        ..held(1)
    };
    let fallback = |to| {
        ResourceStep::Write(ResourceWrite::Scale {
            from: 0,
            to,
            record: false,
            unreadable: Some("two".into()),
        })
    };
    assert_eq!(next_step(Direction::Up, &kcm, unreadable.clone()), fallback(1));
    kcm.scale_up.replicas = Some(2);
    assert_eq!(next_step(Direction::Up, &kcm, seen(0, 0)), scale(0, 2));
    assert_eq!(next_step(Direction::Up, &kcm, unreadable), fallback(2));
    assert_eq!(
        next_step(Direction::Up, &kcm, held(3)),
        scale(0, 3),
        "a recorded count wins"
    );
    let restored = |ready| ObservedResource {
        replicas: Some(3),
        ready,
        ..held(3)
    };
    assert_eq!(next_step(Direction::Up, &kcm, restored(0)), ResourceStep::Wait);
    assert_eq!(
        next_step(Direction::Up, &kcm, restored(1)),
        ResourceStep::Write(ResourceWrite::CleanUp)
    );
    assert_eq!(next_step(Direction::Up, &kcm, seen(3, 0)), ResourceStep::Wait);
    assert_eq!(
        next_step(
            Direction::Up,
            &kcm,
            ObservedResource {
                current: false,
                ..seen(3, 1)
            }
        ),
        ResourceStep::Wait
    );
    assert_eq!(
        next_step(Direction::Up, &kcm, seen(3, 1)),
        ResourceStep::Nothing,
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
            let ignored = ObservedResource {
                ignored: true,
                ..seen(replicas, 0)
            };
            assert_eq!(
                next_step(direction, &mandatory, ignored.clone()),
                ResourceStep::Ignored
            );
            let leftover = ObservedResource {
                protected: true,
                ..ignored
            };
            assert_eq!(
                next_step(direction, &mandatory, leftover),
                ResourceStep::Write(ResourceWrite::CleanUp)
            );
        }
        for gone in [Observed::Absent, Observed::Deleting] {
            let expected = match direction {
                Direction::Down => ResourceStep::Missing,
                _ => ResourceStep::Repair,
            };
            assert_eq!(next_step(direction, &mandatory, gone.clone()), expected);
            assert_eq!(
                next_step(direction, &optional, gone),
                ResourceStep::AbsentOptional
            );
        }
        assert_eq!(
            next_step(direction, &optional, Observed::Unusable("bad".into())),
            ResourceStep::Repair
        );
        assert_eq!(
            next_step(direction, &optional, Observed::Unknown("not listed".into())),
            ResourceStep::NotObserved
        );
        assert_eq!(next_step(direction, &optional, unread()), ResourceStep::Read);
    }
}

fn any_seen() -> impl Strategy<Value = ObservedResource> {
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
        .prop_map(
            |(replicas, ready, current, recorded, protected, ignored)| ObservedResource {
                current,
                recorded,
                protected,
                ignored,
                ..seen(replicas, ready)
            },
        )
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
        while let ResourceStep::Write(write) = next_step(direction, &kcm, now.clone()) {
            writes += 1;
            prop_assert!(writes <= most, "{write:?} after {most} writes");
            match write {
                ResourceWrite::Record { replicas } => {
                    prop_assert!(down && in_two_steps && replicas > 0 && !now.ignored);
                    now.recorded = RecordedReplicas::Count(replicas);
                    now.protected = true;
                }
                ResourceWrite::Scale { from, to, record, .. } => {
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
                ResourceWrite::CleanUp => {
                    prop_assert!(now.protected && (now.ignored || now.replicas != Some(0)));
                    now.protected = false;
                }
            }
        }
        let end = next_step(direction, &kcm, now.clone());
        prop_assert!(matches!(end, ResourceStep::Nothing | ResourceStep::Wait | ResourceStep::Ignored), "{end:?}");
        if !first.ignored && !down {
            prop_assert!(now.replicas > Some(0) && (!now.protected || end == ResourceStep::Wait));
        }
        if !first.ignored && down {
            prop_assert!(now.replicas <= first.replicas && now.replicas <= Some(down_to.unwrap_or(0)));
        }
        // And there and back again: whatever was scaled down comes up with the count that it had.
        if !first.ignored && down && now.replicas < first.replicas {
            let step = next_step(Direction::Up, &kcm, now.clone());
            let ResourceStep::Write(ResourceWrite::Scale { to, .. }) = step else {
                return Err(TestCaseError::fail("it is not restored"));
            };
            prop_assert_eq!(Some(to), first.replicas);
        }
    }
}

#[test]
fn what_is_dropped_from_the_configuration_is_only_restored() {
    let kcm = dependent("kcm", 0, 0);
    let next_step = |direction, observed: Observed| {
        let dropped = Dependent {
            dropped: true,
            ..dependent_of(&kcm, observed)
        };
        plan_step(direction, &dropped).step
    };
    let ignored = ObservedResource {
        ignored: true,
        ..held(3)
    };
    let anything: [Observed; 8] = [
        seen(3, 3).into(),
        seen(0, 0).into(),
        held(3).into(),
        ignored.clone().into(),
        Observed::Absent,
        Observed::Deleting,
        Observed::Unusable("no spec".into()),
        Observed::Unknown("not listed".into()),
    ];
    for observed in anything {
        assert_eq!(
            next_step(Direction::Down, observed.clone()),
            ResourceStep::Nothing,
            "{observed:?}"
        );
        if observed.seen().is_none() {
            assert_eq!(
                next_step(Direction::Up, observed.clone()),
                ResourceStep::Nothing,
                "{observed:?}"
            );
        }
    }
    assert_eq!(next_step(Direction::Up, held(3).into()), scale(0, 3));
    let clean_up = ResourceStep::Write(ResourceWrite::CleanUp);
    assert_eq!(next_step(Direction::Up, recorded(3).into()), clean_up);
    assert_eq!(next_step(Direction::Up, ignored.into()), clean_up);
    assert_eq!(
        next_step(Direction::Up, seen(3, 0).into()),
        ResourceStep::Wait,
        "the next level waits for what was restored"
    );
    assert_eq!(next_step(Direction::Up, seen(3, 1).into()), ResourceStep::Nothing);
    assert_eq!(
        next_step(Direction::Up, seen(0, 0).into()),
        ResourceStep::Nothing,
        "somebody else wants none"
    );
}

#[test]
fn a_release_removes_the_annotation_and_nothing_else() {
    let kcm = dependent("kcm", 0, 0);
    for protected in [held(3), recorded(3)] {
        for dropped in [false, true] {
            let held_down = Dependent {
                dropped,
                ..dependent_of(&kcm, protected.clone())
            };
            let next_step = plan_step(Direction::Release, &held_down).step;
            assert_eq!(next_step, ResourceStep::Write(ResourceWrite::CleanUp));
        }
    }
    let rest: [Observed; 5] = [
        seen(0, 0).into(),
        seen(3, 0).into(),
        Observed::Absent,
        Observed::Unusable("no spec".into()),
        Observed::Unknown("not listed".into()),
    ];
    for observed in rest {
        assert_eq!(
            next_step(Direction::Release, &kcm, observed.clone()),
            ResourceStep::Nothing,
            "{observed:?}"
        );
    }
}

#[test]
fn a_write_shows_in_what_it_leaves() {
    let record = ResourceWrite::Record { replicas: 3 };
    let down = ResourceWrite::Scale {
        from: 3,
        to: 0,
        record: true,
        unreadable: None,
    };
    let recorded = recorded(3);
    let unread = ObservedResource {
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
    assert_eq!(ResourceWrite::CleanUp.shows_in(&recorded), Some(false));
    assert_eq!(ResourceWrite::CleanUp.shows_in(&seen(3, 3)), Some(true));
}
