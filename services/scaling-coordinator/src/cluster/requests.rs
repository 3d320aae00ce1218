//! The requests to the seed about the resources of a shoot. Each has a deadline, and each write the version that it
//! rests on as its precondition.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v1::{Scale, ScaleSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use serde_json::{Value, json};
use watchdog_api::names::{COORDINATOR_FIELD_MANAGER, MELTDOWN_PROTECTION_ANNOTATION, REPLICAS_ANNOTATION};
use watchdog_api::prober::ResourceRef;
use watchdog_api::workload::Workload;
use watchdog_kube::client::{REQUEST_DEADLINE, RequestError, found, request_within};
use watchdog_kube::leadership::Permit;
use watchdog_kube::permissions::Permission;

use super::resources::Resources;
use crate::domain::observed::Observed;
use crate::domain::request::RequestOutcome;
use crate::domain::resource_step::{ResourceWrite, has_spec_replicas};

/// The shortest deadline of a request, even if less of its timeout is left: a shorter one would only make it fail.
pub(crate) const LEAST_DEADLINE: Duration = Duration::from_millis(500);

/// Requests that feed what they show to the index.
pub(crate) struct ResourceRequests {
    pub(crate) seed: kube::Client,
    pub(crate) resources: Arc<Resources>,
}

impl ResourceRequests {
    /// Writes a resource that still has the version `against`, under a permit that was just given.
    pub(crate) async fn write(
        &self,
        permit: &Permit,
        shoot: &str,
        reference: &ResourceRef,
        write: &ResourceWrite,
        against: &str,
        within: Duration,
    ) -> RequestOutcome {
        let Some(Ok(served)) = self.resources.kind(reference) else {
            return not_served();
        };
        let api: Api<Workload> = Api::namespaced_with(permit.client(&self.seed), shoot, &served);
        let name = &reference.name;
        let written = match patch(reference, against, write) {
            Some(body) => {
                let params = PatchParams {
                    field_manager: Some(COORDINATOR_FIELD_MANAGER.to_owned()),
                    ..PatchParams::default()
                };
                let patched = request_within(within, api.patch(name, &params, &Patch::Merge(&body))).await;
                // The next step need not wait for the watch.
                patched.map(|patched| self.resources.applied(reference, &patched, None))
            }
            None => {
                let ResourceWrite::Scale { to, .. } = write else {
                    return RequestOutcome::Done;
                };
                let params = PostParams {
                    field_manager: Some(COORDINATOR_FIELD_MANAGER.to_owned()),
                    ..PostParams::default()
                };
                let scale = scale(shoot, name, against, *to);
                request_within(within, api.replace_scale(name, &params, &scale))
                    .await
                    .map(drop)
            }
        };
        match written {
            Ok(()) => RequestOutcome::Done,
            Err(error) => classify(&error, reference, write, &served, shoot),
        }
    }

    /// Reads a resource, and its scale sub-resource if only that shows its replicas.
    pub(crate) async fn read(
        &self,
        shoot: &str,
        reference: &ResourceRef,
        within: Duration,
    ) -> RequestOutcome {
        let served = match self.resources.kind(reference) {
            Some(Ok(served)) => served,
            // There is nothing that could be read.
            Some(Err(Observed::Absent)) => return RequestOutcome::Done,
            _ => return not_served(),
        };
        let api: Api<Workload> = Api::namespaced_with(self.seed.clone(), shoot, &served);
        let (within, before) = (deadline(within), self.resources.version(reference, shoot));
        let read = request_within(within, api.get(&reference.name)).await;
        let found = match found(&reference.name, read) {
            Ok(found) => found,
            Err(error) => return read_failed("reading it", &error),
        };
        self.resources
            .read(reference, shoot, before.as_deref(), found.as_ref());
        let needs_scale = |workload: &Workload| self.resources.needs_scale(reference, workload);
        let Some(workload) = found.filter(needs_scale) else {
            return RequestOutcome::Done;
        };
        match request_within(within, api.get_scale(&reference.name)).await {
            Ok(scale) if scale.spec.is_none() => {
                refused("its scale subresource shows no replicas".to_owned())
            }
            Ok(scale) => {
                self.resources.applied(reference, &workload, Some(&scale));
                RequestOutcome::Done
            }
            Err(error) => read_failed("reading its scale subresource", &error),
        }
    }
}

fn not_served() -> RequestOutcome {
    refused("the API server has not been asked yet how it serves this kind".to_owned())
}

/// The patch that makes a write; none where only the scale sub-resource can.
fn patch(reference: &ResourceRef, against: &str, write: &ResourceWrite) -> Option<Value> {
    let protection = |replicas: i32| {
        let replicas = replicas.to_string();
        json!({ REPLICAS_ANNOTATION: replicas, MELTDOWN_PROTECTION_ANNOTATION: "" })
    };
    let (annotations, replicas) = match write {
        ResourceWrite::Record { replicas } => (protection(*replicas), None),
        ResourceWrite::Scale {
            from,
            to,
            record: true,
            ..
        } => (protection(*from), Some(*to)),
        ResourceWrite::Scale { to, .. } if has_spec_replicas(reference) => (json!({}), Some(*to)),
        ResourceWrite::Scale { .. } => return None,
        ResourceWrite::CleanUp => (json!({ MELTDOWN_PROTECTION_ANNOTATION: null }), None),
    };
    let metadata = json!({ "resourceVersion": against, "annotations": annotations });
    Some(match replicas {
        Some(replicas) => json!({ "metadata": metadata, "spec": { "replicas": replicas } }),
        None => json!({ "metadata": metadata }),
    })
}

fn scale(namespace: &str, name: &str, version: &str, replicas: i32) -> Scale {
    Scale {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            resource_version: Some(version.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(ScaleSpec {
            replicas: Some(replicas),
        }),
        status: None,
    }
}

/// The deadline of a request of whose timeout this much is left.
pub(crate) fn deadline(left: Duration) -> Duration {
    left.clamp(LEAST_DEADLINE, REQUEST_DEADLINE)
}

pub(crate) fn refused(why: String) -> RequestOutcome {
    RequestOutcome::Refused {
        why,
        retry_after: None,
    }
}

pub(crate) fn read_failed(what: &str, error: &RequestError) -> RequestOutcome {
    RequestOutcome::Refused {
        why: format!("{what} failed: {error}"),
        retry_after: error.retry_after(),
    }
}

/// Maps the error of a write to its outcome.
fn classify(
    error: &RequestError,
    reference: &ResourceRef,
    write: &ResourceWrite,
    served: &ApiResource,
    shoot: &str,
) -> RequestOutcome {
    // Gone, or another one of the same name: what was seen is too old, as with a conflict.
    if error.is_conflict() || error.is_not_found() {
        return RequestOutcome::Conflict;
    }
    let (mut why, retry_after) = (error.to_string(), error.retry_after());
    if error.is_forbidden() {
        let (verb, resource) = match write {
            ResourceWrite::Scale { .. } if !has_spec_replicas(reference) => {
                ("update", format!("{}/scale", served.plural))
            }
            _ => ("patch", served.plural.clone()),
        };
        let request = Permission::new(verb, &served.group, &resource).in_namespace(shoot);
        // For lack of the permission, or by an admission webhook, which the error names.
        why = format!("the request to {request} is forbidden: {why}");
    }
    match error.code() {
        Some(code) if code < 500 => RequestOutcome::Refused { why, retry_after },
        // A server that fails, or whose answer is lost, may have applied the write all the same.
        _ => RequestOutcome::Unknown { why, retry_after },
    }
}

#[cfg(test)]
mod tests;
