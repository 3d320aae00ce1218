//! Fixtures for the tests of the rules: Gardener's configuration and observed resources.

use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::prober::{DependentResource, ResourceRef, ScaleInfo};
use watchdog_api::workload::RecordedReplicas;

use super::observed::{Dependent, Observed, ObservedResource};

pub(crate) const S: Duration = Duration::from_secs(1);

/// An instant with room before it.
pub(crate) fn start() -> Instant {
    Instant::now() + 10_000 * S
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
        current: true,
        recorded: RecordedReplicas::Absent,
        protected: false,
        ignored: false,
        invalid_ignore_scaling: None,
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

/// Restored by us, and not cleaned up yet.
pub(crate) fn recorded(replicas: i32) -> ObservedResource {
    ObservedResource {
        replicas: Some(replicas),
        ready: replicas,
        ..held(replicas)
    }
}

/// Its replicas have to be read from the scale sub-resource.
pub(crate) fn unread() -> ObservedResource {
    ObservedResource {
        replicas: None,
        ..seen(0, 0)
    }
}

pub(crate) fn dependent_of(config: &DependentResource, observed: impl Into<Observed>) -> Dependent<'_> {
    Dependent {
        config,
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
