//! Shows the resources of a shoot as they would be after the writes that mode observe has kept back.
//!
//! The flow of a shoot waits until what it wrote shows in the observed state. In mode observe nothing is written, so an
//! overlay shows it: a scaled resource has its new replicas, all of them ready, at once. The rules do not know the
//! mode.
//!
//! An overlay covers a field only as long as that has the value on which the kept-back write rests. When somebody else
//! changes the field, such as another watchdog, the real value counts again. It also counts again when a later
//! kept-back write leads back to it. An overlay is therefore bounded by the configured resources, and empty when the
//! shoot is back where it was.

use std::collections::BTreeMap;

use watchdog_api::names::COORDINATOR_FIELD_MANAGER;
use watchdog_api::policy::Mode;
use watchdog_api::prober::ResourceRef;
use watchdog_api::workload::RecordedReplicas;

use super::Direction;
use super::flow::{Action, ActionKind};
use super::next_step::ResourceWrite;
use super::observed::{Dependent, Observed, ResourceState};

/// The fate of a write whose turn has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteDisposition {
    /// It is sent.
    Send,
    /// It is kept back.
    KeepBack,
}

/// The kept-back writes on the resources of a shoot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Overlay {
    resources: BTreeMap<ResourceRef, CoveredFields>,
    /// Kept-back writes so far: they make the versions of covered resources unique.
    writes: u64,
}

/// The fields of one resource that differ from the real ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct CoveredFields {
    replicas: Option<Covered<i32>>,
    protected: Option<Covered<bool>>,
    recorded: Option<Covered<RecordedReplicas>>,
    last_write: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Covered<T> {
    real: T,
    shown: T,
}

// === impl WriteDisposition ===

impl WriteDisposition {
    /// The disposition of a write on a resource. In mode observe only what this program itself holds down is restored,
    /// and not while an overlay covers it (S6), nor after somebody else has scaled it.
    pub(crate) fn of(mode: Mode, action: &Action, observed: &Observed, overlay: &Overlay) -> Self {
        let restores = action.direction != Direction::Down
            || matches!(action.kind, ActionKind::Write(ResourceWrite::CleanUp));
        let is_own_write = observed
            .seen()
            .is_some_and(|seen| was_written_by_coordinator(seen, &action.kind));
        match mode {
            Mode::Protect => Self::Send,
            Mode::Observe if restores && is_own_write && !overlay.covers(&action.reference) => Self::Send,
            Mode::Observe | Mode::Off => Self::KeepBack,
        }
    }
}

/// Returns true if the protection, and the replicas that this write would change, are this program's own. Another
/// watchdog that scales down what is being restored finds the annotation there, and changes only the replicas.
fn was_written_by_coordinator(seen: &ResourceState, kind: &ActionKind) -> bool {
    let replicas = seen
        .writers
        .as_deref()
        .and_then(|writers| writers.replicas.as_deref());
    let keeps_replicas = *kind == ActionKind::Write(ResourceWrite::CleanUp);
    seen.is_protected_by_coordinator()
        && (keeps_replicas || replicas.is_none_or(|replicas| replicas == COORDINATOR_FIELD_MANAGER))
}

// === impl Overlay ===

impl Overlay {
    pub(crate) fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }

    pub(crate) fn covers(&self, reference: &ResourceRef) -> bool {
        self.resources.contains_key(reference)
    }

    /// The resources as the flow sees them. Forgets what is no longer covered.
    pub(crate) fn over<'a>(&mut self, dependents: &[Dependent<'a>]) -> Vec<Dependent<'a>> {
        let is_configured =
            |reference: &ResourceRef| dependents.iter().any(|d| d.config.reference == *reference);
        self.resources.retain(|reference, _| is_configured(reference));
        let mut shown = dependents.to_vec();
        for dependent in &mut shown {
            self.cover(&dependent.config.reference, &mut dependent.observed);
        }
        shown
    }

    fn cover(&mut self, reference: &ResourceRef, observed: &mut Observed) {
        match observed {
            Observed::Present(seen) => {
                if let Some(covered) = self.resources.get_mut(reference) {
                    covered.uncover_changed(seen);
                    covered.show_in(seen);
                    if covered.is_empty() {
                        self.resources.remove(reference);
                    }
                }
            }
            Observed::Absent | Observed::Deleting => {
                self.resources.remove(reference);
            }
            // Nothing is known, so nothing has changed.
            Observed::Unusable(_) | Observed::Unknown(_) => {}
        }
    }

    /// Takes in a kept-back write on a resource, whose real state is this. Returns false if its precondition does not
    /// hold any more, as the API server would.
    pub(crate) fn keep_back(&mut self, action: &Action, real: &Observed) -> bool {
        let ActionKind::Write(write) = &action.kind else {
            return false;
        };
        let mut shown = real.clone();
        self.cover(&action.reference, &mut shown);
        let (Observed::Present(real), Observed::Present(shown)) = (real, &shown) else {
            return false;
        };
        if shown.resource_version != action.against {
            return false;
        }
        self.writes += 1;
        let covered = self.resources.entry(action.reference.clone()).or_default();
        covered.write(write, real, shown);
        covered.last_write = self.writes;
        if covered.is_empty() {
            self.resources.remove(&action.reference);
        }
        true
    }
}

impl CoveredFields {
    /// A recorded count alone changes nothing.
    const fn is_empty(&self) -> bool {
        self.replicas.is_none() && self.protected.is_none()
    }

    fn uncover_changed(&mut self, real: &ResourceState) {
        // Replicas that have to be read again may still be the same.
        let changed = |covered: &mut Covered<i32>| real.replicas.is_some_and(|now| now != covered.real);
        if self.replicas.take_if(changed).is_some() {
            self.recorded = None;
        }
        self.protected.take_if(|covered| covered.real != real.protected);
        self.recorded.take_if(|covered| covered.real != real.recorded);
    }

    fn show_in(&self, seen: &mut ResourceState) {
        if self.is_empty() {
            return;
        }
        seen.resource_version = format!("{}~{}", seen.resource_version, self.last_write).into();
        if let (Some(replicas), Some(_)) = (&self.replicas, seen.replicas) {
            (seen.replicas, seen.ready, seen.current) = (Some(replicas.shown), replicas.shown, true);
        }
        if let Some(protected) = &self.protected {
            seen.protected = protected.shown;
        }
        if let Some(recorded) = &self.recorded {
            seen.recorded = recorded.shown.clone();
        }
    }

    fn write(&mut self, write: &ResourceWrite, real: &ResourceState, shown: &ResourceState) {
        let (replicas, protected, recorded) = match write {
            ResourceWrite::Record { replicas } => (None, Some(true), Some(*replicas)),
            ResourceWrite::Scale {
                from,
                to,
                record: true,
                ..
            } => (Some(*to), Some(true), Some(*from)),
            ResourceWrite::Scale { to, .. } => (Some(*to), None, None),
            ResourceWrite::CleanUp => (None, Some(false), None),
        };
        if let (Some(to), Some(from)) = (replicas, real.replicas) {
            self.replicas = covered(from, to);
        }
        let protected = protected.unwrap_or(shown.protected);
        self.protected = covered(real.protected, protected);
        if let Some(count) = recorded {
            self.recorded = covered(real.recorded.clone(), RecordedReplicas::Count(count));
        }
    }
}

/// Covers a real value; nothing where both are the same.
fn covered<T: PartialEq>(real: T, shown: T) -> Option<Covered<T>> {
    (real != shown).then_some(Covered { real, shown })
}

#[cfg(test)]
mod tests;
