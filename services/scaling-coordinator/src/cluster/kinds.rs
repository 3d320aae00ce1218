//! From the kinds in the configuration to the resources that the API server serves.

use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::{ApiCapabilities, Scope, pinned_kind};
use kube::error::DiscoveryError;
use watchdog_api::prober::ResourceRef;
use watchdog_kube::client::{RequestError, request};

#[derive(Debug, Clone)]
pub(crate) enum Scalability {
    /// It is served, in namespaces and with a scale sub-resource.
    Scalable(ApiResource),
    NotServed,
    NotScalable(String),
}

/// Asks the API server for a kind.
pub(crate) async fn resolve(
    seed: &kube::Client,
    reference: &ResourceRef,
) -> Result<Scalability, RequestError> {
    let wanted = GroupVersionKind::gvk(reference.group(), reference.version(), &reference.kind);
    let found = request(async {
        match pinned_kind(seed, &wanted).await {
            Ok(found) => Ok(Some(found)),
            Err(kube::Error::Discovery(DiscoveryError::MissingKind(_))) => Ok(None),
            Err(error) => Err(error),
        }
    });
    match found.await {
        Ok(Some((resource, capabilities))) => Ok(scalable(resource, &capabilities)),
        Ok(None) => Ok(Scalability::NotServed),
        // The group or the version is not served.
        Err(error) if error.is_not_found() => Ok(Scalability::NotServed),
        Err(error) => Err(error),
    }
}

fn scalable(resource: ApiResource, capabilities: &ApiCapabilities) -> Scalability {
    if capabilities.scope != Scope::Namespaced {
        return Scalability::NotScalable(format!("{} are not in namespaces", resource.plural));
    }
    let scale = capabilities
        .subresources
        .iter()
        .any(|(sub, _)| sub.plural == "scale");
    if scale {
        Scalability::Scalable(resource)
    } else {
        Scalability::NotScalable(format!("{} have no scale sub-resource", resource.plural))
    }
}
