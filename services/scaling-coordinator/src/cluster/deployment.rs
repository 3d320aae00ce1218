//! Stops the Deployment of the coordinator, for `--release-all`.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;
use watchdog_kube::client::request;
use watchdog_kube::key::ObjectKey;
use watchdog_runtime::backoff::Backoff;

/// Scales a Deployment to 0, and tries again until the deadline unless that is forbidden.
pub(crate) async fn stop(
    seed: &kube::Client,
    deployment: &ObjectKey,
    deadline: Instant,
) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(seed.clone(), &deployment.namespace);
    let patch = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(15));
    loop {
        let stopped =
            request(deployments.patch_scale(&deployment.name, &PatchParams::default(), &patch)).await;
        let error = match stopped {
            Ok(_) => {
                tracing::info!(%deployment, "scaled the Deployment to 0");
                return Ok(());
            }
            Err(error) if error.is_not_found() => {
                tracing::info!(%deployment, "the Deployment does not exist");
                return Ok(());
            }
            Err(error) => error,
        };
        let pause = backoff.next_delay().max(error.retry_after().unwrap_or_default());
        let in_time = Instant::now() + pause < deadline;
        anyhow::ensure!(
            in_time && !error.is_forbidden(),
            "the Deployment {deployment} could not be scaled to 0: {error}"
        );
        tracing::warn!(%deployment, %error, "the Deployment could not be scaled to 0; trying again");
        tokio::time::sleep(pause).await;
    }
}
