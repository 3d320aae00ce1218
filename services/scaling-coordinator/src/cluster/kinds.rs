//! From the kinds in the configuration to the resources that the API server serves.

use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::{ApiCapabilities, Scope, pinned_kind};
use kube::error::DiscoveryError;
use watchdog_api::prober::ResourceRef;
use watchdog_kube::client::{RequestError, request};

use crate::domain::observed::Observed;

/// How the API server serves the kind of a configured resource: in namespaces and with a scale sub-resource. If it does
/// not, or if that is not known, the resource is observed like this in all shoots.
pub(crate) type ServedKind = Result<ApiResource, Observed>;

/// Asks the API server for a kind.
pub(crate) async fn resolve(
    seed: &kube::Client,
    reference: &ResourceRef,
) -> Result<ServedKind, RequestError> {
    let wanted = GroupVersionKind::gvk(reference.group(), reference.version(), &reference.kind);
    let found = request(async {
        match pinned_kind(seed, &wanted).await {
            Err(kube::Error::Discovery(DiscoveryError::MissingKind(_))) => Ok(Err(Observed::Absent)),
            found => found.map(|(resource, capabilities)| scalable(resource, &capabilities)),
        }
    });
    match found.await {
        // The group or the version is not served.
        Err(error) if error.is_not_found() => Ok(Err(Observed::Absent)),
        answer => answer,
    }
}

fn scalable(resource: ApiResource, capabilities: &ApiCapabilities) -> ServedKind {
    let plural = &resource.plural;
    let mut subresources = capabilities.subresources.iter();
    if capabilities.scope != Scope::Namespaced {
        Err(Observed::Unusable(format!("{plural} are not namespaced")))
    } else if !subresources.any(|(sub, _)| sub.plural == "scale") {
        Err(Observed::Unusable(format!("{plural} have no scale subresource")))
    } else {
        Ok(resource)
    }
}
