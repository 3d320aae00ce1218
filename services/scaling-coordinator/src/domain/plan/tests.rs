use super::*;
use crate::domain::observed::Observed;
use crate::domain::resource_step::ResourceStep;
use crate::domain::testing::{dependent_of, gardener, held, ignored, seen};

/// A line for each resource: level, name and next step.
fn shown(direction: Direction, observed: [Observed; 3]) -> Vec<String> {
    let config = gardener();
    let dependents: Vec<_> = config
        .iter()
        .zip(observed)
        .map(|(d, observed)| dependent_of(d, observed))
        .collect();
    let mut lines = Vec::new();
    for (level, planned) in plan(direction, dependents) {
        lines.extend(planned.into_iter().map(|(dependent, planned)| {
            let name = &dependent.config.reference.name;
            match planned.step {
                ResourceStep::Write(write) => format!("{level} {name}: {write}"),
                other => format!("{level} {name}: {other:?}"),
            }
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
