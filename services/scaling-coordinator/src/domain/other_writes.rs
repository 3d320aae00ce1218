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

/// The resources as last seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct OtherWrites(BTreeMap<ResourceRef, LastSeen>);

#[derive(Debug, Clone)]
struct LastSeen {
    replicas: i32,
    /// The writer that holds it down.
    holder: Option<String>,
}

impl OtherWrites {
    /// Returns what has changed since the last call. A scale-down counts if its writer has prepared the restore, as
    /// every watchdog does: other programs scale for reasons of their own.
    ///
    /// The writer of meltdown-protection-active comes first, because API servers before 1.22 do not say who wrote
    /// through the scale sub-resource.
    pub(crate) fn find(&mut self, dependents: &[Dependent]) -> Vec<OtherWrite> {
        let mut found = Vec::new();
        for dependent in dependents {
            let Some((seen, to)) = dependent
                .observed
                .seen()
                .and_then(|seen| Some((seen, seen.replicas?)))
            else {
                continue;
            };
            let (reference, writers) = (&dependent.config.reference, seen.writers.as_deref());
            let protection = writers.and_then(|writers| writers.protection.clone());
            let new = LastSeen {
                replicas: to,
                holder: protection.clone(),
            };
            let Some(before) = self.0.insert(reference.clone(), new) else {
                continue;
            };
            let held = dependent
                .config
                .scale_down
                .replicas
                .unwrap_or(DEFAULT_SCALE_DOWN_REPLICAS);
            let from = before.replicas;
            let replicas = || writers.and_then(|writers| writers.replicas.clone());
            let (direction, writer) = if to < from && to <= held && is_prepared(seen, from) {
                (Direction::Down, protection.or_else(replicas))
            } else if to > from && from <= held {
                (Direction::Up, before.holder.or_else(replicas))
            } else {
                // It may be restored by somebody who removes the annotation first.
                if let Some(last) = self.0.get_mut(reference).filter(|_| to == from && to <= held) {
                    last.holder = last.holder.take().or(before.holder);
                }
                continue;
            };
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
    use crate::domain::testing::{dependent_of, gardener, held, seen};

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
    }

    #[test]
    fn the_writer_of_the_protection_tells_who_scaled() {
        let config = gardener();
        let mut others = OtherWrites::default();
        let mut find = |state: ObservedResource, protection: Option<&str>| {
            // An API server that does not say who wrote through the scale sub-resource.
            let mut state = by(COORDINATOR_FIELD_MANAGER, state);
            if let Some(writers) = &mut state.writers {
                writers.protection = protection.map(str::to_owned);
            }
            let found = others.find(&[dependent_of(&config[0], state)]);
            found
                .into_iter()
                .map(|other| (other.direction, other.writer))
                .collect::<Vec<_>>()
        };
        let go = "dependency-watchdog";
        assert_eq!(find(seen(2, 2), None), []);
        assert_eq!(find(held(2), Some(go)), [(Direction::Down, go.to_owned())]);
        assert_eq!(find(seen(0, 0), None), [], "the annotation goes first");
        assert_eq!(find(seen(2, 0), None), [(Direction::Up, go.to_owned())]);
        assert_eq!(find(held(2), Some(COORDINATOR_FIELD_MANAGER)), []);
        assert_eq!(find(seen(2, 0), None), [], "restored by this program");
    }
}
