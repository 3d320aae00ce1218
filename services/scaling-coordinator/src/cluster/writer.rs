//! The requests of the flow: each with a deadline, the writes with their precondition, and only after the API server
//! has confirmed that the Cluster still allows it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v1::{Scale, ScaleSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use serde_json::{Value, json};
use tokio::time::Instant;
use watchdog_api::names::{MELTDOWN_PROTECTION_ANNOTATION, REPLICAS_ANNOTATION};
use watchdog_api::prober::ResourceRef;
use watchdog_api::workload::Workload;
use watchdog_kube::client::{REQUEST_DEADLINE, RequestError, request_within};
use watchdog_kube::membership::Permit;

use super::clusters::{Clusters, Refusal};
use super::resources::{Resources, ScaleSeen};
use crate::domain::flow::{Action, Outcome, What};
use crate::domain::needs::Write;

/// How long a write waits for the watch of the Clusters to bring what the API server already knows.
const CLUSTER_CATCH_UP: Duration = Duration::from_secs(5);

/// A request gets at least so long, however little is left of its timeout: less would only make it fail.
const LEAST_DEADLINE: Duration = Duration::from_millis(500);

/// Whom the API server names as the manager of the fields that we write.
const FIELD_MANAGER: &str = "dependency-watchdog";

/// Makes requests.
pub struct Writer {
    seed: kube::Client,
    clusters: Arc<Clusters>,
    resources: Arc<Resources>,
}

impl Writer {
    /// A writer that feeds what it learns to the indexes.
    #[must_use]
    pub const fn new(seed: kube::Client, clusters: Arc<Clusters>, resources: Arc<Resources>) -> Self {
        Self {
            seed,
            clusters,
            resources,
        }
    }

    /// Makes a request of the flow of a shoot. A write is sent only with `leave`, which is asked for right before.
    pub async fn run(&self, shoot: &str, action: &Action, leave: impl FnOnce() -> Option<Permit>) -> Outcome {
        let reference = &action.reference;
        if action.what == What::Read && self.resources.is_not_served(reference) {
            // There is nothing that could be read.
            return Outcome::Done;
        }
        let Some(served) = self.resources.served(reference) else {
            return refused("the API server has not told yet how it serves this kind".to_owned());
        };
        let api: Api<Workload> = Api::namespaced_with(self.seed.clone(), shoot, &served);
        let write = match &action.what {
            What::Read => return self.read(shoot, reference, &api, action.within).await,
            What::Write(write) => write,
        };
        match self.clusters.confirm(shoot, CLUSTER_CATCH_UP).await {
            Ok(()) => {}
            Err(Refusal::Forbidden) => return Outcome::Withdrawn,
            Err(Refusal::NotAsked(error)) => {
                return read_failed("reading the Cluster before the write", &error);
            }
            Err(refusal @ Refusal::Behind(_)) => return refused(refusal.to_string()),
        }
        let Some(permit) = leave() else {
            return Outcome::Withdrawn;
        };
        let covered = permit.until().saturating_duration_since(Instant::now());
        if covered < LEAST_DEADLINE {
            return refused("the membership lease of this replica is about to run out".to_owned());
        }
        let within = deadline(action.within).min(covered);
        match self
            .write(shoot, reference, &api, &action.against, write, within)
            .await
        {
            Ok(()) => Outcome::Done,
            Err(error) => classify(&error, write, &served, shoot),
        }
    }

