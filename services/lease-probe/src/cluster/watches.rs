//! The watches on the seed that feed the manager.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::Api;
use kube::runtime::watcher::Config;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchdog_api::cluster::Cluster;
use watchdog_api::prober::ProberConfig;
use watchdog_api::secret::KubeconfigSecret;
use watchdog_kube::watch::{CLUSTER_PAGE, Change, Watch};
use watchdog_runtime::readiness::Readiness;

use crate::controller::prober_manager::ProberManager;
use crate::domain::endpoint::Endpoint;

/// The watches of one replica.
#[derive(Clone)]
pub struct Watches {
    /// Where they are opened.
    pub seed: kube::Client,
    /// Receives their changes.
    pub manager: Arc<ProberManager>,
    /// Blocked by each until its first list is complete.
    pub readiness: Readiness,
    /// Ends them.
    pub stop: CancellationToken,
}

impl Watches {
    /// Follows the Clusters.
    ///
    /// # Errors
    /// As [`Watch::run`].
    pub async fn clusters(self) -> anyhow::Result<()> {
        let watch = Watch {
            name: "clusters",
            api: Api::<Cluster>::all(self.seed),
            config: Config::default().page_size(CLUSTER_PAGE),
        };
        let manager = self.manager;
        watch
            .run(self.readiness, self.stop, move |change| match change {
                Change::ListBegins | Change::Failed | Change::Restored => {}
                Change::Applied(cluster) => manager.cluster_applied(&cluster),
                Change::Deleted(cluster) => manager.cluster_deleted(cluster.name()),
                Change::Synced(keys) => {
                    manager.clusters_synced(&keys.into_iter().map(|key| key.name).collect::<BTreeSet<_>>());
                }
            })
            .await
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
                    self.manager.kubeconfigs_renamed(endpoint);
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
            },
            api: Api::<KubeconfigSecret>::all(self.seed.clone()),
            config: Config::default().fields(&format!("metadata.name={secret}")),
        };
        let manager = &self.manager;
        watch
            .run(self.readiness.clone(), stop, |change| match change {
                Change::ListBegins | Change::Failed | Change::Restored => {}
                Change::Applied(secret) => {
                    let namespace = secret.metadata.namespace.as_deref().unwrap_or_default();
                    manager.kubeconfig_applied(endpoint, namespace, secret.kubeconfig());
                }
                Change::Deleted(secret) => {
                    let namespace = secret.metadata.namespace.as_deref().unwrap_or_default();
                    manager.kubeconfig_deleted(endpoint, namespace);
                }
                Change::Synced(keys) => {
                    let exist = keys.into_iter().map(|key| key.namespace).collect();
                    manager.kubeconfigs_synced(endpoint, &exist);
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
