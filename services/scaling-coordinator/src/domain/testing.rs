//! Fixtures for the tests of the rules: Gardener's configuration and observed resources.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::prober::{DependentResource, ResourceRef, ScaleInfo};
use watchdog_api::workload::{IgnoreScaling, RecordedReplicas};

use super::Direction;
use super::decision::{ReceivedVerdict, ReportedOutcome};
use super::observed::{Dependent, Observed, ObservedResource};
use super::request::Request;
use super::resource_step::ResourceWrite;

pub(crate) const S: Duration = Duration::from_secs(1);

/// An instant with room before it.
pub(crate) fn start() -> Instant {
    Instant::now() + 10_000 * S
}

/// A verdict that has just come and is valid for 20 s.
pub(crate) fn verdict(outcome: ReportedOutcome, observed: Instant) -> ReceivedVerdict {
    ReceivedVerdict {
        outcome,
        observer: "lease-probe-0".into(),
        observed,
        outcome_since: observed,
        list_revision: 0,
        first_revision: 0,
        valid_until: observed + 20 * S,
        message: "Because.".into(),
        evidence: None,
    }
}

/// A write on a resource of this name.
pub(crate) fn write(name: &str, direction: Direction) -> Request {
    Request {
        reference: dependent(name, 0, 0).reference,
        direction,
        timeout: 30 * S,
        write: Some((ResourceWrite::CleanUp, "1".into())),
    }
}

pub(crate) fn dependent(name: &str, up: i32, down: i32) -> DependentResource {
    let info = |level| ScaleInfo {
        level,
        initial_delay: Duration::ZERO,
        timeout: 30 * S,
        replicas: None,
    };
    DependentResource {
        reference: ResourceRef {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            name: name.into(),
        },
        optional: false,
        scale_up: info(up),
        scale_down: info(down),
    }
}

/// The same as a kind that has only a scale sub-resource.
pub(crate) fn scale_only(mut dependent: DependentResource) -> DependentResource {
    dependent.reference.api_version = "druid.gardener.cloud/v1alpha1".into();
    dependent.reference.kind = "Etcd".into();
    dependent
}

/// Gardener's configuration: kube-controller-manager up first and down last, machine-controller-manager up 30 s later,
/// the autoscaler up at the end and optional.
pub(crate) fn gardener() -> Vec<DependentResource> {
    let mut all = vec![
        dependent("kube-controller-manager", 0, 1),
        dependent("machine-controller-manager", 1, 0),
        dependent("cluster-autoscaler", 2, 0),
    ];
    all[1].scale_up.initial_delay = 30 * S;
    all[2].optional = true;
    all
}

pub(crate) fn seen(replicas: i32, ready: i32) -> ObservedResource {
    ObservedResource {
        resource_version: "1".into(),
        replicas: Some(replicas),
        ready,
        outdated: false,
        current: true,
        recorded: RecordedReplicas::Absent,
        protected: false,
        ignore_scaling: IgnoreScaling::No,
        writers: None,
    }
}

/// Held down by us with a recorded count.
pub(crate) fn held(recorded: i32) -> ObservedResource {
    ObservedResource {
        recorded: RecordedReplicas::Count(recorded),
        protected: true,
        ..seen(0, 0)
    }
}

/// Scaled down by us, and all of its pods still run.
pub(crate) fn stopping(replicas: i32) -> ObservedResource {
    ObservedResource {
        ready: replicas,
        ..held(replicas)
    }
}

/// Scaled up by us, and none of its pods runs yet.
pub(crate) fn starting(replicas: i32) -> ObservedResource {
    ObservedResource {
        ready: 0,
        ..recorded(replicas)
    }
}

/// Restored by us, and not cleaned up yet.
pub(crate) fn recorded(replicas: i32) -> ObservedResource {
    ObservedResource {
        replicas: Some(replicas),
        ready: replicas,
        ..held(replicas)
    }
}

/// Its annotation says that it must be left alone.
pub(crate) fn ignored(seen: ObservedResource) -> ObservedResource {
    ObservedResource {
        ignore_scaling: IgnoreScaling::Yes,
        ..seen
    }
}

/// Its replicas have to be read from the scale sub-resource.
pub(crate) fn unread() -> ObservedResource {
    ObservedResource {
        replicas: None,
        ..seen(0, 0)
    }
}

pub(crate) fn dependent_of(config: &DependentResource, observed: impl Into<Observed>) -> Dependent {
    Dependent {
        config: Arc::new(config.clone()),
        dropped: false,
        observed: observed.into(),
        read: true,
    }
}

impl From<ObservedResource> for Observed {
    fn from(seen: ObservedResource) -> Self {
        Self::Present(seen)
    }
}
