//! The eligible leases, by the nodes and machines on the two API servers.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use watchdog_proto::probe::v1::{Evidence, Exclusion, Outcome};
use watchdog_sandbox::resource::keys;
use watchdog_test_support::in_process::{delete, modify};
use watchdog_test_support::simulation::{Cut, SimulatedShoot};

use crate::fixture::{Fixture, NODE_LEASES, faster, without_controllers};
use crate::replica::{Replica, evidence};

fn excluded(evidence: &Evidence) -> BTreeMap<Exclusion, u32> {
    let counts = evidence.excluded.iter();
    counts.map(|count| (count.reason(), count.leases)).collect()
}

fn node(shoot: &SimulatedShoot, name: &str, change: impl FnOnce(&mut Value)) {
    modify(shoot.api(), &keys::NODES, "", name, change).unwrap();
}

fn condition(shoot: &SimulatedShoot, name: &str, kind: &str, status: &str, reason: &str) {
    node(shoot, name, |node| {
        let conditions = node["status"]["conditions"].as_array_mut().unwrap();
        conditions.retain(|condition| condition["type"] != kind);
        conditions.push(json!({ "type": kind, "status": status, "reason": reason }));
    });
}

fn phase(fixture: &Fixture, shoot: &SimulatedShoot, machine: &str, phase: &str) {
    let set = |machine: &mut Value| machine["status"]["currentStatus"]["phase"] = phase.into();
    modify(fixture.seed(), &keys::MACHINES, shoot.namespace(), machine, set).unwrap();
}

#[tokio::test]
async fn only_eligible_leases_are_counted() {
    let fixture = Fixture::new(faster(), 9, &["alpha"]).await;
    let alpha = fixture.shoot("alpha");
    without_controllers(&alpha).await;
    // Every machine has the name of its node.
    let names: Vec<_> = alpha.nodes().into_iter().map(|node| node.name).collect();
    node(&alpha, &names[0], |node| {
        node["metadata"]["annotations"]["node.machine.sapcloud.io/not-managed-by-mcm"] = "1".into();
    });
    condition(
        &alpha,
        &names[1],
        "DiskPressure",
        "True",
        "KubeletHasDiskPressure",
    );
    condition(&alpha, &names[2], "InPlaceUpdate", "False", "ReadyForUpdate");
    delete(fixture.seed(), &keys::MACHINES, alpha.namespace(), &names[3]).unwrap();
    phase(&fixture, &alpha, &names[4], "Failed");
    phase(&fixture, &alpha, &names[5], "Terminating");
    let orphans = [
        (
            "gone",
            json!({ "renewTime": "2020-01-01T00:00:00.000000Z", "leaseDurationSeconds": 4 }),
        ),
        ("muddled", json!({ "renewTime": "yesterday" })),
    ];
    for (name, spec) in orphans {
        let lease = json!({ "metadata": { "name": name }, "spec": spec });
        alpha.api().create(&keys::LEASES, NODE_LEASES, lease).unwrap();
    }

    // Nobody has seen a renewal of this one.
    alpha.cut(Cut::All);
    modify(alpha.api(), &keys::LEASES, NODE_LEASES, &names[6], |lease| {
        lease["spec"].as_object_mut().unwrap().remove("renewTime");
    })
    .unwrap();
    let replica = Replica::start(&fixture).await;
    let lost = replica.until_outcome(&alpha, Outcome::LeasesExpired).await;
    let one_each = [
        Exclusion::NotManagedByMcm,
        Exclusion::UnhealthyCondition,
        Exclusion::InPlaceUpdate,
        Exclusion::NoMachine,
        Exclusion::MachineFailed,
        Exclusion::MachineTerminating,
        Exclusion::NoNode,
        Exclusion::NoRenewTime,
        Exclusion::MalformedLease,
    ];
    let found = evidence(&lost);
    assert_eq!(excluded(found), one_each.map(|reason| (reason, 1)).into());
    assert_eq!(
        (found.nodes, found.leases, found.candidates, found.expired),
        (Some(9), 11, 2, 2)
    );
}
