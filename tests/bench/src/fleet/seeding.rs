//! Puts what Gardener keeps for a shoot on a seed: namespace, kubeconfig Secret, Machines, dependants, Cluster.

use std::path::Path;

use anyhow::Context;
use futures::stream::{self, StreamExt, TryStreamExt};
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::json;
use watchdog_test_support::fixtures::{self, CA, KCM, MCM, PROBE_SECRET};
use watchdog_test_support::real::{
    cluster_resource, create_cluster, create_deployment, create_kubeconfig_secret, create_namespace,
    install_seed_crds, kubeconfig, machine_resource,
};

use super::process::FleetProcessOptions;
use super::{Fleet, FleetShoot, template};

/// Requests at the same time: enough to keep an API server on a few cores busy.
const AT_ONCE: usize = 32;

/// The grace period of every shoot's kube-controller-manager: the default.
const GRACE_PERIOD: &str = "40s";

/// The user that the prober is in the shoots.
const USER: &str = "dependency-watchdog-probe";

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

/// A client for the seed.
///
/// # Errors
/// When the file cannot be read or used.
pub async fn client(file: &Path) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(file).with_context(|| format!("read {}", file.display()))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

impl ShootEndpoint {
    /// The kubeconfig for the shoot with this index. The server name tells the fleet which shoot is meant.
    ///
    /// # Errors
    /// Never in practice: the text that it changes is its own.
    pub fn kubeconfig(&self, index: usize, token: &str) -> anyhow::Result<String> {
        let url = format!("https://{}:{}", Fleet::address(index), self.port);
        let text = kubeconfig(&url, &self.ca_pem, USER, token);
        let mut value: serde_json::Value = serde_json::from_str(&text)?;
        let cluster = value
            .pointer_mut("/clusters/0/cluster")
            .and_then(|v| v.as_object_mut());
        cluster
            .context("a kubeconfig without a cluster")?
            .insert("tls-server-name".into(), Fleet::server_name(index).into());
        Ok(value.to_string())
    }
}

/// Puts all shoots on the seed; the Cluster of each comes last, as in Gardener.
///
/// # Errors
/// When the seed refuses or does not answer.
pub async fn seed(
    fleet: &Fleet,
    client: &Client,
    endpoint: &ShootEndpoint,
    options: &FleetProcessOptions,
) -> anyhow::Result<()> {
    let clusters: Api<DynamicObject> = Api::all_with(client.clone(), &cluster_resource());
    if clusters.list(&ListParams::default().limit(1)).await.is_err() {
        install_seed_crds(client).await?;
    }
    create_namespace(client, "garden").await?;
    stream::iter(fleet.shoots().iter().enumerate().map(anyhow::Ok))
        .try_for_each_concurrent(AT_ONCE, |(index, shoot)| async move {
            let kubeconfig = endpoint.kubeconfig(index, &fleet.token)?;
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
    options: &FleetProcessOptions,
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
            async move { machines.create(&PostParams::default(), &machine).await }
        });
        all.buffer_unordered(4).try_collect::<Vec<_>>().await?;
    }
    create_cluster(client, &shoot.name, fixtures::shoot(GRACE_PERIOD)).await
}

/// A Machine as machine-controller-manager keeps it for a node that has joined: about 2 kB.
fn machine(node: &str) -> DynamicObject {
    let zone = "eu-west-1a";
    let labels = json!({
        "networking.gardener.cloud/node-local-dns-enabled": "false", "node.kubernetes.io/role": "node",
        "worker.gardener.cloud/pool": "worker", "worker.gardener.cloud/system-components": "true",
        "topology.kubernetes.io/zone": zone, "worker.gardener.cloud/kubernetes-version": "1.33.4",
    });
    let now = template::time(super::now()).to_string();
    let mut machine = DynamicObject::new(node, &machine_resource()).data(json!({
        "spec": {
            "class": {"apiGroup": "machine.sapcloud.io", "kind": "MachineClass", "name": "worker-z1"},
            "providerID": "aws:///eu-west-1/i-0123456789abcdef0",
            "nodeTemplate": {"metadata": {"labels": labels}, "spec": {}},
        },
        "status": {
            "currentStatus": {"phase": "Running", "lastUpdateTime": now},
            "lastOperation": {
                "description": format!("Machine {node} successfully joined the cluster"),
                "lastUpdateTime": now, "state": "Successful", "type": "Create",
            },
        },
    }));
    machine.metadata.labels = Some([("node".to_owned(), node.to_owned())].into());
    machine.metadata.finalizers = Some(vec!["machine.sapcloud.io/machine-controller-manager".to_owned()]);
    machine
}
