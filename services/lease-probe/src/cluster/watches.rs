//! The watches on the seed: what they bring goes to a [`SeedHandler`].

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::Api;
use kube::runtime::watcher::Config;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchdog_api::cluster::Cluster;
use watchdog_api::prober::ProberConfig;
use watchdog_api::secret::KubeconfigSecret;
use watchdog_kube::watch::{Change, OnClusterChange, Watch};
use watchdog_runtime::readiness::Readiness;

use crate::domain::endpoint::Endpoint;

/// Receives the changes that the watches bring.
pub trait SeedHandler: Clone + Send + Sync + 'static {
    /// A Cluster is there, new or changed.
    fn cluster_applied(&self, cluster: &Cluster);

    /// A Cluster is gone.
    fn cluster_deleted(&self, shoot: &str);

    /// These Clusters exist and no others.
    fn clusters_synced(&self, exist: &BTreeSet<String>);

    /// A Secret with a kubeconfig is there, new or changed; `data` is its kubeconfig, if it has one, or why it cannot
    /// be read.
    fn kubeconfig_applied(&self, endpoint: Endpoint, namespace: &str, data: Result<Option<&[u8]>, &str>);

    /// A Secret with a kubeconfig is gone.
    fn kubeconfig_deleted(&self, endpoint: Endpoint, namespace: &str);

    /// Secrets with a kubeconfig exist in these namespaces and in no others.
    fn kubeconfigs_synced(&self, endpoint: Endpoint, exist: &BTreeSet<String>);

    /// Secrets of another name are watched from now on: nothing is known of them yet.
    fn kubeconfigs_renamed(&self, endpoint: Endpoint);
}

/// The watches of one replica.
#[derive(Clone)]
pub struct Watches<H> {
    /// Where they are opened.
    pub seed: kube::Client,
    /// Receives their changes.
    pub handler: H,
    /// Blocked by each until its first list is complete.
    pub readiness: Readiness,
    /// Ends them.
    pub stop: CancellationToken,
}

impl<H: SeedHandler> Watches<H> {
    /// Hands the changes of the Clusters to the handler.
    pub fn on_cluster_change(&self) -> OnClusterChange {
        let handler = self.handler.clone();
        Box::new(move |change| match change {
            Change::ListBegins | Change::Failed | Change::Restored => {}
            Change::Applied(cluster) => handler.cluster_applied(cluster),
            Change::Deleted(cluster) => handler.cluster_deleted(cluster.name()),
            Change::Synced(keys) => {
                handler.clusters_synced(&keys.iter().map(|key| key.name.clone()).collect());
            }
        })
    }

    /// Follows the Secrets with the kubeconfigs for one kind of endpoint. Their name comes from the configuration; when
    /// it changes, another name is followed.
    ///
    /// # Errors
    /// As [`Watch::run`].
    pub async fn kubeconfigs(
        self,
        endpoint: Endpoint,
        mut config: watch::Receiver<Arc<ProberConfig>>,
    ) -> anyhow::Result<()> {
        loop {
            let secret = name(&config.borrow_and_update(), endpoint);
            let differs = |config: &Arc<ProberConfig>| name(config, endpoint) != secret;
            let renamed = async { config.wait_for(differs).await.map(drop) };
            let stop_watch = self.stop.child_token();
            let follow = self.follow(endpoint, secret.as_deref(), stop_watch.clone());
            tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                result = follow => return result,
                Ok(()) = renamed => {
                    stop_watch.cancel();
                    self.handler.kubeconfigs_renamed(endpoint);
                }
            }
        }
    }

    async fn follow(
        &self,
        endpoint: Endpoint,
        secret: Option<&str>,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let Some(secret) = secret else {
            stop.cancelled().await;
            return Ok(());
        };
        let watch = Watch {
            name: match endpoint {
                Endpoint::Internal => "kubeconfigs",
                Endpoint::External => "external-kubeconfigs",
            }
            .into(),
            api: Api::<KubeconfigSecret>::all(self.seed.clone()),
            config: Config::default().fields(&format!("metadata.name={secret}")),
        };
        let handler = &self.handler;
        watch
            .run(self.readiness.clone(), stop, |change| match change {
                Change::ListBegins | Change::Failed | Change::Restored => {}
                Change::Applied(secret) => {
                    let namespace = secret.metadata.namespace.as_deref().unwrap_or_default();
                    handler.kubeconfig_applied(endpoint, namespace, secret.kubeconfig());
                }
                Change::Deleted(secret) => {
                    let namespace = secret.metadata.namespace.as_deref().unwrap_or_default();
                    handler.kubeconfig_deleted(endpoint, namespace);
                }
                Change::Synced(keys) => {
                    let exist = keys.into_iter().map(|key| key.namespace).collect();
                    handler.kubeconfigs_synced(endpoint, &exist);
                }
            })
            .await
    }
}

fn name(config: &ProberConfig, endpoint: Endpoint) -> Option<String> {
    match endpoint {
        Endpoint::Internal => Some(config.kube_config_secret_name.clone()),
        Endpoint::External => config.external_kube_config_secret_name.clone(),
    }
}
