//! The requests of the flow: each with a deadline, the writes with their precondition, and those that change a replica
//! count only after the API server has confirmed that the Cluster still allows it.

use std::future::Future;
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
use watchdog_kube::client::{REQUEST_DEADLINE, RequestError, found, request_within};
use watchdog_kube::membership::Permit;

use super::clusters::Clusters;
use super::resources::{ObservedScale, Resources};
use super::version::Origin;
use crate::domain::flow::{Action, Outcome, What};
use crate::domain::next_step::{Write, has_spec_replicas};

/// The shortest deadline of a request, even if less of its timeout is left: a shorter one would only make it fail.
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

    /// Confirms that the Cluster of a shoot allows writes, once for all that go out together.
    ///
    /// # Errors
    /// What becomes of the writes when it does not.
    pub async fn confirm(&self, shoot: &str) -> Result<(), Outcome> {
        match self.clusters.confirm(shoot).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Outcome::Cancelled),
            Err(error) => Err(read_failed("reading the Cluster before the write", &error)),
        }
    }

    /// Makes a request of the flow of a shoot. A write is sent only once the Cluster is `confirmed`, where it needs
    /// that, and only with the permit that `authorize` gives right before.
    pub async fn run(
        &self,
        shoot: &str,
        action: &Action,
        within: Duration,
        confirmed: impl Future<Output = Result<(), Outcome>>,
        authorize: impl FnOnce() -> Option<Permit>,
    ) -> Outcome {
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
            What::Read => return self.read(shoot, reference, &api, within).await,
            What::Write(write) => write,
        };
        if action.what.needs_cluster()
            && let Err(outcome) = confirmed.await
        {
            return outcome;
        }
        let Some(permit) = authorize() else {
            return Outcome::Cancelled;
        };
        let covered = permit.until().saturating_duration_since(Instant::now());
        if covered < LEAST_DEADLINE {
            return refused("the membership lease of this replica is about to run out".to_owned());
        }
        let within = deadline(within).min(covered);
        match self
            .write(shoot, reference, &api, &action.against, write, within)
            .await
        {
            Ok(()) => Outcome::Done,
            Err(error) => classify(&error, reference, write, &served, shoot),
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
        let Some(body) = patch(reference, against, write) else {
            let Write::Scale { to, .. } = write else {
                return Ok(());
            };
            let scale = scale(shoot, name, against, *to);
            let params = PostParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            };
            return request_within(within, api.replace_scale(name, &params, &scale))
                .await
                .map(drop);
        };
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patched = request_within(within, api.patch(name, &params, &Patch::Merge(&body))).await?;
        // The next write need not wait for the watch.
        self.resources.applied(reference, &patched, Origin::Update);
        Ok(())
    }

    async fn read(
        &self,
        shoot: &str,
        reference: &ResourceRef,
        api: &Api<Workload>,
        within: Duration,
    ) -> Outcome {
        let (within, asked) = (deadline(within), self.resources.mark());
        let workload = match found(
            &reference.name,
            request_within(within, api.get(&reference.name)).await,
        ) {
            Ok(Some(workload)) => workload,
            Ok(None) => {
                self.resources.absent(reference, shoot, asked);
                return Outcome::Done;
            }
            Err(error) => return read_failed("reading it", &error),
        };
        self.resources.applied(reference, &workload, Origin::Read(asked));
        if workload.spec.ok().is_none_or(|spec| spec.replicas.is_some()) {
            return Outcome::Done;
        }
        match request_within(within, api.get_scale(&reference.name)).await {
            Ok(scale) => match observed_scale(&scale) {
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

/// The patch that makes a write; none where only the scale sub-resource can.
fn patch(reference: &ResourceRef, against: &str, write: &Write) -> Option<Value> {
    let protection = |replicas: i32| json!({ REPLICAS_ANNOTATION: replicas.to_string(), MELTDOWN_PROTECTION_ANNOTATION: "" });
    let (annotations, replicas) = match write {
        Write::Record { replicas } => (protection(*replicas), None),
        Write::Scale {
            from,
            to,
            record: true,
            ..
        } => (protection(*from), Some(*to)),
        Write::Scale { to, .. } if has_spec_replicas(reference) => (json!({}), Some(*to)),
        Write::Scale { .. } => return None,
        Write::CleanUp => (json!({ MELTDOWN_PROTECTION_ANNOTATION: null }), None),
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

/// Maps the error of a write to its outcome.
fn classify(
    error: &RequestError,
    reference: &ResourceRef,
    write: &Write,
    served: &ApiResource,
    shoot: &str,
) -> Outcome {
    let retry_after = error.retry_after();
    match error {
        // Gone, or another one of the same name: what was seen is too old, as with a conflict.
        error if error.is_conflict() || error.is_not_found() => Outcome::Conflict,
        error if error.is_forbidden() => {
            let (verb, sub) = match write {
                Write::Scale { .. } if !has_spec_replicas(reference) => ("update", "/scale"),
                _ => ("patch", ""),
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
mod tests;
