//! Deletes the pods that the state gives, a bounded number at a time, while this replica leads.

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
use watchdog_kube::leadership::Leadership;

use super::shared::SharedState;
use super::state::{Deletion, Finding};
use super::weeder_span;
use crate::cluster::pace::Pace;
use crate::cluster::{deletion, reference};
use crate::domain::failure::RequestFailure;
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::pods::Pod;
use crate::domain::rule::KeepReason;
use crate::metrics::{self, DeletionAnswer, Discovered};

/// Deletions at one time, each on a connection of its own (kube's client speaks HTTP/1.1). Their number a second is
/// bounded by `--request-rate`.
pub(crate) const MAX_REQUESTS: usize = 32;

/// A deletion that would have less time than this is not sent.
const LEAST_DEADLINE: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(crate) struct DeletionWorker {
    pub(crate) state: Arc<SharedState>,
    /// Permits each deletion.
    pub(crate) leadership: Leadership,
    /// Each deletion waits for its turn by `pace`.
    pub(crate) seed: kube::Client,
    pub(crate) pace: Pace,
    pub(crate) events: EventSink,
    pub(crate) mode: Mode,
    /// At most [`MAX_REQUESTS`]; fewer when the rate is low, because what is decided now is sent when its turn comes.
    pub(crate) max_requests: usize,
}

impl DeletionWorker {
    /// Deletes until `stop` is cancelled, then waits for the requests that are under way; each has a deadline.
    ///
    /// # Errors
    /// When a request panics.
    pub(crate) async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let in_flight = metrics::REQUESTS.handle(());
        let mut leads = self.leadership.subscribe();
        let mut requests = JoinSet::new();
        while !stop.is_cancelled() {
            leads.mark_unchanged();
            let mut deletions = Vec::new();
            let room = self.max_requests.saturating_sub(requests.len());
            let acts = self.leadership.is_leader();
            let (due, findings) = self.state.plan(|state, now| {
                while acts
                    && deletions.len() < room
                    && let Some(deletion) = state.next(now)
                {
                    deletions.push(deletion);
                }
                let has_room = acts && deletions.len() < room;
                (state.next_due().filter(|_| has_room), state.take_findings())
            });
            for deletion in deletions {
                let span = weeder_span(&deletion.service);
                requests.spawn(self.clone().process(deletion).instrument(span));
            }
            for finding in findings {
                self.report(finding);
            }
            in_flight.set(requests.len() as f64);
            let due = due.map(|due| tokio::time::sleep_until(self.state.instant(due)));
            tokio::select! {
                () = stop.cancelled() => {}
                Some(ended) = requests.join_next() => ended?,
                () = self.state.changed() => {}
                // The election ends with the process.
                Ok(()) = leads.changed() => {}
                Some(()) = OptionFuture::from(due) => {}
            }
        }
        while let Some(ended) = requests.join_next().await {
            ended?;
        }
        Ok(())
    }

    /// Deletes a pod if, when the turn of the request has come, this replica leads and the rule still says so. Until
    /// the answer the Lease is not released, and nobody else leads.
    async fn process(self, deletion: Deletion) {
        if self.mode != Mode::Protect {
            return self.keep_back(&deletion);
        }
        self.pace.turn().await;
        let permit = self.leadership.act();
        let covered = permit.as_ref().map_or(Duration::ZERO, |permit| {
            permit.until().saturating_duration_since(Instant::now())
        });
        let is_current = self.state.plan(|state, now| state.is_current(&deletion, now));
        if !is_current || covered < LEAST_DEADLINE {
            self.state.update(|state, now| state.put_back(&deletion, now));
            tracing::debug!(
                pod = &*deletion.pod.key.name,
                is_current,
                "pod not deleted now, because it changed or this replica may not act; looking at it again"
            );
            return;
        }
        self.delete(&deletion, covered.min(REQUEST_DEADLINE)).await;
    }

    /// In mode observe: the pod counts as deleted from now on, and nothing is sent.
    fn keep_back(self, deletion: &Deletion) {
        let now = self.state.update(|state, now| {
            state.answered(deletion, Ok(()), true, now);
            now
        });
        let Deletion { pod, crash, .. } = deletion;
        let delay = record_delay(deletion, now);
        tracing::info!(
            pod = &*pod.key.name,
            ?delay,
            service_ready_since = %deletion.recovery.at,
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
        let answer = deletion::delete(&self.seed, &deletion.pod, within).await;
        let now = self.state.update(|state, now| {
            state.answered(deletion, answer.as_ref().copied(), false, now);
            now
        });
        let Deletion { pod, crash, .. } = deletion;
        let name = &*pod.key.name;
        let result = match &answer {
            Ok(()) => {
                let delay = record_delay(deletion, now);
                metrics::count_deleted_pod(&deletion.service.name, crash);
                tracing::info!(
                    pod = name,
                    service_ready_since = %deletion.recovery.at,
                    container = crash.container,
                    exit_code = crash.exit_code,
                    exit_reason = crash.reason,
                    restarts = crash.restarts,
                    ?delay,
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
            Finding::HeldBack(key) => {
                metrics::HELD_BACK.inc(());
                let _span = weeder_span(&key).entered();
                tracing::warn!("service became ready four times in a minute; its dependants wait");
                if self.leadership.is_leader() {
                    self.events.publish(held_back_notice(&key));
                }
            }
            Finding::LeftAlone(key, pod, reason) => {
                metrics::LEFT_ALONE.inc(reason.into());
                let _span = weeder_span(&key).entered();
                let (pod, why) = (&*pod.key.name, reason.sentence());
                tracing::info!(pod, why, "crash-looping pod left alone");
            }
            Finding::Useless(key, pod) => {
                metrics::USELESS.inc(());
                let _span = weeder_span(&key).entered();
                tracing::warn!(
                    pod = &*pod.key.name,
                    "successor of a deleted pod crashes although its service is ready"
                );
                self.events.publish(useless_notice(&key, &pod));
            }
        }
    }
}

impl From<KeepReason> for metrics::KeepLabel {
    fn from(reason: KeepReason) -> Self {
        match reason {
            KeepReason::YoungerThanRecovery => Self::YoungerThanRecovery,
            KeepReason::NoController => Self::NoController,
            KeepReason::Job => Self::Job,
            KeepReason::ExcludedKind => Self::ExcludedKind,
            KeepReason::StaticPod => Self::StaticPod,
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
    let Deletion { pod, crash, .. } = deletion;
    let (name, service, since) = (&pod.key.name, &deletion.service.name, deletion.recovery.at);
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

fn useless_notice(key: &NamespacedName, pod: &Pod) -> Notice {
    let crash = pod.crash_loop();
    let what = crash.map_or_else(|| "a container".to_owned(), ToString::to_string);
    let message = crash.map_or("", |crash| &crash.message);
    let message = if message.is_empty() { "none" } else { message };
    Notice {
        about: regarding(pod),
        warning: true,
        reason: "CrashesAlthoughServiceIsReady",
        action: "LeftAlone",
        note: format!(
            "Pod {}: {what} crashes within a minute although its service {} is ready; last message: {message}. Its \
             predecessor was deleted; it is left alone.",
            pod.key.name, key.name
        ),
    }
}

fn held_back_notice(key: &NamespacedName) -> Notice {
    Notice {
        about: reference("v1", "Service", &key.namespace, &key.name, None),
        warning: true,
        reason: "ServiceFlapping",
        action: "Waiting",
        note: format!(
            "Service {} became ready four times in a minute. Its crash-looping dependants are deleted at most three \
             times a minute.",
            key.name
        ),
    }
}
