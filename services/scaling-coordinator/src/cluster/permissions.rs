//! The permissions that the coordinator needs on the seed.

use watchdog_kube::permissions::Permission;
use watchdog_kube::replica::PermissionGrantor;

use super::resources::Resources;
use crate::domain::resource_step::has_spec_replicas;

/// The permissions for these resources, those of the membership not included.
pub(crate) fn permissions(resources: &Resources, granted_by: PermissionGrantor) -> Vec<Permission> {
    let mut needed: Vec<Permission> = ["get", "list", "watch"]
        .into_iter()
        .map(|verb| Permission::new(verb, watchdog_api::names::CLUSTER_GROUP, "clusters"))
        .collect();
    if granted_by == PermissionGrantor::Chart {
        needed.extend(["create", "patch"].map(|verb| Permission::new(verb, "events.k8s.io", "events")));
    }
    for (reference, served) in resources.all_served() {
        for verb in ["get", "list", "watch", "patch"] {
            needed.push(Permission::new(verb, &served.group, &served.plural).named(&reference.name));
        }
        if has_spec_replicas(&reference) {
            // One patch of the object scales it.
            continue;
        }
        for verb in ["get", "update"] {
            let scale = format!("{}/scale", served.plural);
            needed.push(Permission::new(verb, &served.group, &scale).named(&reference.name));
        }
    }
    needed
}

#[cfg(test)]
mod tests {

    use kube::core::{ApiResource, GroupVersionKind};
    use watchdog_api::prober::ResourceRef;

    use super::*;
    use crate::cluster::object_index::IndexSignals;

    /// The verbs asked for on a resource and its scale sub-resource.
    fn verbs(group: &str, kind: &str, plural: &str) -> (Vec<&'static str>, Vec<&'static str>) {
        let reference = ResourceRef {
            api_version: format!("{group}/v1"),
            kind: kind.into(),
            name: "one".into(),
        };
        let resources = Resources::new(IndexSignals::default(), &[]);
        resources.add(&reference);
        let served = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural);
        resources.set_kind(&reference, Ok(served));
        let asked = permissions(&resources, PermissionGrantor::Chart);
        let on = |resource: &str| {
            let named = asked
                .iter()
                .filter(|p| p.group == group && p.name == "one" && p.resource == resource);
            named.map(|p| p.verb).collect()
        };
        (on(plural), on(&format!("{plural}/scale")))
    }

    #[test]
    fn the_scale_sub_resource_is_asked_for_only_where_it_is_written() {
        let on_object = vec!["get", "list", "watch", "patch"];
        for (kind, plural) in [("Deployment", "deployments"), ("StatefulSet", "statefulsets")] {
            assert_eq!(verbs("apps", kind, plural), (on_object.clone(), vec![]));
        }
        let of_engine = verbs("machines.example.com", "Engine", "engines");
        assert_eq!(of_engine, (on_object.clone(), vec!["get", "update"]));
        let of_replica_set = verbs("apps", "ReplicaSet", "replicasets");
        assert_eq!(of_replica_set, (on_object, vec!["get", "update"]));
    }
}
