//! Makes the requests that the manager asks for, a bounded number at a time, and reports what was found.

use std::sync::Arc;
use std::time::Duration;

use futures::future::OptionFuture;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use watchdog_api::policy::Mode;
use watchdog_api::unix_time::UnixTime;
use watchdog_kube::client::REQUEST_DEADLINE;
use watchdog_kube::events::{EventSink, Notice};
use watchdog_kube::membership::Share;

use super::shared::SharedState;
use super::task::{Deletion, EndpointRead, Finding, Task};
use super::weeder_span;
use crate::cluster::pace::Pace;
use crate::cluster::{pod_requests, reference};
use crate::domain::attempts::MAX_DELETIONS;
use crate::domain::backoff;
use crate::domain::failure::RequestFailure;
use crate::domain::flapping::SETTLED;
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::pods::{CrashLoop, Pod};
use crate::metrics::{self, DeletionAnswer, DeletionEffect, Discovered, EndpointReadResult};

/// Requests at one time, each on a connection of its own (kube's client speaks HTTP/1.1). Their number a second is
/// bounded by `--request-rate`.
pub(crate) const MAX_REQUESTS: usize = 32;

/// A deletion that would have less time than this is not sent.
const LEAST_DEADLINE: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(crate) struct RequestWorker {
    pub(crate) state: Arc<SharedState>,
    /// Permits each deletion.
    pub(crate) membership: Share,
    /// For deletions, each in its turn by `pace`.
    pub(crate) seed: kube::Client,
    pub(crate) pace: Pace,
    /// For reads; it paces them itself.
    pub(crate) client: kube::Client,
    pub(crate) events: EventSink,
    pub(crate) mode: Mode,
    /// At most [`MAX_REQUESTS`]; fewer when the rate is low, because what is decided now is sent when its turn comes.
    pub(crate) max_requests: usize,
}

