use super::*;
use crate::domain::observed::{Observed, ResourceState};
use crate::domain::testing::{S, dependent_of, gardener, held, seen};

fn shown(direction: Direction, observed: [Observed; 3]) -> Vec<(i32, Vec<(String, PlannedAction)>)> {
    let config = gardener();
    let dependents: Vec<_> = config
        .iter()
        .zip(observed)
        .map(|(d, observed)| dependent_of(d, observed))
        .collect();
    plan(direction, &dependents)
        .into_iter()
        .map(|(level, all)| {
            (
                level,
                all.into_iter().map(|p| (p.reference.name, p.action)).collect(),
            )
        })
        .collect()
}

fn named(name: &str, action: PlannedAction) -> (String, PlannedAction) {
    (name.to_owned(), action)
}

#[test]
fn levels_ascend_and_keep_the_order_of_the_configuration() {
    let (kcm, mcm, ca) = (
        "kube-controller-manager",
        "machine-controller-manager",
        "cluster-autoscaler",
    );
    assert_eq!(
        shown(
            Direction::Down,
            [seen(2, 2).into(), seen(1, 1).into(), Observed::Absent]
        ),
        [
            (
                0,
                vec![
                    named(mcm, PlannedAction::Scale),
                    named(ca, PlannedAction::SkipAbsent)
                ]
            ),
            (1, vec![named(kcm, PlannedAction::Scale)]),
        ]
    );
    let ignored = ResourceState {
        ignored: true,
        ..held(1)
    };
    assert_eq!(
        shown(Direction::Up, [held(2).into(), Observed::Absent, ignored.into()]),
        [
            (0, vec![named(kcm, PlannedAction::Scale)]),
            (1, vec![named(mcm, PlannedAction::Fail)]),
            (2, vec![named(ca, PlannedAction::CleanUp)]),
        ]
    );
    assert_eq!(
        shown(
            Direction::Up,
            [
                seen(2, 0).into(),
                seen(1, 1).into(),
                Observed::Unknown("not listed".into())
            ]
        ),
        [
            (0, vec![named(kcm, PlannedAction::Wait)]),
            (1, vec![named(mcm, PlannedAction::Nothing)]),
            (2, vec![named(ca, PlannedAction::Wait)]),
        ]
    );
}

#[test]
fn a_planned_resource_says_what_becomes_of_it_and_why() {
    let config = gardener();
    let plan = plan(Direction::Up, &[dependent_of(&config[1], held(2))]);
    let planned = &plan[&1][0];
    assert_eq!((planned.replicas, planned.target), (Some(0), Some(2)));
    assert_eq!((planned.initial_delay, planned.timeout), (30 * S, 30 * S));
    assert_eq!(planned.why, "it has 0 replicas, 2 are wanted (as recorded)");
}
