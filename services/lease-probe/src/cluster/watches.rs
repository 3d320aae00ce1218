//! The watches on the seed that bring the kubeconfigs.

use std::sync::Arc;

use kube::Api;
use kube::runtime::watcher::Config;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchdog_api::prober::ProberConfig;
use watchdog_api::secret::KubeconfigSecret;
use watchdog_kube::watch::{Change, Watch};
use watchdog_runtime::readiness::Readiness;

use crate::domain::endpoint::Endpoint;

/// Follows the Secrets with the kubeconfigs for one kind of endpoint until `stop` is cancelled. Their name comes from
/// the configuration. When that changes, the Secrets of the other name are followed instead, of which nothing is known:
/// as after a restore, a list comes first.
///
/// # Errors
/// As [`Watch::run`].
pub async fn kubeconfigs(
    seed: kube::Client,
    endpoint: Endpoint,
    mut config: watch::Receiver<Arc<ProberConfig>>,
    readiness: Readiness,
    stop: CancellationToken,
    on_change: impl Fn(Change<KubeconfigSecret>) + Send + Sync,
) -> anyhow::Result<()> {
    loop {
        let secret = secret_name(&config.borrow_and_update(), endpoint);
        let differs = |config: &Arc<ProberConfig>| secret_name(config, endpoint) != secret;
        let renamed = async { config.wait_for(differs).await.map(drop) };
        let follow = async {
            let Some(secret) = &secret else {
                return std::future::pending().await;
            };
            let watch = Watch {
                name: watch_name(endpoint).into(),
                api: Api::<KubeconfigSecret>::all(seed.clone()),
                config: Config::default().fields(&format!("metadata.name={secret}")),
                ends_if_not_served: false,
            };
            watch.run(readiness.clone(), stop.clone(), &on_change).await
        };
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            result = follow => return result,
            Ok(()) = renamed => on_change(Change::Restored),
        }
    }
}

/// The name of the watch for this kind of endpoint.
pub const fn watch_name(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Internal => "kubeconfigs",
        Endpoint::External => "external-kubeconfigs",
    }
}

fn secret_name(config: &ProberConfig, endpoint: Endpoint) -> Option<String> {
    match endpoint {
        Endpoint::Internal => Some(config.kube_config_secret_name.clone()),
        Endpoint::External => config.external_kube_config_secret_name.clone(),
    }
}
