//! How a replica of a service takes its place on the seed.

use watchdog_runtime::foundation::Foundation;
use watchdog_runtime::sole::Sole;

use crate::membership::{Membership, MembershipConfig, Ownership, Timing};
use crate::{client, membership, metrics};

/// Where this process is the only one of its identity in its Pod: the UID of the Pod, and what makes sure of that.
fn claim(foundation: &Foundation, service: &str) -> Option<(String, Sole)> {
    let uid = foundation.common.pod_uid.clone()?;
    match Sole::claim(service, &uid, &foundation.identity) {
        Ok(sole) => Some((uid, sole)),
        Err(error) => {
            tracing::warn!(
                service,
                identity = %foundation.identity,
                %error,
                "another process of this Pod seems to have the identity of this one, not taking it for a predecessor"
            );
            None
        }
    }
}

/// A replica: its client for the seed and its membership.
#[derive(Clone)]
pub struct Replica {
    /// Client for the seed.
    pub seed: kube::Client,
    /// Membership among the replicas of the service.
    pub membership: Membership,
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica")
            .field("membership", &self.membership)
            .finish_non_exhaustive()
    }
}

impl Replica {
    /// Connects to the seed and joins the replicas of `service`. The blocker `membership` stays until it has joined;
    /// its Lease is released at the drain.
    ///
    /// # Errors
    /// When there is no way to the seed.
    pub async fn join(
        foundation: &Foundation,
        service: &'static str,
        ownership: Ownership,
        timing: Timing,
    ) -> anyhow::Result<Self> {
        metrics::register();
        membership::metrics::register();
        let agent = format!("{service}/{}", env!("CARGO_PKG_VERSION"));
        let seed = client::seed(foundation.common.kubeconfig.as_deref(), &agent).await?;
        let config = MembershipConfig {
            client: seed.clone(),
            namespace: foundation.common.namespace.clone(),
            service,
            identity: foundation.identity.to_string(),
            address: foundation.common.advertised(foundation.grpc_addr),
            ownership,
            readiness: foundation.readiness.clone(),
            timing,
        };
        let (membership, task) = Membership::join(config, foundation.draining.clone());
        let (task, sole) = match claim(foundation, service) {
            Some((uid, sole)) => (task.in_pod(&uid), Some(sole)),
            None => (task, None),
        };
        foundation.tasks.critical("membership", async move {
            task.run().await;
            // Another process may live in this Pod from now on.
            drop(sole);
            Ok(())
        });
        let readiness = foundation.readiness.clone();
        readiness.block(
            "membership",
            "this replica has not joined yet: it needs its own Lease, and a list of the others'",
        );
        let (joining, stop) = (membership.clone(), foundation.draining.clone());
        foundation.tasks.critical("joined", async move {
            tokio::select! {
                () = joining.joined() => readiness.clear("membership"),
                () = stop.cancelled() => {}
            }
            stop.cancelled().await;
            Ok(())
        });
        Ok(Self { seed, membership })
    }
}
