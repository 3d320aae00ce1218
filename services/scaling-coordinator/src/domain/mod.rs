//! The rules of scaling, pure: where the dependants of a shoot are to go, what each of them needs for that, and in
//! which order. Time is an argument everywhere; nothing here does I/O or reads a clock.
//!
//! [`decision`] makes one direction out of the verdicts on a shoot. [`next_step`] tells what one resource needs in a
//! direction, from what is seen of it and nothing else. [`plan`] orders the needs by level, for people to look at;
//! [`flow`] does the same for the coordinator to act upon, with time, tries and writes under way.

pub mod decision;
pub mod flow;
pub mod next_step;
pub mod observed;
pub mod overview;
pub mod plan;
pub mod status;
#[cfg(test)]
pub(crate) mod testing;

/// Where the dependants of a shoot are to go. Holding is the absence of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Scaled down: the nodes are cut off.
    Down,
    /// Scaled up: the nodes are connected.
    Up,
    /// Left to others, because the shoot hibernates, migrates or is deleted: only meltdown-protection-active is removed.
    Release,
}

impl Direction {
    /// As a label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Up => "up",
            Self::Release => "release",
        }
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
