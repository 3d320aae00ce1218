//! The permissions that lease-probe needs on the seed.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchdog_api::prober::ProberConfig;
use watchdog_kube::permissions::{Permission, Preflight};
use watchdog_runtime::readiness::Readiness;

/// Asks the seed for all that lease-probe must be allowed, at the start and whenever a change of the configuration
/// changes it, until `stop` is cancelled. `of_replica` are those that every program needs.
pub async fn preflight(
    seed: kube::Client,
    of_replica: Vec<Permission>,
    mut config: watch::Receiver<Arc<ProberConfig>>,
    readiness: Readiness,
    stop: CancellationToken,
) {
    let mut preflight = Preflight::new(seed, readiness);
    loop {
        let needed = needed(&config.borrow_and_update(), &of_replica);
        let differ = |config: &Arc<ProberConfig>| self::needed(config, &of_replica) != needed;
        let changed = async { config.wait_for(differ).await.map(drop) };
        tokio::select! {
            () = stop.cancelled() => return,
            () = preflight.keep_asking(&needed) => {}
            Ok(()) = changed => {}
        }
    }
}

fn needed(config: &ProberConfig, of_replica: &[Permission]) -> Vec<Permission> {
    let mut needed = vec![
        Permission::new("list", "extensions.gardener.cloud", "clusters"),
        Permission::new("watch", "extensions.gardener.cloud", "clusters"),
        Permission::new("list", "machine.sapcloud.io", "machines"),
    ];
    let secrets = [
        Some(&config.kube_config_secret_name),
        config.external_kube_config_secret_name.as_ref(),
    ];
    for secret in secrets.into_iter().flatten() {
        needed.push(Permission::new("list", "", "secrets").named(secret));
        needed.push(Permission::new("watch", "", "secrets").named(secret));
    }
    needed.extend(of_replica.iter().cloned());
    needed
}
