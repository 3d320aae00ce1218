use proptest::prelude::*;
use watchdog_api::prober::DependentResource;
use watchdog_api::workload::{FieldWriters, IgnoreScaling};

use super::*;
use crate::domain::testing::{
    self, dependent, dependent_of, held, recorded, scale_only, seen, starting, stopping, unread,
};

const CLEAN_UP: &str = "remove meltdown-protection-active";

fn next_step(
    direction: Direction,
    dependent: &DependentResource,
    observed: impl Into<Observed>,
) -> ResourceStep {
    plan_step(direction, &dependent_of(dependent, observed)).step
}

fn shown(step: &ResourceStep) -> String {
    match step {
        ResourceStep::Write(ResourceWrite::Scale {
            from,
            to,
            unreadable: Some(text),
            ..
        }) => format!("scale from {from} to {to} instead of {text}"),
        ResourceStep::Write(write) => write.to_string(),
        step => format!("{step:?}"),
    }
}

/// The next step on the way down, in words.
fn down(dependent: &DependentResource, observed: impl Into<Observed>) -> String {
    shown(&next_step(Direction::Down, dependent, observed))
}

/// The next step on the way up, in words.
fn up(dependent: &DependentResource, observed: impl Into<Observed>) -> String {
    shown(&next_step(Direction::Up, dependent, observed))
}

/// Its Pods are those of an earlier status.
fn outdated(seen: ObservedResource) -> ObservedResource {
    ObservedResource {
        outdated: true,
        ..seen
    }
}

/// Its status may be that of before.
fn of_old_spec(seen: ObservedResource) -> ObservedResource {
    ObservedResource {
        current: false,
        ..seen
    }
}

#[test]
fn down_is_one_write_for_deployments_and_two_for_kinds_with_only_a_scale_sub_resource() {
    let (kcm, etcd) = (dependent("kcm", 0, 0), scale_only(dependent("etcd", 0, 0)));
    let recorded_only = ObservedResource {
        protected: false,
        ..recorded(3)
    };
    // Somebody scaled it since.
    let scaled = ObservedResource {
        replicas: Some(3),
        ready: 3,
        ..recorded(2)
    };
    for (observed, deployment, engine) in [
        (
            seen(3, 3),
            "record 3 replicas and scale to 0",
            "record 3 replicas",
        ),
        (
            recorded_only,
            "record 3 replicas and scale to 0",
            "record 3 replicas",
        ),
        (scaled, "record 3 replicas and scale to 0", "record 3 replicas"),
        (
            recorded(3),
            "record 3 replicas and scale to 0",
            "scale from 3 to 0",
        ),
        (ObservedResource { ready: 1, ..held(3) }, "Wait", "Wait"),
        (of_old_spec(held(3)), "Wait", "Wait"),
        // The scale sub-resource may show that they have stopped.
        (outdated(stopping(3)), "Read", "Read"),
        (outdated(held(3)), "Nothing", "Nothing"),
        (held(3), "Nothing", "Nothing"),
        // Zero is never recorded.
        (seen(0, 0), "Nothing", "Nothing"),
    ] {
        assert_eq!(down(&kcm, observed.clone()), deployment, "{observed:?}");
        assert_eq!(down(&etcd, observed.clone()), engine, "{observed:?}");
    }
}

#[test]
fn down_to_more_than_zero_never_scales_up_and_is_restored() {
    let mut kcm = dependent("kcm", 0, 0);
    kcm.scale_down.replicas = Some(2);
    assert_eq!(down(&kcm, seen(1, 1)), "Nothing");
    assert_eq!(down(&kcm, seen(3, 3)), "record 3 replicas and scale to 2");
    let half = ObservedResource {
        recorded: RecordedReplicas::Count(3),
        ..recorded(2)
    };
    assert_eq!(down(&kcm, half.clone()), "Nothing", "2 is not recorded over 3");
    assert_eq!(up(&kcm, half), "scale from 2 to 3");
    assert_eq!(up(&kcm, recorded(3)), CLEAN_UP, "it was not scaled yet");
}

/// `scaleDown.replicas` was 2 when three replicas were scaled down, and is 0 or 1 now.
#[test]
fn a_count_is_not_lost_when_another_scale_down_count_is_configured() {
    let held_at_two = |writer: &str| ObservedResource {
        recorded: RecordedReplicas::Count(3),
        writers: Some(Box::new(FieldWriters {
            replicas: Some(writer.to_owned()),
            protection: Some(COORDINATOR_FIELD_MANAGER.to_owned()),
        })),
        ..recorded(2)
    };
    for target in [0, 1] {
        let mut kcm = dependent("kcm", 0, 0);
        kcm.scale_down.replicas = Some(target);
        for kcm in [kcm.clone(), scale_only(kcm)] {
            let ours = held_at_two(COORDINATOR_FIELD_MANAGER);
            assert_eq!(down(&kcm, ours.clone()), format!("scale from 2 to {target}"));
            assert_eq!(up(&kcm, ours), "scale from 2 to 3");
            let theirs = held_at_two("kubectl");
            assert!(down(&kcm, theirs.clone()).starts_with("record 2 replicas"));
            assert_eq!(up(&kcm, theirs), CLEAN_UP, "somebody else wants two");
        }
    }
}

