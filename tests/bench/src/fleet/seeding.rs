//! Puts what Gardener keeps for a shoot on a seed: namespace, kubeconfig Secret, Machines, dependants, Cluster.

use anyhow::Context;
use futures::stream::{self, StreamExt, TryStreamExt};
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client};
use serde_json::Value;
use watchdog_test_support::fixtures::{self, CA, KCM, MCM, PROBE_SECRET};
use watchdog_test_support::real::{
    create_cluster, create_deployment, create_kubeconfig_secret, create_namespace, install_seed_crds,
    kubeconfig, machine_resource,
};

use super::{Fleet, FleetShoot};
use crate::rig::RigOptions;

/// Requests at the same time: enough to keep an API server on a few cores busy.
const AT_ONCE: usize = 32;

/// The grace period of every shoot's kube-controller-manager: the default.
const GRACE_PERIOD: &str = "40s";

/// The user that the prober is in the shoots.
const USER: &str = "dependency-watchdog-probe";

/// Its token, which the fleet takes as it takes any.
const TOKEN: &str = "probe";

/// The replicas of the dependants before the first scale-down.
const DEPENDANTS: [(&str, i32); 3] = [(KCM, 1), (MCM, 1), (CA, 1)];

/// Where callers find the shoots.
#[derive(Debug, Clone)]
pub struct ShootEndpoint {
    /// Port of all shoots; each has a loopback address of its own.
    pub port: u16,
    /// The authority to trust, PEM.
    pub ca_pem: String,
}

impl ShootEndpoint {
    /// The kubeconfig for the shoot with this index. The server name tells the fleet which shoot is meant.
    pub fn kubeconfig(&self, index: usize) -> anyhow::Result<String> {
        let url = format!("https://{}:{}", Fleet::address(index), self.port);
        let mut value: Value = serde_json::from_str(&kubeconfig(&url, &self.ca_pem, USER, TOKEN))?;
        if let Some(cluster) = value.pointer_mut("/clusters/0/cluster") {
            cluster["tls-server-name"] = Fleet::server_name(index).into();
        }
        Ok(value.to_string())
    }
}

/// Puts all shoots on the seed; the Cluster of each comes last, as in Gardener.
pub async fn seed(
    fleet: &Fleet,
    client: &Client,
    endpoint: &ShootEndpoint,
    options: &RigOptions,
) -> anyhow::Result<()> {
    if options.real {
        install_seed_crds(client).await?;
    }
    create_namespace(client, "garden").await?;
    stream::iter(fleet.shoots().iter().enumerate().map(anyhow::Ok))
        .try_for_each_concurrent(AT_ONCE, |(index, shoot)| async move {
            let kubeconfig = endpoint.kubeconfig(index)?;
            one(client, shoot, &kubeconfig, options)
                .await
                .with_context(|| format!("put {} on the seed", shoot.name))
        })
        .await
}

async fn one(
    client: &Client,
    shoot: &FleetShoot,
    kubeconfig: &str,
    options: &RigOptions,
) -> anyhow::Result<()> {
    create_namespace(client, &shoot.name).await?;
    create_kubeconfig_secret(client, &shoot.name, PROBE_SECRET, kubeconfig).await?;
    if options.dependants {
        for (name, replicas) in DEPENDANTS {
            create_deployment(client, &shoot.name, name, replicas).await?;
        }
    }
    if options.machines {
        let machines: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), &shoot.name, &machine_resource());
        let all = stream::iter(0..shoot.nodes).map(|node| {
            let (machines, machine) = (machines.clone(), machine(&shoot.node_name(node)));
            async move { anyhow::Ok(machines.create(&PostParams::default(), &machine?).await?) }
        });
        all.buffer_unordered(4).try_collect::<Vec<_>>().await?;
    }
    create_cluster(client, &shoot.name, fixtures::shoot(GRACE_PERIOD)).await
}

/// A Machine as machine-controller-manager keeps it for a node that has joined: about 2 kB.
fn machine(node: &str) -> anyhow::Result<DynamicObject> {
    let text = include_str!("machine.json").replace("|name|", node);
    Ok(serde_json::from_str(&text)?)
}
