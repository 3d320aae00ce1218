//! Finds what another watchdog does to the resources of a shoot that this one only observes.

use std::collections::BTreeMap;

use watchdog_api::names::{COORDINATOR_FIELD_MANAGER, DEFAULT_SCALE_DOWN_REPLICAS};
use watchdog_api::prober::ResourceRef;
use watchdog_api::workload::RecordedReplicas;

use super::Direction;
use super::observed::{Dependent, ObservedResource};

/// The writer of a change that managedFields does not name.
const UNKNOWN: &str = "an unknown writer";

/// A resource was scaled by somebody else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherWrite {
    pub(crate) reference: ResourceRef,
    pub(crate) direction: Direction,
    pub(crate) from: i32,
    pub(crate) to: i32,
    /// By its name in managedFields.
    pub(crate) writer: String,
}

/// The replicas of the resources as last seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct OtherWrites(BTreeMap<ResourceRef, i32>);

impl OtherWrites {
    /// Returns what has changed since the last call. A scale-down counts if its writer has prepared the restore, as
    /// every watchdog does: other programs scale for reasons of their own. If the replicas of a kind are not in
    /// `spec.replicas`, the writer of meltdown-protection-active tells who scaled it.
    pub(crate) fn find(&mut self, dependents: &[Dependent<'_>]) -> Vec<OtherWrite> {
        let mut found = Vec::new();
        for dependent in dependents {
            let Some((seen, to)) = dependent
                .observed
                .seen()
                .and_then(|seen| Some((seen, seen.replicas?)))
            else {
                continue;
            };
            let reference = &dependent.config.reference;
            let Some(from) = self.0.insert(reference.clone(), to) else {
                continue;
            };
            let held = dependent
                .config
                .scale_down
                .replicas
                .unwrap_or(DEFAULT_SCALE_DOWN_REPLICAS);
            let direction = if to < from && to <= held && is_prepared(seen, from) {
                Direction::Down
            } else if to > from && from <= held {
                Direction::Up
            } else {
                continue;
            };
            let writers = seen.writers.as_deref();
            let writer = writers.and_then(|writers| writers.replicas.clone().or(writers.protection.clone()));
            let writer = writer.unwrap_or_else(|| UNKNOWN.to_owned());
            if writer != COORDINATOR_FIELD_MANAGER {
                found.push(OtherWrite {
                    reference: reference.clone(),
                    direction,
                    from,
                    to,
                    writer,
                });
            }
        }
        found
    }
}

fn is_prepared(seen: &ObservedResource, from: i32) -> bool {
    seen.protected || seen.recorded == RecordedReplicas::Count(from)
}

#[cfg(test)]
mod tests {
    use watchdog_api::workload::FieldWriters;

    use super::*;
    use crate::domain::testing::{dependent_of, gardener, held, recorded, seen};

    fn by(writer: &str, mut state: ObservedResource) -> ObservedResource {
        state.writers = Some(Box::new(FieldWriters {
            replicas: Some(writer.to_owned()),
            protection: None,
        }));
        state
    }

    #[test]
    fn scaling_by_others_is_found_once_with_its_writer() {
        let config = gardener();
        let mut others = OtherWrites::default();
        let mut find = |state: ObservedResource| {
            let found = others.find(&[dependent_of(&config[0], state)]);
            let short = |other: OtherWrite| (other.direction, other.from, other.to, other.writer);
            found.into_iter().map(short).collect::<Vec<_>>()
        };
        assert_eq!(
            find(seen(2, 2)),
            [],
            "nothing has changed when it is first observed"
        );
        let go = || "dependency-watchdog".to_owned();
        assert_eq!(find(by(&go(), held(2))), [(Direction::Down, 2, 0, go())]);
        assert_eq!(find(by(&go(), held(2))), []);
        assert_eq!(find(by(&go(), seen(2, 0))), [(Direction::Up, 0, 2, go())]);
        assert_eq!(
            find(by("gardenlet", seen(0, 0))),
            [],
            "nobody wants to restore it"
        );
        assert_eq!(find(seen(1, 1)), [(Direction::Up, 0, 1, UNKNOWN.to_owned())]);
        assert_eq!(find(by(COORDINATOR_FIELD_MANAGER, held(1))), []);
        // Its replicas are not in spec.replicas.
        let mut restored = recorded(1);
        restored.writers = Some(Box::new(FieldWriters {
            replicas: None,
            protection: Some(go()),
        }));
        assert_eq!(find(restored), [(Direction::Up, 0, 1, go())]);
    }
}
