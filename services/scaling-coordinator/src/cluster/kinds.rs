//! From the kinds in the configuration to the resources that the API server serves.

use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::{ApiCapabilities, Scope, pinned_kind};
use kube::error::DiscoveryError;
use watchdog_api::prober::ResourceRef;
use watchdog_kube::client::{RequestError, request};

/// How the API server serves the kind of a configured resource.
#[derive(Debug, Clone)]
pub(crate) enum ServedKind {
    /// That is not known, for this reason.
    Unknown(String),
    /// It does not: the resource is absent everywhere.
    NotServed,
    /// In a way that cannot be scaled, for this reason.
    NotScalable(String),
    /// In namespaces and with a scale sub-resource.
    Served(ApiResource),
}

/// Asks the API server for a kind.
pub(crate) async fn resolve(
    seed: &kube::Client,
    reference: &ResourceRef,
) -> Result<ServedKind, RequestError> {
    let wanted = GroupVersionKind::gvk(reference.group(), reference.version(), &reference.kind);
    let found = request(async {
        match pinned_kind(seed, &wanted).await {
            Err(kube::Error::Discovery(DiscoveryError::MissingKind(_))) => Ok(ServedKind::NotServed),
            found => found.map(|(resource, capabilities)| scalable(resource, &capabilities)),
        }
    });
    match found.await {
        // The group or the version is not served.
        Err(error) if error.is_not_found() => Ok(ServedKind::NotServed),
        answer => answer,
    }
}

fn scalable(resource: ApiResource, capabilities: &ApiCapabilities) -> ServedKind {
    let plural = &resource.plural;
    let mut subresources = capabilities.subresources.iter();
    if capabilities.scope != Scope::Namespaced {
        ServedKind::NotScalable(format!("{plural} are not namespaced"))
    } else if !subresources.any(|(sub, _)| sub.plural == "scale") {
        ServedKind::NotScalable(format!("{plural} have no scale subresource"))
    } else {
        ServedKind::Served(resource)
    }
}