impl RequestWorker {
    /// Makes requests until `stop` is cancelled, then waits for those that are under way; each has a deadline.
    ///
    /// # Errors
    /// When a request panics.
    pub(crate) async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let requests_in_flight = metrics::REQUESTS.handle(());
        let mut requests = JoinSet::new();
        while !stop.is_cancelled() {
            let mut tasks = Vec::new();
            let (due, findings) = self.state.plan(|state, now| {
                let manager = &mut state.manager;
                manager.expire(now);
                while requests.len() + tasks.len() < self.max_requests
                    && let Some(task) = manager.next(now)
                {
                    tasks.push(task);
                }
                let room = requests.len() + tasks.len() < self.max_requests;
                (manager.next_due(room), manager.take_findings())
            });
            for task in tasks {
                requests.spawn(self.clone().request(task));
            }
            for finding in findings {
                self.report(finding);
            }
            requests_in_flight.set(requests.len() as f64);
            let due = due.map(|due| tokio::time::sleep_until(self.state.instant(due)));
            tokio::select! {
                () = stop.cancelled() => {}
                Some(ended) = requests.join_next() => ended?,
                () = self.state.changed() => {}
                Some(()) = OptionFuture::from(due) => {}
            }
        }
        while let Some(ended) = requests.join_next().await {
            ended?;
        }
        Ok(())
    }

    async fn request(self, task: Task) {
        match task {
            Task::Delete(deletion) => {
                let span = weeder_span(&deletion.key);
                self.take_turn(&deletion).instrument(span).await;
            }
            Task::ReadEndpoints(read) => {
                let span = weeder_span(&read.key);
                self.read_endpoints(read).instrument(span).await;
            }
        }
    }

    /// Deletes a pod if this replica may act on its namespace when the turn of the request has come. Until the answer
    /// the Lease is not released, and nobody takes the namespace over.
    async fn take_turn(self, deletion: &Deletion) {
        let namespace = &*deletion.pod.key.namespace;
        // A turn that nothing can use is left to others.
        if !self.membership.may_act(namespace) {
            return self.put_back(deletion);
        }
        if self.mode != Mode::Protect {
            return self.keep_back(deletion);
        }
        let _slot = self.pace.turn().await;
        let permit = self.membership.act(namespace);
        let covered = permit.as_ref().map_or(Duration::ZERO, |permit| {
            permit.until().saturating_duration_since(Instant::now())
        });
        if covered < LEAST_DEADLINE {
            return self.put_back(deletion);
        }
        self.delete(deletion, covered.min(REQUEST_DEADLINE)).await;
    }

    fn put_back(self, deletion: &Deletion) {
        self.state
            .update(|state, now| state.manager.put_back(deletion, now));
        tracing::debug!(
            pod = &*deletion.pod.key.name,
            "pod not deleted, because this replica may not act now"
        );
    }

    async fn read_endpoints(self, read: EndpointRead) {
        let answer = pod_requests::read_endpoint_pods(&self.client, &read.key.namespace, &read.pods).await;
        let result = match &answer {
            Ok(_) => EndpointReadResult::Ok,
            Err(failure) => {
                tracing::warn!(error = %failure, "endpoint pods cannot be read; trying again");
                failure.into()
            }
        };
        metrics::ENDPOINT_READS.inc(result);
        self.state
            .update(|state, now| state.manager.endpoints_read(&read, answer, now));
    }

    /// In mode observe: the pod counts as deleted from now on, and nothing is sent.
    fn keep_back(self, deletion: &Deletion) {
        let now = self.state.update(|state, now| {
            state.manager.kept_back(deletion, now);
            now
        });
        let Deletion { pod, crash, .. } = deletion;
        let delay = record_delay(deletion, now);
        tracing::info!(
            pod = &*pod.key.name,
            ?delay,
            service_ready_since = %deletion.service_ready_since,
            container = crash.container,
            exit_code = crash.exit_code,
            exit_reason = crash.reason,
            restarts = crash.restarts,
            "crash-looping pod not deleted because the mode is observe; it would have been deleted now"
        );
        self.events.publish(deletion_notice(deletion, true));
        metrics::DELETIONS.inc(DeletionAnswer::KeptBack);
    }

    async fn delete(self, deletion: &Deletion, within: Duration) {
        let answer = pod_requests::delete(&self.seed, &deletion.pod, within).await;
        let now = self.state.update(|state, now| {
            state.manager.deleted(deletion, &answer, now);
            now
        });
        let Deletion { pod, crash, .. } = deletion;
        let name = &*pod.key.name;
        let result = match &answer {
            Ok(_) => {
                let saved = backoff::left(crash.restarts, crash.ended_at, now);
                let delay = record_delay(deletion, now);
                metrics::SAVED.add((), saved.as_secs());
                metrics::count_deleted_pod(&deletion.key.name, crash);
                tracing::info!(
                    pod = name,
                    service_ready_since = %deletion.service_ready_since,
                    container = crash.container,
                    exit_code = crash.exit_code,
                    exit_reason = crash.reason,
                    restarts = crash.restarts,
                    ?delay,
                    ?saved,
                    "crash-looping pod deleted"
                );
                self.events.publish(deletion_notice(deletion, false));
                DeletionAnswer::Deleted
            }
            Err(failure @ (RequestFailure::Gone | RequestFailure::Changed)) => {
                tracing::info!(pod = name, why = %failure, "pod left alone");
                failure.into()
            }
            Err(failure) => {
                tracing::warn!(pod = name, error = %failure, "pod cannot be deleted; trying again");
                failure.into()
            }
        };
        metrics::DELETIONS.inc(result);
    }

    fn report(&self, finding: Finding) {
        match finding {
            // Nothing was deleted that could have helped.
            Finding::Useful(_) | Finding::Useless if self.mode != Mode::Protect => {}
            Finding::DeletedByOthers {
                key,
                pod,
                kept_back_at,
            } => {
                let _span = weeder_span(&key).entered();
                tracing::info!(
                    pod = &*pod.key.name,
                    earlier = ?self.state.now().since(kept_back_at),
                    "pod is gone; the weeder would have deleted it earlier"
                );
            }
            Finding::Useful(count) => metrics::OUTCOMES.add(DeletionEffect::Useful, count),
            Finding::Useless => metrics::OUTCOMES.inc(DeletionEffect::Useless),
            Finding::Flapping(key) => {
                metrics::FLAPPING.inc(());
                let _span = weeder_span(&key).entered();
                tracing::warn!("service became ready four times in a minute; waiting until it stays ready");
                self.events.publish(flapping_notice(&key));
            }
            Finding::LeftAlone { key, pod, crash } => {
                metrics::LEFT_ALONE.inc(());
                let _span = weeder_span(&key).entered();
                tracing::warn!(
                    pod = &*pod.key.name,
                    container = crash.container,
                    exit_code = crash.exit_code,
                    exit_reason = crash.reason,
                    exit_message = crash.message,
                    "pod keeps crashing although its service is ready; leaving it alone"
                );
                self.events.publish(left_alone_notice(&key, &pod, &crash));
            }
        }
    }
}

