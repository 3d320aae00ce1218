//! The permissions that the weeder needs on the seed.

use watchdog_api::weeder::WeederConfig;
use watchdog_kube::permissions::Permission;
use watchdog_kube::replica::PermissionGrantor;

use super::discovery::EndpointsApi;

/// All permissions except those on membership Leases; on Services only where their `annotations` are read.
pub(crate) fn permissions(
    source: EndpointsApi,
    config: &WeederConfig,
    annotations: bool,
    granted_by: PermissionGrantor,
) -> Vec<Permission> {
    let mut needed = vec![
        Permission::new("list", "", "pods"),
        Permission::new("watch", "", "pods"),
        Permission::new("delete", "", "pods"),
    ];
    if granted_by == PermissionGrantor::Chart {
        needed.extend([
            Permission::new("list", "", "namespaces"),
            Permission::new("watch", "", "namespaces"),
            Permission::new("create", "events.k8s.io", "events"),
            Permission::new("patch", "events.k8s.io", "events"),
        ]);
    }
    for verb in ["list", "watch"] {
        if annotations {
            needed.push(Permission::new(verb, "", "services"));
        }
        match source {
            EndpointsApi::EndpointSlices => {
                needed.push(Permission::new(verb, "discovery.k8s.io", "endpointslices"))
            }
            // Which services are annotated is not known beforehand.
            EndpointsApi::Endpoints if annotations => needed.push(Permission::new(verb, "", "endpoints")),
            // Selected by name, so RBAC may limit them by resourceNames.
            EndpointsApi::Endpoints => {
                let named = |service: &String| Permission::new(verb, "", "endpoints").named(service);
                needed.extend(config.services.keys().map(named));
            }
        }
    }
    needed
}