#[test]
fn up_scales_then_waits_then_cleans_up() {
    let mut kcm = dependent("kcm", 0, 0);
    let unreadable = ObservedResource {
        recorded: RecordedReplicas::Unreadable("two".into()),
        ..held(1)
    };
    for configured in [None, Some(2)] {
        kcm.scale_up.replicas = configured;
        let fallback = configured.unwrap_or(1);
        assert_eq!(up(&kcm, held(3)), "scale from 0 to 3", "a recorded count wins");
        assert_eq!(up(&kcm, seen(0, 0)), format!("scale from 0 to {fallback}"));
        let instead = format!("scale from 0 to {fallback} instead of two");
        assert_eq!(up(&kcm, unreadable.clone()), instead);
    }
    assert_eq!(up(&kcm, starting(3)), "Wait");
    assert_eq!(
        up(
            &kcm,
            ObservedResource {
                ready: 1,
                ..recorded(3)
            }
        ),
        CLEAN_UP
    );
    assert_eq!(up(&kcm, seen(3, 0)), "Wait");
    assert_eq!(up(&kcm, of_old_spec(seen(3, 1))), "Wait");
    assert_eq!(up(&kcm, seen(3, 1)), "Nothing", "one is enough");
}

#[test]
fn what_is_ignored_absent_or_unknown() {
    let mandatory = dependent("kcm", 0, 0);
    let optional = DependentResource {
        optional: true,
        ..mandatory.clone()
    };
    for (direction, absent) in [(Direction::Down, "Missing"), (Direction::Up, "Repair")] {
        let step = |dependent: &DependentResource, observed: Observed| {
            shown(&next_step(direction, dependent, observed))
        };
        for replicas in [0, 3] {
            let ignored = testing::ignored(seen(replicas, 0));
            assert_eq!(step(&mandatory, ignored.clone().into()), "Ignored");
            let leftover = ObservedResource {
                protected: true,
                ..ignored
            };
            assert_eq!(step(&mandatory, leftover.into()), CLEAN_UP);
        }
        for gone in [Observed::Absent, Observed::Deleting] {
            assert_eq!(step(&mandatory, gone.clone()), absent);
            assert_eq!(step(&optional, gone), "AbsentOptional");
        }
        assert_eq!(step(&optional, Observed::Unusable("bad".into())), "Repair");
        assert_eq!(
            step(&optional, Observed::Unknown("not listed".into())),
            "NotObserved"
        );
        assert_eq!(step(&optional, unread().into()), "Read");
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
        prop_oneof![Just(IgnoreScaling::No), Just(IgnoreScaling::Yes)],
    )
        .prop_map(
            |(replicas, ready, current, recorded, protected, ignore_scaling)| ObservedResource {
                current,
                recorded,
                protected,
                ignore_scaling,
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
                    prop_assert!(down && in_two_steps && replicas > 0 && !now.is_ignored());
                    now.recorded = RecordedReplicas::Count(replicas);
                    now.protected = true;
                }
                ResourceWrite::Scale { from, to, record, .. } => {
                    prop_assert_eq!(Some(from), now.replicas);
                    prop_assert!(!now.is_ignored());
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
                    prop_assert!(now.protected && (now.is_ignored() || now.replicas != Some(0)));
                    now.protected = false;
                }
            }
        }
        let end = next_step(direction, &kcm, now.clone());
        prop_assert!(matches!(end, ResourceStep::Nothing | ResourceStep::Wait | ResourceStep::Ignored), "{end:?}");
        if !first.is_ignored() && !down {
            prop_assert!(now.replicas > Some(0) && (!now.protected || end == ResourceStep::Wait));
        }
        if !first.is_ignored() && down {
            prop_assert!(now.replicas <= first.replicas && now.replicas <= Some(down_to.unwrap_or(0)));
        }
        // And there and back again: whatever was scaled down comes up with the count that it had.
        if !first.is_ignored() && down && now.replicas < first.replicas {
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
    for (observed, on_the_way_up) in [
        (seen(3, 3).into(), "Nothing"),
        // It was ready when its annotation was removed. What follows is the business of others.
        (seen(3, 0).into(), "Nothing"),
        (seen(0, 0).into(), "Nothing"),
        (held(3).into(), "scale from 0 to 3"),
        // The next level waits for what is restored.
        (starting(3).into(), "Wait"),
        (recorded(3).into(), CLEAN_UP),
        (testing::ignored(held(3)).into(), CLEAN_UP),
        (Observed::Absent, "Nothing"),
        (Observed::Deleting, "Nothing"),
        (Observed::Unusable("no spec".into()), "Nothing"),
        (Observed::Unknown("not listed".into()), "Nothing"),
    ] {
        let dropped = Dependent {
            dropped: true,
            ..dependent_of(&kcm, observed)
        };
        let steps =
            [Direction::Down, Direction::Up].map(|direction| shown(&plan_step(direction, &dropped).step));
        assert_eq!(steps, ["Nothing", on_the_way_up], "{:?}", dropped.observed);
    }
}

#[test]
fn a_release_removes_the_annotation_and_nothing_else() {
    let kcm = dependent("kcm", 0, 0);
    for (observed, step) in [
        (held(3).into(), CLEAN_UP),
        (recorded(3).into(), CLEAN_UP),
        (seen(0, 0).into(), "Nothing"),
        (seen(3, 0).into(), "Nothing"),
        (Observed::Absent, "Nothing"),
        (Observed::Unusable("no spec".into()), "Nothing"),
        (Observed::Unknown("not listed".into()), "Nothing"),
    ] {
        for dropped in [false, true] {
            let released = Dependent {
                dropped,
                ..dependent_of(&kcm, observed.clone())
            };
            assert_eq!(
                shown(&plan_step(Direction::Release, &released).step),
                step,
                "{observed:?}"
            );
        }
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