    async fn write(
        &self,
        shoot: &str,
        reference: &ResourceRef,
        api: &Api<Workload>,
        against: &str,
        write: &Write,
        within: Duration,
    ) -> Result<(), RequestError> {
        let name = &reference.name;
        let patch = |annotations: Value| {
            let body = json!({ "metadata": { "resourceVersion": against, "annotations": annotations } });
            let params = PatchParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PatchParams::default()
            };
            async move { api.patch(name, &params, &Patch::Merge(&body)).await }
        };
        let patched = match write {
            Write::Scale { to, .. } => {
                let scale = scale(shoot, name, against, *to);
                let params = PostParams {
                    field_manager: Some(FIELD_MANAGER.to_owned()),
                    ..PostParams::default()
                };
                return request_within(within, api.replace_scale(name, &params, &scale))
                    .await
                    .map(drop);
            }
            Write::Record { replicas } => {
                let annotations =
                    json!({ REPLICAS_ANNOTATION: replicas.to_string(), MELTDOWN_PROTECTION_ANNOTATION: "" });
                request_within(within, patch(annotations)).await?
            }
            Write::CleanUp => {
                request_within(within, patch(json!({ MELTDOWN_PROTECTION_ANNOTATION: null }))).await?
            }
        };
        // The next write need not wait for the watch.
        self.resources.applied(reference, &patched);
        Ok(())
    }

    async fn read(
        &self,
        shoot: &str,
        reference: &ResourceRef,
        api: &Api<Workload>,
        within: Duration,
    ) -> Outcome {
        let within = deadline(within);
        let workload = match request_within(within, api.get_opt(&reference.name)).await {
            Ok(Some(workload)) => workload,
            Ok(None) => {
                self.resources.deleted(reference, shoot);
                return Outcome::Done;
            }
            Err(error) => return read_failed("reading it", &error),
        };
        self.resources.applied(reference, &workload);
        if workload.spec.ok().is_none_or(|spec| spec.replicas.is_some()) {
            return Outcome::Done;
        }
        match request_within(within, api.get_scale(&reference.name)).await {
            Ok(scale) => match scale_seen(&scale) {
                Some(seen) => {
                    self.resources.scale_read(reference, shoot, seen);
                    Outcome::Done
                }
                None => refused("its scale sub-resource shows no replicas".to_owned()),
            },
            Err(error) => read_failed("reading its scale sub-resource", &error),
        }
    }
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

fn scale_seen(scale: &Scale) -> Option<ScaleSeen> {
    Some(ScaleSeen {
        version: scale.metadata.resource_version.as_deref()?.into(),
        // The API server leaves out a zero.
        replicas: scale.spec.as_ref()?.replicas.unwrap_or(0),
        existing: scale.status.as_ref().map_or(0, |status| status.replicas),
    })
}

fn deadline(left: Duration) -> Duration {
    left.clamp(LEAST_DEADLINE, REQUEST_DEADLINE)
}

fn refused(why: String) -> Outcome {
    Outcome::Refused {
        why,
        retry_after: None,
    }
}

fn read_failed(what: &str, error: &RequestError) -> Outcome {
    Outcome::Refused {
        why: format!("{what} failed: {error}"),
        retry_after: error.retry_after(),
    }
}

/// What a failed write means.
fn classify(error: &RequestError, write: &Write, served: &ApiResource, shoot: &str) -> Outcome {
    let retry_after = error.retry_after();
    match error {
        // Gone, or another one of the same name: what was seen is too old, as with a conflict.
        error if error.is_conflict() || error.is_not_found() => Outcome::Conflict,
        error if error.is_forbidden() => {
            let (verb, sub) = if matches!(write, Write::Scale { .. }) {
                ("update", "/scale")
            } else {
                ("patch", "")
            };
            let group = if served.group.is_empty() {
                String::new()
            } else {
                format!(".{}", served.group)
            };
            let plural = &served.plural;
            let why = format!(
                "the permission to {verb} {plural}{group}{sub} in namespace {shoot} is missing: {error}"
            );
            Outcome::Refused { why, retry_after }
        }
        // A server that fails may have applied the write all the same.
        RequestError::Refused(status) if status.code >= 500 => Outcome::Unknown {
            why: error.to_string(),
            retry_after,
        },
        RequestError::Refused(_) => Outcome::Refused {
            why: error.to_string(),
            retry_after,
        },
        RequestError::Deadline(_) | RequestError::Failed(_) => Outcome::Unknown {
            why: error.to_string(),
            retry_after,
        },
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
