//! The description of a simulated shoot.

use serde::Deserialize;

use super::timing::SimTiming;

/// Name of the only worker pool of a shoot.
pub(super) const POOL: &str = "worker";

/// A shoot to simulate.
#[derive(Debug, Clone)]
pub struct SimulatedShootSpec {
    /// Name of the shoot within the project.
    pub name: String,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of zones that they are spread over, at least 1.
    pub zones: usize,
    /// Timing of this shoot's simulators instead of the sandbox's.
    pub timing: Option<SimTiming>,
}

impl SimulatedShootSpec {
    /// A shoot of project `sandbox` with `nodes` nodes in three zones.
    pub fn new(name: &str, nodes: usize) -> Self {
        Self {
            name: name.into(),
            nodes,
            zones: 3,
            timing: None,
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

    /// The namespace on the seed and the name of the Cluster.
    pub fn namespace(&self) -> String {
        format!("shoot--sandbox--{}", self.name)
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
    /// All of them, those to come included.
    All,
    /// Those in one zone, to come included.
    Zone(String),
    /// These nodes.
    Nodes(Vec<String>),
}
