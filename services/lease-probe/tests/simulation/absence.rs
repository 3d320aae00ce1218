//! Lists that do not show what is there, or whose objects are gone for a while.

use crate::random::{Micros, hashed};
use crate::timeline::FOREVER;

/// The kind of object that is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absent {
    /// The Leases are gone, and kubelets cannot create them: kube-controller-manager sees none either.
    Leases,
    /// The list of Nodes does not show them.
    Nodes,
    /// The list of Machines on the seed does not show them.
    Machines,
}

/// How the list looks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Form {
    Empty,
    Null,
    NotFound,
    /// This share of the items is missing.
    Partial(f64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Absence {
    pub(crate) from: Micros,
    pub(crate) to: Micros,
    pub(crate) absent: Absent,
    pub(crate) form: Form,
}

impl Absence {
    pub(crate) fn contains(&self, at: Micros) -> bool {
        self.from <= at && at < self.to
    }

    /// The same if it did not end after `at`.
    pub(crate) fn frozen_at(&self, at: Micros) -> Self {
        Self {
            to: if self.contains(at) { FOREVER } else { self.to },
            ..*self
        }
    }

    /// Returns true if the item of this node is missing.
    pub(crate) fn hides(&self, node: usize) -> bool {
        match self.form {
            Form::Partial(share) => hashed(self.from.unsigned_abs(), node as u64, 0xAB5E) < share,
            Form::Empty | Form::Null | Form::NotFound => true,
        }
    }
}

/// The absence of these objects at `at`.
pub(crate) fn absence(absences: &[Absence], absent: Absent, at: Micros) -> Option<&Absence> {
    absences
        .iter()
        .find(|absence| absence.absent == absent && absence.contains(at))
}
