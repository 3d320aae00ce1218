//! The shoot that a scenario asks for.

use crate::times::Times;
use watchdog_test_support::real::ShootOptions;

/// The description of a shoot.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Number of nodes.
    pub(crate) nodes: usize,
    /// Zones that they are spread over, `zone-1` and on.
    pub(crate) zones: usize,
    /// True if nodes and machines that are lost are counted. It takes a kube-controller-manager.
    pub(crate) counted: bool,
    /// True if they are also counted at a twin that nobody watches over. It takes an API server more.
    pub(crate) twin: bool,
    /// True if the watchdog reaches its API server through a fault proxy.
    pub(crate) proxy: bool,
    /// Its grace period, in those of everybody else.
    pub(crate) grace: f64,
}

impl Plan {
    /// Nodes in one zone, nothing else special.
    pub(crate) const fn nodes(nodes: usize) -> Self {
        Self {
            nodes,
            zones: 1,
            counted: false,
            twin: false,
            proxy: false,
            grace: 1.0,
        }
    }

    /// Spread over this many zones.
    pub(crate) const fn zones(mut self, zones: usize) -> Self {
        self.zones = zones;
        self
    }

    /// Counting what an outage costs.
    pub(crate) const fn counted(mut self) -> Self {
        self.counted = true;
        self
    }

    /// Counting what an outage costs, with the watchdog and without it.
    pub(crate) const fn with_twin(mut self) -> Self {
        self.twin = true;
        self.counted()
    }

    /// With a fault proxy between the watchdog and its API server.
    pub(crate) const fn behind_proxy(mut self) -> Self {
        self.proxy = true;
        self
    }

    /// With a grace period so many times that of the others.
    pub(crate) const fn grace(mut self, factor: f64) -> Self {
        self.grace = factor;
        self
    }

    /// With the grace period of Kubernetes, 40 s, of which 10 s are left after the verdict: for a scenario in which no
    /// node may turn Unknown although the machine is busy.
    pub(crate) const fn default_grace(self) -> Self {
        self.grace(2.5)
    }

    pub(super) fn of(&self, times: &Times) -> ShootOptions {
        ShootOptions {
            zones: self.zones,
            machine_health_timeout: times.machine_health_timeout,
            ..ShootOptions::nodes(self.nodes, times.grace)
        }
    }
}
