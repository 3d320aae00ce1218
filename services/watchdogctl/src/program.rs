//! The programs of the watchdog.

use std::fmt::{self, Display, Formatter};

/// A program of the watchdog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Program {
    LeaseProbe,
    ScalingCoordinator,
    Weeder,
}

impl Program {
    pub(crate) const ALL: [Self; 3] = [Self::LeaseProbe, Self::ScalingCoordinator, Self::Weeder];

    /// Its name: of its image, its option and the last part of its objects.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::LeaseProbe => "lease-probe",
            Self::ScalingCoordinator => "scaling-coordinator",
            Self::Weeder => "weeder",
        }
    }

    /// The full name of its gRPC service.
    pub(crate) const fn grpc_service(self) -> &'static str {
        match self {
            Self::LeaseProbe => "gardener.watchdog.probe.v1.LeaseProbeService",
            Self::ScalingCoordinator => "gardener.watchdog.scaling.v1.ScalingService",
            Self::Weeder => "gardener.watchdog.weeder.v1.WeederService",
        }
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
