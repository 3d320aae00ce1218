//! From the kinds in the configuration to the resources that the API server serves.

use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::{ApiCapabilities, Scope, pinned_kind};
use kube::error::DiscoveryError;
use watchdog_api::prober::ResourceRef;
use watchdog_kube::client::{RequestError, request};

/// The way in which the API server serves a kind.
#[derive(Debug, Clone)]
pub enum Kind {
    /// It is served, in namespaces and with a scale sub-resource.
    Scalable(ApiResource),
    /// It is not served at all.
    NotServed,
    /// It is served, but cannot be scaled, for this reason.
    NotScalable(String),
}

/// Asks the API server for a kind.
///
/// # Errors
/// When it cannot be asked.
pub async fn resolve(seed: &kube::Client, reference: &ResourceRef) -> Result<Kind, RequestError> {
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
        Ok(None) => Ok(Kind::NotServed),
        // The group or the version is not served.
        Err(error) if error.is_not_found() => Ok(Kind::NotServed),
        Err(error) => Err(error),
    }
}

fn scalable(resource: ApiResource, capabilities: &ApiCapabilities) -> Kind {
    if capabilities.scope != Scope::Namespaced {
        return Kind::NotScalable(format!("{} are not in namespaces", resource.plural));
    }
    let scale = capabilities
        .subresources
        .iter()
        .any(|(sub, _)| sub.plural == "scale");
    if scale {
        Kind::Scalable(resource)
    } else {
        Kind::NotScalable(format!("{} have no scale sub-resource", resource.plural))
    }
}
