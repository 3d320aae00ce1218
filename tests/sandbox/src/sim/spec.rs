//! The description of a simulated shoot.

use serde::Deserialize;

use super::timing::SimTiming;

/// Name of the only worker pool of a shoot.
pub(super) const POOL: &str = "worker";

/// A shoot to simulate.
#[derive(Debug, Clone)]
pub struct SimulatedShootSpec {
    /// Gardener project.
    pub project: String,
    /// Name of the shoot within the project.
    pub name: String,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of zones that they are spread over, at least 1.
    pub zones: usize,
    /// Timing of this shoot's simulators instead of the sandbox's.
    pub timing: Option<SimTiming>,
    /// True if the Shoot states `nodeMonitorGracePeriod`; if not, readers assume 40 s.
    pub states_grace_period: bool,
    /// `status.lastOperation`: type and state.
    pub last_operation: (String, String),
}

impl SimulatedShootSpec {
    /// A shoot of project `sandbox` with `nodes` nodes in three zones.
    pub fn new(name: &str, nodes: usize) -> Self {
        Self {
            project: "sandbox".into(),
            name: name.into(),
            nodes,
            zones: 3,
            timing: None,
            states_grace_period: true,
            last_operation: ("Reconcile".into(), "Succeeded".into()),
        }
    }

    /// Spread over this many zones.
    #[must_use]
    pub fn zones(mut self, zones: usize) -> Self {
        self.zones = zones.max(1);
        self
    }

    /// With this timing.
    #[must_use]
    pub fn timing(mut self, timing: SimTiming) -> Self {
        self.timing = Some(timing);
        self
    }

    /// `shoot--<project>--<name>`: the namespace on the seed and the name of the Cluster.
    pub fn namespace(&self) -> String {
        format!("shoot--{}--{}", self.project, self.name)
    }

    /// Zone of the node with this index.
    pub(crate) fn zone(&self, index: usize) -> String {
        format!("zone-{}", index % self.zones.max(1) + 1)
    }
}

/// The kubelets that lose their connection to the API server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cut {
    /// All of them, those of machines to come included.
    All,
    /// Those in one zone, to come included.
    Zone(String),
    /// These nodes.
    Nodes(Vec<String>),
}
