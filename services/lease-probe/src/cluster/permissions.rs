//! The permissions that lease-probe needs on the seed.

use watchdog_api::prober::ProberConfig;
use watchdog_kube::permissions::Permission;

/// All permissions; `of_replica` are those that every program needs.
pub fn permissions(config: &ProberConfig, of_replica: &[Permission]) -> Vec<Permission> {
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
