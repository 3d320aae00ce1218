//! Simulated shoots, with second-scale timing.

#![cfg(test)]

use std::time::Duration;

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Secret},
};
use kube::{Api, api::ListParams};
use watchdog_test_support::fixtures::PROBE_SECRET;
use watchdog_test_support::in_process::eventually;
use watchdog_test_support::sandboxed::client;
use watchdog_test_support::simulation::{
    Cut, Sandbox, SandboxConfig, SimTiming, SimulatedShoot, SimulatedShootSpec,
};

/// Everything 40 times faster: the grace period is a second, a machine is replaced after 15.
fn fast() -> SimTiming {
    SimTiming {
        machine_health_timeout: Duration::from_secs(2),
        ..SimTiming::scaled(40.0)
    }
}

async fn one_shoot(timing: SimTiming, nodes: usize) -> (Sandbox, SimulatedShoot) {
    let config = SandboxConfig {
        timing,
        ..SandboxConfig::default()
    };
    let sandbox = Sandbox::start(config).await.unwrap();
    let spec = SimulatedShootSpec::new("alpha", nodes);
    let shoot = sandbox.add_shoot(spec).await.unwrap();
    (sandbox, shoot)
}

/// The kubeconfig of the Secret leads to the shoot, with no more rights than Gardener grants.
#[tokio::test]
async fn the_probe_has_the_rights_that_gardener_grants() {
    let (sandbox, shoot) = one_shoot(fast(), 6).await;
    let seed = client(&sandbox.seed().kubeconfig("admin")).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(seed, shoot.namespace());
    let secret = secrets.get(PROBE_SECRET).await.unwrap();
    let kubeconfig = String::from_utf8(secret.data.unwrap()["kubeconfig"].0.clone()).unwrap();
    let probe = client(&kubeconfig).await.unwrap();
    let leases: Api<Lease> = Api::namespaced(probe.clone(), "kube-node-lease");
    assert_eq!(leases.list(&ListParams::default()).await.unwrap().items.len(), 6);
    assert!(leases.watch(&Default::default(), "0").await.is_err());
    let nodes: Api<Node> = Api::all(probe.clone());
    assert_eq!(nodes.list(&ListParams::default()).await.unwrap().items.len(), 6);
    let other: Api<Secret> = Api::namespaced(probe, "default");
    assert!(other.list(&ListParams::default()).await.is_err());

    shoot.rotate_kubeconfig().unwrap();
    assert!(
        nodes.list(&ListParams::default()).await.is_err(),
        "the old token is invalid"
    );
    let nodes: Api<Node> = Api::all(client(&shoot.probe_kubeconfig()).await.unwrap());
    nodes.list(&ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn replaced_machines_join_when_the_network_is_back() {
    let (_sandbox, shoot) = one_shoot(fast(), 6).await;
    shoot.cut(Cut::All);
    eventually("all machines are replaced", || shoot.machines_replaced() == 6).await;
    shoot.heal();
    eventually("six machines run, and six nodes are ready", || {
        let (machines, nodes) = (shoot.machines(), shoot.nodes());
        let running = machines.iter().filter(|machine| machine.phase == "Running");
        let ready = nodes.iter().filter(|node| node.ready == "True");
        (machines.len(), running.count(), nodes.len(), ready.count()) == (6, 6, 6, 6)
    })
    .await;
}

#[tokio::test]
async fn a_stopped_api_server_stops_renewals_and_controllers() {
    let (_sandbox, shoot) = one_shoot(fast(), 6).await;
    shoot.api().stop().await.unwrap();
    let renewed = shoot.nodes()[0].renew_time.clone();
    tokio::time::sleep(fast().node_monitor_grace_period * 2).await;
    assert_eq!(shoot.marked_unknown(), 0, "the controller sees nothing");
    assert!(shoot.nodes()[0].renew_time <= renewed);
    shoot.api().resume().await.unwrap();
    eventually("leases are renewed", || shoot.nodes()[0].renew_time > renewed).await;
    assert_eq!(shoot.marked_unknown(), 0);
}
