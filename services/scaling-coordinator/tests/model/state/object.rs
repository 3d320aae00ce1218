//! A Deployment as the API server has it, and how two of them are configured.

use std::time::Duration;

use scaling_coordinator::domain::Direction;
use scaling_coordinator::domain::observed::ObservedResource;
use scaling_coordinator::domain::request::Request;
use watchdog_api::prober::{DependentResource, ResourceRef, ScaleInfo};
use watchdog_api::workload::{IgnoreScaling, RecordedReplicas};

use crate::rules::Rules;

const NAMES: [&str; 2] = ["kube-controller-manager", "machine-controller-manager"];

/// A Deployment, or something like it, as the API server has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Object {
    pub(super) version: u32,
    pub(super) replicas: i32,
    pub(super) ready: i32,
    pub(super) current: bool,
    pub(super) recorded: Option<i32>,
    pub(super) protected: bool,
    /// The last version that came out of the blue: by somebody else, or by a write that nobody waited for any more.
    pub(super) surprise: u32,
}

/// The two resources as they are configured, or all on one level.
pub(super) fn dependents(rules: Rules, in_order: bool) -> Vec<DependentResource> {
    let in_two_steps = rules.in_two_steps;
    let info = |level: i32| ScaleInfo {
        level: if in_order { level } else { 0 },
        initial_delay: Duration::ZERO,
        timeout: Duration::from_secs(30),
        replicas: None,
    };
    let dependent = |(name, (up, down)): (&&str, (i32, i32))| DependentResource {
        reference: ResourceRef {
            api_version: if in_two_steps { "example.com/v1" } else { "apps/v1" }.into(),
            kind: if in_two_steps { "Engine" } else { "Deployment" }.into(),
            name: (*name).into(),
        },
        optional: false,
        scale_up: info(up),
        scale_down: info(down),
    };
    NAMES.iter().zip(rules.levels).map(dependent).collect()
}

/// The index of the object that a request targets.
pub(super) fn index(request: &Request) -> usize {
    usize::from(request.reference.name == NAMES[1])
}

impl Object {
    pub(super) fn seen(&self) -> ObservedResource {
        ObservedResource {
            resource_version: self.version.to_string().into(),
            replicas: Some(self.replicas),
            ready: self.ready,
            outdated: false,
            current: self.current,
            recorded: self
                .recorded
                .map_or(RecordedReplicas::Absent, RecordedReplicas::Count),
            protected: self.protected,
            ignore_scaling: IgnoreScaling::No,
            writers: None,
        }
    }

    pub(super) fn scale(&mut self, replicas: i32) {
        (self.replicas, self.current) = (replicas, false);
        self.version += 1;
    }

    pub(super) fn has_reached(&self, direction: Direction) -> bool {
        match direction {
            Direction::Down => self.replicas == 0 && self.ready == 0,
            Direction::Up | Direction::Release => self.replicas > 0 && self.ready > 0,
        }
    }
}
