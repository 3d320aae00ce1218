use super::*;
use crate::domain::observed::Observed;
use crate::domain::testing::{S, dependent_of, gardener, held, ignored, seen};

/// A line for each resource: level, name and next step.
fn shown(direction: Direction, observed: [Observed; 3]) -> Vec<String> {
    let config = gardener();
    let dependents: Vec<_> = config
        .iter()
        .zip(observed)
        .map(|(d, observed)| dependent_of(d, observed))
        .collect();
    let mut lines = Vec::new();
    for (level, planned) in plan(direction, &dependents) {
        lines.extend(planned.into_iter().map(|p| match p.step {
            ResourceStep::Write(write) => format!("{level} {}: {write}", p.reference.name),
            other => format!("{level} {}: {other:?}", p.reference.name),
        }));
    }
    lines
}

#[test]
fn levels_ascend_and_keep_the_order_of_the_configuration() {
    assert_eq!(
        shown(
            Direction::Down,
            [seen(2, 2).into(), seen(1, 1).into(), Observed::Absent]
        ),
        [
            "0 machine-controller-manager: record 1 replicas and scale to 0",
            "0 cluster-autoscaler: AbsentOptional",
            "1 kube-controller-manager: record 2 replicas and scale to 0",
        ]
    );
    assert_eq!(
        shown(
            Direction::Up,
            [held(2).into(), Observed::Absent, ignored(held(1)).into()]
        ),
        [
            "0 kube-controller-manager: scale from 0 to 2",
            "1 machine-controller-manager: Repair",
            "2 cluster-autoscaler: remove meltdown-protection-active",
        ]
    );
    let unknown = Observed::Unknown("not listed".into());
    assert_eq!(
        shown(Direction::Up, [seen(2, 0).into(), seen(1, 1).into(), unknown]),
        [
            "0 kube-controller-manager: Wait",
            "1 machine-controller-manager: Nothing",
            "2 cluster-autoscaler: NotObserved",
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
    assert_eq!(planned.why, "it has 0 replicas, target 2 (as recorded)");
}
