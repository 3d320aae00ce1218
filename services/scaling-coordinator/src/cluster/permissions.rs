//! What the coordinator must be allowed on the seed.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchdog_kube::permissions::{Permission, Preflight};
use watchdog_runtime::readiness::Readiness;

use super::resources::Resources;

/// The permissions for these resources, those of the membership not included.
#[must_use]
pub fn permissions(resources: &Resources) -> Vec<Permission> {
    let mut needed: Vec<Permission> = ["get", "list", "watch"]
        .into_iter()
        .map(|verb| Permission::new(verb, watchdog_api::names::CLUSTER_GROUP, "clusters"))
        .collect();
    for verb in ["create", "patch"] {
        needed.push(Permission::new(verb, "events.k8s.io", "events"));
    }
    for (reference, served) in resources.all_served() {
        for verb in ["get", "list", "watch", "patch"] {
            needed.push(Permission::new(verb, &served.group, &served.plural).named(&reference.name));
        }
        for verb in ["get", "update"] {
            let scale = format!("{}/scale", served.plural);
            needed.push(Permission::new(verb, &served.group, &scale).named(&reference.name));
        }
    }
    needed
}

/// Checks the permissions, again whenever the kind of a resource becomes known or a resource is not followed any more.
///
/// # Errors
/// Never; the type is that of a critical task.
pub async fn check(
    seed: kube::Client,
    resources: Arc<Resources>,
    others: Vec<Permission>,
    mut kinds_known: watch::Receiver<u64>,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut preflight = Preflight::new(seed, readiness);
    loop {
        kinds_known.mark_unchanged();
        let mut needed = permissions(&resources);
        needed.extend(others.iter().cloned());
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = preflight.keep_asking(&needed) => {}
            Ok(()) = kinds_known.changed() => {}
        }
    }
}