/// Measures the time for which the pod could have been deleted.
fn record_delay(deletion: &Deletion, now: UnixTime) -> Duration {
    let discovered = if deletion.crashed_later {
        Discovered::Later
    } else {
        Discovered::AtStart
    };
    let delay = now.since(deletion.waiting_since);
    metrics::DELETION_DELAY.record(discovered, delay);
    delay
}

/// The controller, because it outlives the pod.
fn regarding(pod: &Pod) -> ObjectReference {
    let namespace = &pod.key.namespace;
    match &pod.owner {
        Some(owner) => reference(
            &owner.api_version,
            &owner.kind,
            namespace,
            &owner.name,
            Some(&owner.uid),
        ),
        None => reference("v1", "Pod", namespace, &pod.key.name, Some(&pod.uid)),
    }
}

fn deletion_notice(deletion: &Deletion, kept_back: bool) -> Notice {
    let Deletion { pod, crash, key, .. } = deletion;
    let (name, service, since) = (&pod.key.name, &key.name, deletion.service_ready_since);
    let about = regarding(pod);
    if kept_back {
        return Notice {
            about,
            warning: false,
            reason: "DeletionKeptBack",
            action: "KeptBack",
            note: format!(
                "Would delete pod {name}, but the mode is observe: {crash} is in CrashLoopBackOff, and service \
                 {service} is ready since {since}."
            ),
        };
    }
    Notice {
        about,
        warning: false,
        reason: "WeededCrashLoopingPod",
        action: "Deleted",
        note: format!(
            "Deleted pod {name}: {crash} was in CrashLoopBackOff, and service {service} is ready since {since}."
        ),
    }
}

fn left_alone_notice(key: &NamespacedName, pod: &Pod, crash: &CrashLoop) -> Notice {
    let message = match crash.message.as_str() {
        "" => "none",
        message => message,
    };
    Notice {
        about: regarding(pod),
        warning: true,
        reason: "CrashesAlthoughServiceIsReady",
        action: "LeftAlone",
        note: format!(
            "Pod {}: {crash} crashes although its service {} is ready; last message: {message}. Its pods were deleted \
             {MAX_DELETIONS} times and are left alone now.",
            pod.key.name, key.name
        ),
    }
}

fn flapping_notice(key: &NamespacedName) -> Notice {
    Notice {
        about: reference("v1", "Service", &key.namespace, &key.name, None),
        warning: true,
        reason: "ServiceFlapping",
        action: "Waiting",
        note: format!(
            "Service {} became ready four times in a minute: its crash-looping dependants are deleted once it has been \
             ready for {} s.",
            key.name,
            SETTLED.as_secs()
        ),
    }
}
