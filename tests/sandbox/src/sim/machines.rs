//! The machine-controller-manager: replaces machines whose node has been Unknown for too long.

use std::collections::HashMap;

use serde_json::json;
use tokio::time::Instant;

use super::{
    StepInputs,
    kubelets::{Kubelets, LEASE_NAMESPACE},
    node_ready, objects,
};
use crate::{
    resource::keys,
    store::{WriteOptions, object::Object, random_suffix},
    time,
};

/// Looks after the machines of one shoot.
#[derive(Debug, Default)]
pub(crate) struct Machines {
    due: Option<Instant>,
    /// Since when each machine is in its phase; outlives a restart, as `lastUpdateTime` does in reality.
    since: HashMap<String, (String, Instant)>,
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
        let machines = around.seed.all(&keys::MACHINES, Some(around.namespace));
        self.since
            .retain(|name, _| machines.iter().any(|machine| machine.name() == name));
        for machine in &machines {
            self.look_at(machine, kubelets, around);
        }
        self.due
    }

    fn look_at(&mut self, machine: &Object, kubelets: &mut Kubelets, around: &StepInputs<'_>) {
        let phase = phase(machine);
        let since = match self.since.get(machine.name()) {
            Some((known, since)) if known == phase => *since,
            _ => around.now,
        };
        self.since
            .insert(machine.name().to_owned(), (phase.to_owned(), since));
        let age = around.now.duration_since(since);
        let node = machine.label("node").unwrap_or_default();
        let ready = around
            .shoot
            .find(&keys::NODES, "", node)
            .is_some_and(|node| node_ready(&node) == "True");
        match phase {
            "Running" if !ready => set_phase(around, machine.name(), "Unknown"),
            "Unknown" if ready => set_phase(around, machine.name(), "Running"),
            "Unknown" if age > around.timing.machine_health_timeout => {
                set_phase(around, machine.name(), "Failed");
            }
            "Failed" => {
                self.replaced += 1;
                set_phase(around, machine.name(), "Terminating");
                replace(machine, around);
            }
            "Terminating" if age >= around.timing.machine_step => {
                kubelets.stop(node);
                let (shoot, seed) = (around.shoot, around.seed);
                around.report("removal of a node", shoot.discard(&keys::NODES, "", node));
                around.report(
                    "removal of a lease",
                    shoot.discard(&keys::LEASES, LEASE_NAMESPACE, node),
                );
                let removed = seed.discard(&keys::MACHINES, around.namespace, machine.name());
                around.report("removal of a machine", removed);
            }
            // A machine that cannot reach the API server never joins.
            "Pending" if age >= around.timing.machine_step && !kubelets.is_cut(node, zone(machine)) => {
                kubelets.start(node, zone(machine), around);
                set_phase(around, machine.name(), "Running");
            }
            _ => {}
        }
    }
}

/// `status.currentStatus.phase`.
pub(crate) fn phase(machine: &Object) -> &str {
    machine.text("/status/currentStatus/phase")
}

/// Zone of a machine.
pub(crate) fn zone(machine: &Object) -> &str {
    machine
        .value()
        .pointer("/spec/nodeTemplate/metadata/labels")
        .and_then(|labels| labels.get("topology.kubernetes.io/zone")?.as_str())
        .unwrap_or_default()
}

fn set_phase(around: &StepInputs<'_>, name: &str, phase: &str) {
    let status = json!({ "phase": phase, "lastUpdateTime": time::seconds(around.wall) });
    let changed = around
        .seed
        .change(&keys::MACHINES, around.namespace, name, |machine| {
            machine["status"]["currentStatus"] = status;
        });
    around.report("machine phase", changed);
}

/// The successor of a machine that was given up, in the same zone.
fn replace(machine: &Object, around: &StepInputs<'_>) {
    let stem = machine
        .name()
        .rsplit_once('-')
        .map_or(machine.name(), |(stem, _)| stem);
    let name = format!("{stem}-{}", random_suffix());
    let new = objects::machine(&name, around.namespace, zone(machine), "Pending", around.wall);
    let created = around
        .seed
        .create(&keys::MACHINES, around.namespace, new, &WriteOptions::default());
    around.report("new machine", created);
}
