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
use tokio_util::sync::CancellationToken;
use watchdog_api::names::{COORDINATOR_FIELD_MANAGER, MELTDOWN_PROTECTION_ANNOTATION, REPLICAS_ANNOTATION};
use watchdog_api::prober::ResourceRef;
use watchdog_api::workload::Workload;
use watchdog_kube::client::{REQUEST_DEADLINE, RequestError, found, request_within};

use super::object_index::{is_newer, version_of};
use super::resources::{ObservedScale, Resources};
use crate::domain::attempts::RequestOutcome;
use crate::domain::resource_step::{ResourceWrite, has_spec_replicas};

/// The shortest deadline of a request, even if less of its timeout is left: a shorter one would only make it fail.
pub(crate) const LEAST_DEADLINE: Duration = Duration::from_millis(500);

/// Set once a read has shown that etcd was restored from a backup: what this process knows may be newer than what
/// exists. It ends, and the next one reads everything.
#[derive(Debug, Clone, Default)]
pub(crate) struct RestoredEtcd(CancellationToken);

impl RestoredEtcd {
    /// A consistent read has shown an object at a version. `before` is what was known when the read was asked for.
    pub(super) fn check(&self, before: Option<&str>, version: &str) {
        if before.is_some_and(|before| is_newer(before, version)) {
            self.set();
        }
    }

    /// A read has shown it.
    pub(super) fn set(&self) {
        self.0.cancel();
    }

    /// Waits until that is seen.
    pub(crate) async fn seen(&self) {
        self.0.cancelled().await;
    }
}

pub(crate) struct ResourceRequests {
    seed: kube::Client,
    resources: Arc<Resources>,
    restored: RestoredEtcd,
}

impl ResourceRequests {
    /// Requests that feed what they show to the index.
    pub(crate) const fn new(seed: kube::Client, resources: Arc<Resources>, restored: RestoredEtcd) -> Self {
        Self {
            seed,
            resources,
            restored,
        }
    }

    /// Writes a resource that still has the version `against`. The caller has just made sure that it may.
    pub(crate) async fn write(
        &self,
        shoot: &str,
        reference: &ResourceRef,
        write: &ResourceWrite,
        against: &str,
        within: Duration,
    ) -> RequestOutcome {
        let Some(served) = self.resources.served(reference) else {
            return not_served();
        };
        let api: Api<Workload> = Api::namespaced_with(self.seed.clone(), shoot, &served);
        let name = &reference.name;
        let written = match patch(reference, against, write) {
            Some(body) => {
                let params = PatchParams {
                    field_manager: Some(COORDINATOR_FIELD_MANAGER.to_owned()),
                    ..PatchParams::default()
                };
                let patched = request_within(within, api.patch(name, &params, &Patch::Merge(&body))).await;
                // The next step need not wait for the watch.
                patched.map(|patched| self.resources.applied(reference, &patched))
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

    /// Reads a resource, and its scale sub-resource if the resource itself does not show its replicas.
    pub(crate) async fn read(
        &self,
        shoot: &str,
        reference: &ResourceRef,
        within: Duration,
    ) -> RequestOutcome {
        if self.resources.is_not_served(reference) {
            // There is nothing that could be read.
            return RequestOutcome::Done;
        }
        let Some(served) = self.resources.served(reference) else {
            return not_served();
        };
        let api: Api<Workload> = Api::namespaced_with(self.seed.clone(), shoot, &served);
        let (within, before) = (deadline(within), self.resources.version(reference, shoot));
        let read = request_within(within, api.get(&reference.name)).await;
        let workload = match found(&reference.name, read) {
            Ok(Some(workload)) => workload,
            Ok(None) => {
                self.resources.absent(reference, shoot, before.as_ref());
                return RequestOutcome::Done;
            }
            Err(error) => return read_failed("reading it", &error),
        };
        self.restored
            .check(before.as_deref(), version_of(&workload.metadata));
        self.resources.applied(reference, &workload);
        if !matches!(workload.replicas, Ok(None)) {
            return RequestOutcome::Done;
        }
        match request_within(within, api.get_scale(&reference.name)).await {
            Ok(scale) => match observed_scale(&scale) {
                Some(seen) => {
                    self.resources.scale_read(reference, shoot, seen);
                    RequestOutcome::Done
                }
                None => refused("its scale subresource shows no replicas".to_owned()),
            },
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

fn observed_scale(scale: &Scale) -> Option<ObservedScale> {
    Some(ObservedScale {
        version: scale.metadata.resource_version.as_deref()?.into(),
        // The API server leaves out a zero.
        replicas: scale.spec.as_ref()?.replicas.unwrap_or(0),
        existing: scale.status.as_ref().map_or(0, |status| status.replicas),
    })
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
    let retry_after = error.retry_after();
    match error {
        // Gone, or another one of the same name: what was seen is too old, as with a conflict.
        error if error.is_conflict() || error.is_not_found() => RequestOutcome::Conflict,
        // The missing permission, or an admission webhook, which the error names.
        error if error.is_forbidden() => {
            let (verb, sub) = match write {
                ResourceWrite::Scale { .. } if !has_spec_replicas(reference) => ("update", "/scale"),
                _ => ("patch", ""),
            };
            let group = if served.group.is_empty() {
                String::new()
            } else {
                format!(".{}", served.group)
            };
            let plural = &served.plural;
            let request = format!("{verb} {plural}{group}{sub} in namespace {shoot}");
            let why = format!("the request to {request} is forbidden: {error}");
            RequestOutcome::Refused { why, retry_after }
        }
        // A server that fails may have applied the write all the same.
        RequestError::Refused(status) if status.code >= 500 => RequestOutcome::Unknown {
            why: error.to_string(),
            retry_after,
        },
        RequestError::Refused(_) => RequestOutcome::Refused {
            why: error.to_string(),
            retry_after,
        },
        RequestError::Deadline(_) | RequestError::Failed(_) => RequestOutcome::Unknown {
            why: error.to_string(),
            retry_after,
        },
    }
}

#[cfg(test)]
mod tests;
