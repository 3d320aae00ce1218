//! The permissions that the weeder needs on the seed.

use watchdog_api::weeder::WeederConfig;
use watchdog_kube::permissions::Permission;
use watchdog_kube::replica::PermissionGrantor;

use super::discovery::EndpointsApi;

/// All permissions except those on Leases.
pub(crate) fn permissions(
    source: EndpointsApi,
    config: &WeederConfig,
    granted_by: PermissionGrantor,
) -> Vec<Permission> {
    let mut needed = vec![
        Permission::new("list", "", "pods"),
        Permission::new("watch", "", "pods"),
        Permission::new("delete", "", "pods"),
    ];
    if granted_by == PermissionGrantor::Chart {
        needed.extend([
            Permission::new("create", "events.k8s.io", "events"),
            Permission::new("patch", "events.k8s.io", "events"),
        ]);
    }
    for verb in ["list", "watch"] {
        match source {
            EndpointsApi::EndpointSlices => {
                needed.push(Permission::new(verb, "discovery.k8s.io", "endpointslices"))
            }
            // Selected by name, so RBAC may limit them by resourceNames.
            EndpointsApi::Endpoints => {
                let named = |service: &String| Permission::new(verb, "", "endpoints").named(service);
                needed.extend(config.services.keys().map(named));
            }
        }
    }
    needed
}
