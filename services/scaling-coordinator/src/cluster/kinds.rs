//! From the kinds in the configuration to the resources that the API server serves.

use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::{ApiCapabilities, Scope, pinned_kind};
use kube::error::DiscoveryError;
use watchdog_api::prober::ResourceRef;
use watchdog_kube::client::{RequestError, request};

use super::resources::ListState;

/// Asks the API server for a kind. Returns how it is served, in namespaces and with a scale sub-resource, or that it is
/// not.
pub(crate) async fn resolve(
    seed: &kube::Client,
    reference: &ResourceRef,
) -> Result<Result<ApiResource, ListState>, RequestError> {
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
        Ok(None) => Ok(Err(ListState::NotServed)),
        // The group or the version is not served.
        Err(error) if error.is_not_found() => Ok(Err(ListState::NotServed)),
        Err(error) => Err(error),
    }
}

fn scalable(resource: ApiResource, capabilities: &ApiCapabilities) -> Result<ApiResource, ListState> {
    if capabilities.scope != Scope::Namespaced {
        return Err(ListState::NotScalable(format!(
            "{} are not namespaced",
            resource.plural
        )));
    }
    let scale = capabilities
        .subresources
        .iter()
        .any(|(sub, _)| sub.plural == "scale");
    if scale {
        Ok(resource)
    } else {
        Err(ListState::NotScalable(format!(
            "{} have no scale subresource",
            resource.plural
        )))
    }
}
