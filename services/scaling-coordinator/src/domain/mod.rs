//! The rules of scaling: the direction for the dependants of a shoot, the next step of each, and their order. The rules
//! are pure: time is an argument everywhere, and nothing here does I/O or reads a clock.
//!
//! [`decision`] derives one direction from the verdicts on a shoot. [`resource_step`] derives a resource's next step in
//! that direction from its observed state alone. [`next_step`] derives from these what the shoot needs now, level by
//! level; [`attempts`] counts tries and delays, and `reads` says on which reads a write may rest. [`plan`] orders the
//! steps by level for people to read.

pub mod attempts;
pub mod decision;
pub(crate) mod incident;
pub mod next_step;
pub mod observed;
pub(crate) mod other_writes;
pub mod plan;
pub(crate) mod reads;
pub mod request;
pub mod resource_step;
pub(crate) mod status;
#[cfg(test)]
pub(crate) mod testing;

use strum::{IntoStaticStr, VariantArray};

/// The direction in which to scale the dependants of a shoot. `None` means hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Direction {
    /// Scaled down: the nodes are cut off.
    Down,
    /// Scaled up: the nodes are connected.
    Up,
    /// The shoot hibernates, migrates or is being deleted: others set the replicas, and the coordinator only removes
    /// meltdown-protection-active.
    Release,
}

/// As a label value and in messages, holding included.
pub(crate) fn direction_name(direction: Option<Direction>) -> &'static str {
    direction.map_or("hold", Direction::as_str)
}

impl Direction {
    /// As a label value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The settings of a resource for this direction.
    #[must_use]
    pub const fn info(
        self,
        dependent: &watchdog_api::prober::DependentResource,
    ) -> &watchdog_api::prober::ScaleInfo {
        match self {
            Self::Down => &dependent.scale_down,
            Self::Up | Self::Release => &dependent.scale_up,
        }
    }
}
