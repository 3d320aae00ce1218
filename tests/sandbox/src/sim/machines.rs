//! The machine-controller-manager: replaces machines whose node has been lost for too long.

use std::collections::HashMap;

use tokio::time::Instant;

use super::{
    StepInputs,
    kubelets::{Kubelets, LEASE_NAMESPACE},
    node_ready, objects,
};
use crate::{
    resource::keys,
    store::{WriteOptions, object::Object, random_suffix},
};

/// Looks after the machines of one shoot.
#[derive(Debug, Default)]
pub(crate) struct Machines {
    due: Option<Instant>,
    /// Since when the node of each machine is not ready.
    unready: HashMap<String, Instant>,
    /// How many machines were given up and replaced.
    pub(crate) replaced: u64,
}

impl Machines {
    /// Looks at all machines when it is time to, if `running`.
    pub(crate) fn step(
        &mut self,
        running: bool,
        kubelets: &mut Kubelets,
        around: &StepInputs<'_>,
    ) -> Option<Instant> {
        if !running {
            self.due = None;
            return None;
        }
        let due = *self.due.get_or_insert(around.now);
        if around.now < due {
            return Some(due);
        }
        self.due = Some(around.now + around.timing.node_monitor_period);
        for machine in &around.seed.all(&keys::MACHINES, Some(around.namespace)) {
            self.look_at(machine, kubelets, around);
        }
        self.due
    }

    fn look_at(&mut self, machine: &Object, kubelets: &mut Kubelets, around: &StepInputs<'_>) {
        let node = machine.label("node").unwrap_or_default();
        // A machine whose node has not joined yet is waited for.
        let lost = around
            .shoot
            .find(&keys::NODES, "", node)
            .is_some_and(|node| node_ready(&node) != "True");
        if !lost {
            self.unready.remove(machine.name());
            return;
        }
        let since = *self
            .unready
            .entry(machine.name().to_owned())
            .or_insert(around.now);
        if around.now.duration_since(since) > around.timing.machine_health_timeout {
            self.unready.remove(machine.name());
            self.replaced += 1;
            replace(machine, node, kubelets, around);
        }
    }
}

/// Removes a machine with its node, and makes another one in its zone. A new kubelet that cannot reach the API server
/// does not register.
fn replace(machine: &Object, node: &str, kubelets: &mut Kubelets, around: &StepInputs<'_>) {
    let (shoot, seed) = (around.shoot, around.seed);
    kubelets.stop(node);
    for (what, removed) in [
        ("removal of a node", shoot.discard(&keys::NODES, "", node)),
        (
            "removal of a lease",
            shoot.discard(&keys::LEASES, LEASE_NAMESPACE, node),
        ),
        (
            "removal of a machine",
            seed.discard(&keys::MACHINES, around.namespace, machine.name()),
        ),
    ] {
        around.report(what, removed);
    }
    let (stem, zone) = (machine.name().rsplit_once('-'), zone(machine));
    let name = format!(
        "{}-{}",
        stem.map_or(machine.name(), |(stem, _)| stem),
        random_suffix()
    );
    let new = objects::machine(&name, around.namespace, zone, around.wall);
    let created = seed.create(&keys::MACHINES, around.namespace, new, &WriteOptions::default());
    around.report("new machine", created);
    kubelets.start(&name, zone, around);
}

fn zone(machine: &Object) -> &str {
    machine
        .value()
        .pointer("/spec/nodeTemplate/metadata/labels")
        .and_then(|labels| labels.get("topology.kubernetes.io/zone")?.as_str())
        .unwrap_or_default()
}
