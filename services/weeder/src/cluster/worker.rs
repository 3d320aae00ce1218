//! Runs what weeding asks for, a bounded number of requests at a time.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use watchdog_kube::events::{EventSink, Notice};

use super::pod_requests;
use crate::domain::backoff;
use crate::domain::candidates::Found;
use crate::domain::failure::Failure;
use crate::domain::task::{Delete, List, Task};
use crate::metrics;
use crate::state::State;

/// Lists and deletions at one time. Each takes a connection (kube's client speaks HTTP/1.1) and, at about 10 ms for a
/// request, they make 3,000 requests a second: a thousand services that become ready at once take one list each and
/// are weeded within a second. More would take what other clients of the API server need in such a moment.
pub const MAX_REQUESTS: usize = 32;

/// Runs the requests.
#[derive(Clone)]
pub struct Worker {
    /// What says which.
    pub state: Arc<State>,
    /// Where to.
    pub client: kube::Client,
    /// Where deletions are told.
    pub events: EventSink,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// Runs requests until `stop` is cancelled, then lets those end that are under way; each has a deadline.
    ///
    /// # Errors
    /// When a request panics.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let requests_in_flight = metrics::REQUESTS.gauge_handle(&[]);
        let mut requests = JoinSet::new();
        while !stop.is_cancelled() {
            let mut tasks = Vec::new();
            let due = self.state.plan(|model, now| {
                let weeding = &mut model.weeding;
                weeding.expire(now);
                while requests.len() + tasks.len() < MAX_REQUESTS
                    && let Some(task) = weeding.next(now)
                {
                    tasks.push(task);
                }
                weeding.next_due(requests.len() + tasks.len() < MAX_REQUESTS)
            });
            for task in tasks {
                requests.spawn(self.clone().request(task));
            }
            requests_in_flight.set(requests.len() as f64);
            let due = async {
                match due {
                    Some(due) => tokio::time::sleep_until(self.state.instant(due)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                Some(ended) = requests.join_next() => ended?,
                () = self.state.changed() => {}
                () = due => {}
            }
        }
        while let Some(ended) = requests.join_next().await {
            ended?;
        }
        Ok(())
    }

    async fn request(self, task: Task) {
        match task {
            Task::List(list) => self.list(list).await,
            Task::Delete(delete) => self.delete(delete).await,
        }
    }

    async fn list(self, list: List) {
        let (namespace, service) = (&*list.key.namespace, &*list.key.service);
        let answer = pod_requests::list(&self.client, namespace, &list.dependants).await;
        let result = match &answer {
            Ok(_) => "ok",
            Err(failure) => {
                tracing::warn!(namespace, service, error = %failure, "dependants cannot be listed, trying again");
                failure.as_str()
            }
        };
        metrics::LISTS.inc(&[("result", result.to_owned())]);
        self.state
            .update(|model, _, now| model.weeding.listed(&list, answer, now));
    }

    async fn delete(self, delete: Delete) {
        let answer = pod_requests::delete(&self.client, &delete.pod).await;
        let now = self.state.update(|model, _, now| {
            model.weeding.deleted(&delete, &answer, now);
            now
        });
        let (namespace, pod) = (&*delete.pod.key.namespace, &*delete.pod.key.name);
        let (service, container) = (&*delete.key.service, &delete.crash.container);
        let result = match &answer {
            Ok(()) => {
                let saved = backoff::left(delete.crash.restarts, delete.crash.ended_at, now);
                let found = match delete.found {
                    Found::AtStart => "at_start",
                    Found::Later => "later",
                };
                let delay = now.since(delete.since);
                metrics::DELETION_DELAY.record(&[("found", found.to_owned())], delay);
                metrics::SAVED.add(&[], saved.as_secs());
                tracing::info!(
                    namespace,
                    pod,
                    container,
                    service,
                    ?delay,
                    ?saved,
                    "crash-looping pod deleted"
                );
                self.events.publish(notice(&delete));
                "deleted"
            }
            Err(failure @ (Failure::Gone | Failure::Changed)) => {
                tracing::info!(namespace, pod, service, why = %failure, "pod left alone");
                failure.as_str()
            }
            Err(failure) => {
                tracing::warn!(namespace, pod, service, error = %failure, "pod cannot be deleted, trying again");
                failure.as_str()
            }
        };
        metrics::DELETIONS.inc(&[("result", result.to_owned())]);
    }
}

/// Tells of a deletion where people look: at the controller, for the pod is gone.
fn notice(delete: &Delete) -> Notice {
    let pod = &delete.pod;
    let about = match &pod.owner {
        Some(owner) => ObjectReference {
            api_version: Some(owner.api_version.clone()),
            kind: Some(owner.kind.clone()),
            name: Some(owner.name.clone()),
            uid: Some(owner.uid.clone()),
            ..ObjectReference::default()
        },
        None => ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.key.name.to_string()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        },
    };
    let note = format!(
        "Deleted pod {}: its {} {} was waiting in CrashLoopBackOff after {} restart(s), and service {} is ready again.",
        pod.key.name,
        if delete.crash.init {
            "init container"
        } else {
            "container"
        },
        delete.crash.container,
        delete.crash.restarts,
        delete.key.service
    );
    Notice {
        about: ObjectReference {
            namespace: Some(pod.key.namespace.to_string()),
            ..about
        },
        warning: false,
        reason: "WeededCrashLoopingPod",
        action: "Deleted",
        note,
    }
}
