//! Waits until the other replicas of the coordinator are gone, for `--release-all`.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;
use watchdog_kube::client::request;
use watchdog_kube::key::ObjectKey;
use watchdog_kube::membership::{Discovery, Exclusive, Membership as _, MembershipConfig, Share, Timing};
use watchdog_runtime::backoff::Backoff;
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::tasks::Tasks;

pub(crate) struct OtherReplicas {
    pub(crate) seed: kube::Client,
    pub(crate) service: &'static str,
    pub(crate) namespace: String,
    pub(crate) timing: Timing,
    pub(crate) readiness: Readiness,
}

impl OtherReplicas {
    /// Scales their Deployment to 0, and tries again until the deadline unless that is forbidden.
    pub(crate) async fn stop_deployment(
        &self,
        deployment: &ObjectKey,
        deadline: Instant,
    ) -> anyhow::Result<()> {
        let deployments: Api<Deployment> = Api::namespaced(self.seed.clone(), &deployment.namespace);
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

    /// Waits until no membership Lease of a replica is left.
    pub(crate) async fn gone(&self, tasks: &Tasks) -> anyhow::Result<()> {
        let (mut found, discovery) = Discovery::follow(
            self.seed.clone(),
            &self.namespace,
            self.service,
            self.timing,
            self.readiness.clone(),
            tasks.draining(),
        );
        tasks.critical("discovery", async move {
            discovery.run().await;
            Ok(())
        });
        loop {
            found.changed().await?;
            let replicas: Vec<_> = found
                .borrow_and_update()
                .keys()
                .map(ToString::to_string)
                .collect();
            if replicas.is_empty() {
                return Ok(());
            }
            let replicas = replicas.join(", ");
            tracing::info!(
                replicas,
                "waiting until the replicas of the coordinator have stopped"
            );
        }
    }

    /// Joins the replicas in their place.
    pub(crate) fn replace(&self, identity: &str, tasks: &Tasks) -> Exclusive {
        let config = MembershipConfig {
            client: self.seed.clone(),
            namespace: self.namespace.clone(),
            service: self.service,
            identity: identity.to_owned(),
            // It serves nothing; the port is none to connect to.
            address: "0.0.0.0:0".to_owned(),
            readiness: self.readiness.clone(),
            timing: self.timing,
        };
        let (membership, member) = Exclusive::join(config, tasks.draining());
        tasks.critical("membership", async move {
            member.run().await;
            Ok(())
        });
        membership
    }
}

/// The other members that have not left.
pub(crate) fn others(membership: &Share) -> Vec<String> {
    membership.others().iter().map(ToString::to_string).collect()
}

pub(crate) async fn alone(membership: &Share) {
    let mut changes = membership.subscribe();
    loop {
        changes.mark_unchanged();
        if membership.has_joined() && others(membership).is_empty() {
            return;
        }
        // The sender lives in the membership.
        let _ = changes.changed().await;
    }
}
