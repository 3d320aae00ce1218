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
use watchdog_api::names::{COORDINATOR_FIELD_MANAGER, MELTDOWN_PROTECTION_ANNOTATION, REPLICAS_ANNOTATION};
use watchdog_api::prober::ResourceRef;
use watchdog_api::workload::Workload;
use watchdog_kube::client::{REQUEST_DEADLINE, RequestError, found, request_within};
use watchdog_kube::membership::Permit;

use super::clusters::Clusters;
use super::object_index::{IndexMark, Origin};
use super::resources::{ObservedScale, Resources};
use crate::domain::flow::{Action, ActionKind, ActionOutcome};
use crate::domain::next_step::{ResourceWrite, has_spec_replicas};
use crate::domain::overlay::WriteDisposition;

/// The shortest deadline of a request, even if less of its timeout is left: a shorter one would only make it fail.
const LEAST_DEADLINE: Duration = Duration::from_millis(500);

pub(crate) struct ResourceWriter {
    seed: kube::Client,
    clusters: Arc<Clusters>,
    resources: Arc<Resources>,
}

impl ResourceWriter {
    /// A writer that feeds what it learns to the indexes.
    pub(crate) const fn new(seed: kube::Client, clusters: Arc<Clusters>, resources: Arc<Resources>) -> Self {
        Self {
            seed,
            clusters,
            resources,
        }
    }

    /// Confirms that the Cluster of a shoot allows writes, once for all that go out together.
    pub(crate) async fn confirm(&self, shoot: &str) -> Result<(), ActionOutcome> {
        match self.clusters.confirm(shoot).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(ActionOutcome::Cancelled {
                why: "the Cluster does not allow it any more",
            }),
            Err(error) => Err(read_failed("reading the Cluster before the write", &error)),
        }
    }

    /// Makes a request of the flow of a shoot. A write is sent only once the Cluster is `confirmed`, where it needs
    /// that, and only with the permit that `authorize` gives right before; and not at all if the disposition keeps it
    /// back. This is the only place where the flow of a shoot writes.
    pub(crate) async fn run(
        &self,
        shoot: &str,
        action: &Action,
        within: Duration,
        confirmed: impl Future<Output = Result<(), ActionOutcome>>,
        authorize: impl FnOnce() -> Result<(Permit, WriteDisposition), &'static str>,
    ) -> ActionOutcome {
        let reference = &action.reference;
        if action.kind == ActionKind::Read && self.resources.is_not_served(reference) {
            // There is nothing that could be read.
            return ActionOutcome::Done;
        }
        let Some(served) = self.resources.served(reference) else {
            return refused("it is not known yet how the API server serves this kind".to_owned());
        };
        let api: Api<Workload> = Api::namespaced_with(self.seed.clone(), shoot, &served);
        let write = match &action.kind {
            ActionKind::Read => return self.read(shoot, reference, &api, within).await,
            ActionKind::Write(write) => write,
        };
        if action.kind.needs_cluster()
            && let Err(outcome) = confirmed.await
        {
            return outcome;
        }
        let (permit, disposition) = match authorize() {
            Ok(authorized) => authorized,
            Err(why) => return ActionOutcome::Cancelled { why },
        };
        let covered = permit.until().saturating_duration_since(Instant::now());
        if covered < LEAST_DEADLINE {
            return refused("the membership lease of this replica is about to run out".to_owned());
        }
        if disposition == WriteDisposition::KeepBack {
            return ActionOutcome::KeptBack;
        }
        let within = deadline(within).min(covered);
        match self
            .write(shoot, reference, &api, &action.against, write, within)
            .await
        {
            Ok(()) => ActionOutcome::Done,
            Err(error) => classify(&error, reference, write, &served, shoot),
        }
    }

    async fn write(
        &self,
        shoot: &str,
        reference: &ResourceRef,
        api: &Api<Workload>,
        against: &str,
        write: &ResourceWrite,
        within: Duration,
    ) -> Result<(), RequestError> {
        let name = &reference.name;
        let Some(body) = patch(reference, against, write) else {
            let ResourceWrite::Scale { to, .. } = write else {
                return Ok(());
            };
            let scale = scale(shoot, name, against, *to);
            let params = PostParams {
                field_manager: Some(COORDINATOR_FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            };
            return request_within(within, api.replace_scale(name, &params, &scale))
                .await
                .map(drop);
        };
        let params = PatchParams {
            field_manager: Some(COORDINATOR_FIELD_MANAGER.to_owned()),
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
    ) -> ActionOutcome {
        let (within, asked) = (deadline(within), IndexMark::last());
        let workload = match found(
            &reference.name,
            request_within(within, api.get(&reference.name)).await,
        ) {
            Ok(Some(workload)) => workload,
            Ok(None) => {
                self.resources.absent(reference, shoot, asked);
                return ActionOutcome::Done;
            }
            Err(error) => return read_failed("reading it", &error),
        };
        self.resources.applied(reference, &workload, Origin::Read(asked));
        if workload.spec.ok().is_none_or(|spec| spec.replicas.is_some()) {
            return ActionOutcome::Done;
        }
        match request_within(within, api.get_scale(&reference.name)).await {
            Ok(scale) => match observed_scale(&scale) {
                Some(seen) => {
                    self.resources.scale_read(reference, shoot, seen);
                    ActionOutcome::Done
                }
                None => refused("its scale sub-resource shows no replicas".to_owned()),
            },
            Err(error) => read_failed("reading its scale sub-resource", &error),
        }
    }
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

fn deadline(left: Duration) -> Duration {
    left.clamp(LEAST_DEADLINE, REQUEST_DEADLINE)
}

fn refused(why: String) -> ActionOutcome {
    ActionOutcome::Refused {
        why,
        retry_after: None,
    }
}

fn read_failed(what: &str, error: &RequestError) -> ActionOutcome {
    ActionOutcome::Refused {
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
) -> ActionOutcome {
    let retry_after = error.retry_after();
    match error {
        // Gone, or another one of the same name: what was seen is too old, as with a conflict.
        error if error.is_conflict() || error.is_not_found() => ActionOutcome::Conflict,
        // Admission refuses with 403, too. Only authorization says who cannot do what.
        error if error.is_forbidden() && error.to_string().contains(" cannot ") => {
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
            let why = format!(
                "the permission to {verb} {plural}{group}{sub} in namespace {shoot} is missing: {error}"
            );
            ActionOutcome::Refused { why, retry_after }
        }
        // A server that fails may have applied the write all the same.
        RequestError::Refused(status) if status.code >= 500 => ActionOutcome::Unknown {
            why: error.to_string(),
            retry_after,
        },
        RequestError::Refused(_) => ActionOutcome::Refused {
            why: error.to_string(),
            retry_after,
        },
        RequestError::Deadline(_) | RequestError::Failed(_) => ActionOutcome::Unknown {
            why: error.to_string(),
            retry_after,
        },
    }
}

#[cfg(test)]
mod tests;
