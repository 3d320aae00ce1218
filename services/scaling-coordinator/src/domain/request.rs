//! Requests on resources, and their effect.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use strum::{EnumIter, IntoStaticStr};
use watchdog_api::prober::ResourceRef;

use super::Direction;
use super::resource_step::ResourceWrite;

/// A request to make on a resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Request {
    /// The resource.
    pub reference: ResourceRef,
    /// The direction.
    pub direction: Direction,
    /// The duration of one try on the resource.
    pub timeout: Duration,
    /// The change, and the version that the resource must still have. Without a change the resource is read, and its
    /// scale sub-resource if the resource itself does not show its replicas.
    pub write: Option<(ResourceWrite, Arc<str>)>,
}

impl Request {
    /// Returns true if the Cluster must be confirmed right before the request, because that changes a replica count or
    /// leads to such a change (S4), or because the Cluster is the reason to release the shoot.
    #[must_use]
    pub fn needs_cluster(&self) -> bool {
        let write = self.write.as_ref();
        write.is_some_and(|(write, _)| {
            *write != ResourceWrite::CleanUp || self.direction == Direction::Release
        })
    }
}

/// The change, in words.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.write {
            Some((write, _)) => write.fmt(f),
            None => f.write_str("read"),
        }
    }
}

/// The effect of a request, as far as the API server's answer shows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum RequestOutcome {
    /// The write was applied, or the read has updated the index.
    #[strum(serialize = "applied")]
    Done,
    /// The precondition did not hold: another client wrote in between. Nothing was applied.
    Conflict,
    /// Nothing was applied.
    Refused {
        /// Why.
        why: String,
        /// The pause that the server asks for.
        retry_after: Option<Duration>,
    },
    /// The write may have been applied, or may still be.
    Unknown {
        /// Why that is not known.
        why: String,
        /// The pause that the server asks for.
        retry_after: Option<Duration>,
    },
    /// Nothing was sent, because the write was no longer allowed when its turn came.
    Cancelled {
        /// The change that forbids it.
        why: &'static str,
    },
    /// Nothing was sent, because the mode of the shoot is observe.
    KeptBack,
}

impl RequestOutcome {
    /// Why it failed; none if it did not fail.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Refused { why, .. } | Self::Unknown { why, .. } => Some(why),
            Self::Done | Self::Conflict | Self::Cancelled { .. } | Self::KeptBack => None,
        }
    }

    /// The result of a write, as a label value.
    pub(crate) fn as_str(&self) -> &'static str {
        self.into()
    }
}
