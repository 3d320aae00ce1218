//! Real Kubernetes control planes: etcd, any number of kube-apiservers on it (one as the seed, others as shoots) and
//! kube-controller-managers, with simulated kubelets in front ([`crate::nodes`]) and a simulated deployment controller
//! for the seed.
//!
//! ```text
//!   RealControlPlane ── etcd
//!     ├─ KubeApiserver "seed"    CRDs, WorkloadController (what the seed's own kubelets and controllers would do)
//!     └─ KubeApiserver "shoot"   ControllerManager (the real node lifecycle), RunningKubelets (Nodes and Leases),
//!                            NodeRecorder (every change of a node's readiness, none missed)
//! ```
//!
//! The binaries come from `tests/tools/real-kubernetes`.

mod api_server;
mod assets;
mod controller_manager;
mod crds;
mod etcd;
mod fixture;
mod gardenlet;
mod kubeconfig;
mod node_recorder;
mod pki;
mod seed_objects;
mod shoot;

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use kube::api::PostParams;
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

pub use api_server::{ApiServerOptions, KubeApiserver};
use assets::Assets;
pub use controller_manager::{ControllerManager, ControllerManagerOptions};
pub use crds::{cluster_resource, install_seed_crds, machine_resource};
pub use etcd::{Etcd, EtcdBackup};
pub use fixture::{FixtureOptions, REPLICAS, RealFixture};
pub use gardenlet::{grant_as_gardenlet, grant_probe};
pub use kubeconfig::kubeconfig;
pub(crate) use node_recorder::readiness;
pub use node_recorder::{NodeRecorder, NodeTransition, node_readiness};
pub use seed_objects::{
    create_cluster, create_deployment, create_kubeconfig_secret, create_namespace, create_released_lease,
    create_shoot, deployment, scale_of,
};
pub use shoot::{COUNTS, PROBE, RealShoot, ShootOptions};

use crate::scratch::Scratch;
use pki::Pki;

/// How long any single request of the test's own to an API server may take.
const REQUEST_BOUND: Duration = Duration::from_secs(30);

/// An etcd and the certificates that its API servers share. Start API servers on it; all of them stop working when
/// it is dropped.
#[derive(Debug)]
#[must_use = "etcd stops when this is dropped"]
pub struct RealControlPlane {
    scratch: Arc<Scratch>,
    assets: Assets,
    pki: Pki,
    pub etcd: Etcd,
}

impl RealControlPlane {
    /// Finds the binaries and starts etcd: below a second. `name` is part of the name of the temporary folder.
    pub async fn start(name: &str) -> anyhow::Result<Self> {
        Self::start_with(name, 1, &[]).await
    }

    /// The same with three members of etcd, so that one can be lost.
    pub async fn start_with_etcd_of_three(name: &str) -> anyhow::Result<Self> {
        Self::start_with(name, 3, &[]).await
    }

    /// The same with an etcd that [`Etcd::fill`] fills at once.
    pub async fn start_with_small_etcd(name: &str) -> anyhow::Result<Self> {
        Self::start_with(name, 1, &["--quota-backend-bytes=16777216"]).await
    }

    async fn start_with(name: &str, members: usize, flags: &[&str]) -> anyhow::Result<Self> {
        let assets = Assets::find()?;
        let scratch = Scratch::new(name)?;
        let pki = Pki::new(&scratch)?;
        let etcd = Etcd::start(&assets, &scratch, members, flags).await?;
        Ok(Self {
            scratch,
            assets,
            pki,
            etcd,
        })
    }

    /// Starts an API server with the default options and waits until it is ready: about ten seconds. Start several
    /// at once with `tokio::try_join!`.
    pub async fn api_server(&self, name: &str) -> anyhow::Result<KubeApiserver> {
        self.api_server_with(ApiServerOptions::new(name)).await
    }

    /// Starts an API server and waits until it is ready.
    pub async fn api_server_with(&self, options: ApiServerOptions) -> anyhow::Result<KubeApiserver> {
        KubeApiserver::start(&self.assets, &self.pki, &self.etcd, &self.scratch, options).await
    }

    /// Prepares a kube-controller-manager for an API server; [`ControllerManager::start`] starts it.
    pub fn controller_manager(
        &self,
        api_server: &KubeApiserver,
        options: &ControllerManagerOptions,
    ) -> anyhow::Result<ControllerManager> {
        ControllerManager::new(&self.assets, &self.pki, &self.scratch, api_server, options)
    }

    /// The test's folder.
    pub fn scratch(&self) -> &Arc<Scratch> {
        &self.scratch
    }
}

/// Gives a request to an API server a deadline and its error a name.
pub(crate) async fn bounded<T>(
    what: &str,
    request: impl Future<Output = kube::Result<T>>,
) -> anyhow::Result<T> {
    match timeout(REQUEST_BOUND, request).await {
        Ok(answer) => answer.with_context(|| what.to_owned()),
        Err(_) => bail!("{what}: no answer within {REQUEST_BOUND:?}"),
    }
}

/// True if a server says at this path that it is well.
async fn is_well(server: &Client, path: &str) -> anyhow::Result<bool> {
    let request = http::Request::get(path).body(Vec::new())?;
    let answer = bounded(path, server.request_text(request)).await?;
    Ok(answer == "ok")
}

async fn create<K>(api: &Api<K>, object: &K) -> anyhow::Result<()>
where
    K: Clone + Debug + DeserializeOwned + Serialize + kube::Resource,
{
    let what = format!("create in {}", api.resource_url());
    bounded(&what, api.create(&PostParams::default(), object)).await?;
    Ok(())
}

/// Makes an object unless there is one of its name.
pub(crate) async fn create_unless_there<K>(api: &Api<K>, object: &K) -> anyhow::Result<()>
where
    K: Clone + Debug + DeserializeOwned + Serialize + kube::Resource,
{
    match create(api, object).await {
        Err(error) if !exists_already(&error) => Err(error),
        _ => Ok(()),
    }
}

fn exists_already(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.is_already_exists())
}
