//! The run loop: carries out what the rules ask for and reports the results to them.

use std::future::pending;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use watchdog_runtime::backoff::Backoff;
use watchdog_runtime::failure::{Failure, Reason};
use watchdog_runtime::readiness::Readiness;

use super::leases::Leases;
use super::member_table::Moment;
use super::metrics::{CHANGES, LEASE_VALID, MEMBERS, RENEWALS, RenewalResult, ServiceName};
use super::record::{Identity, Session};
use super::share::{Member, PublishedMember, Shared, Snapshot};
use super::state::{LeaseAnswer, MembershipEvent, MembershipState, Request};
use super::timing::Timing;
use super::{MembershipConfig, Ownership};
use crate::client::{RequestError, WATCH_SECONDS};
use crate::metrics::{WATCH_ERRORS, WatchName};
use crate::watch;

/// Name of the run loop in /readyz and in metrics.
const LOOP: &str = "membership";

/// Events of the Leases of a service.
pub(crate) type LeaseWatch = BoxStream<'static, watcher::Result<Event<Lease>>>;

/// The part of a membership that runs: joins, renews, follows the others, releases at the end.
pub struct MembershipTask {
    service: &'static str,
    me: Identity,
    address: Arc<str>,
    ownership: Ownership,
    timing: Timing,
    started: Instant,
    leases: Arc<Leases>,
    state: MembershipState,
    shared: Arc<Shared>,
    backoff: Backoff,
    readiness: Readiness,
    /// Why the last request failed, if it did.
    failure: Option<Failure>,
    stop: CancellationToken,
}

impl std::fmt::Debug for MembershipTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MembershipTask")
            .field("service", &self.service)
            .field("state", &self.state)
            .finish()
    }
}

impl MembershipTask {
    pub(crate) fn new(
        config: MembershipConfig,
        ownership: Ownership,
        shared: Arc<Shared>,
        stop: CancellationToken,
    ) -> Self {
        let MembershipConfig {
            client,
            namespace,
            service,
            identity,
            address,
            readiness,
            timing,
        } = config;
        let me: Identity = identity.into();
        let address: Arc<str> = address.into();
        let leases = Leases::new(client, &namespace, service, Some(Arc::clone(&me)), &timing);
        let state = MembershipState::new(
            Arc::clone(&me),
            Arc::clone(&address),
            Session::random(),
            ownership,
            timing,
        );
        Self {
            service,
            me,
            address,
            ownership,
            timing,
            started: Instant::now(),
            leases: Arc::new(leases),
            state,
            shared,
            backoff: retries(&timing),
            readiness,
            failure: None,
            stop,
        }
    }

    /// This process lives in the Pod with this UID, and was started after every other process with its identity there
    /// had ended: it takes up what one left behind, without waiting for the end of its lease (ADR 0009).
    #[must_use]
    pub fn in_pod(mut self, uid: &str) -> Self {
        self.state = self.state.in_pod(Some(uid.into()));
        self
    }

    /// Runs until the stop token is cancelled and the own Lease is released, or cannot be within
    /// [`Timing::release_timeout`]. To be spawned as a critical task of the process.
    pub async fn run(mut self) {
        let mut watch = follow(&self.leases);
        let mut request: Option<BoxFuture<'static, Result<LeaseAnswer, RequestError>>> = None;
        let mut drained_by: Option<Instant> = None;
        loop {
            let now = self.now();
            // In this order: nobody may begin to act on a key that is about to be handed over, and nobody must be at
            // it, when the request goes out by which the new owner learns that it may.
            self.show(now);
            let busy_until = self.shared.busy_until(drained_by.is_some());
            self.state.set_busy(busy_until.is_some());
            if let Some(wanted) = self.state.next(now) {
                request = Some(perform(Arc::clone(&self.leases), wanted).boxed());
            }
            self.log_events();
            // A lapse may just have been noticed.
            self.show(now);
            if self.state.has_left() {
                tracing::info!(service = self.service, "replica left the membership");
                return;
            }
            if drained_by.is_some_and(|by| Instant::now() >= by) {
                tracing::warn!(
                    service = self.service,
                    "the membership lease was not released in time; other replicas take over when it expires"
                );
                return;
            }
            let wake = self.state.wake_at().map(|at| self.started + at);
            let wake = wake.into_iter().chain(busy_until).chain(drained_by).min();
            tokio::select! {
                () = self.stop.cancelled(), if drained_by.is_none() => {
                    drained_by = Some(Instant::now() + self.timing.release_timeout);
                    self.state.leave();
                }
                result = done(&mut request) => {
                    let now = self.now();
                    let answer = self.answer(result);
                    self.state.answered(now, answer);
                }
                event = watch.next() => self.watched(event),
                () = self.shared.returned.notified() => {}
                () = wait(wake) => {}
            }
        }
    }

    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    fn show(&mut self, now: Moment) {
        let at = |moment: Moment| self.started + moment;
        let ring = self.state.ring();
        let act_until = self.state.act_until(now).map(at);
        let others = self.state.others().map(|member| PublishedMember {
            member: Member {
                identity: Arc::clone(&member.record.identity),
                address: Arc::clone(&member.record.address),
                live: true,
                acknowledges: self.state.acknowledges(&member.record),
                me: false,
            },
            live_until: at(member.changed + self.timing.peer_ttl),
        });
        let valid = self.state.valid_until(now);
        let me = PublishedMember {
            member: Member {
                identity: Arc::clone(&self.me),
                address: Arc::clone(&self.address),
                live: true,
                acknowledges: true,
                me: true,
            },
            live_until: at(valid.unwrap_or_default()),
        };
        let mut members: Vec<_> = others.chain([me]).collect();
        members.sort_by(|a, b| a.member.identity.cmp(&b.member.identity));
        let service = ServiceName(self.service);
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52 members")]
        MEMBERS.set(service, ring.len() as f64);
        LEASE_VALID.set(service, f64::from(u8::from(valid.is_some())));
        let shares = self.state.shares();
        if self.shared.show(Snapshot {
            ring,
            shares,
            act_until,
            members,
        }) {
            CHANGES.inc(service);
        }
    }

    fn watched(&mut self, event: Option<watcher::Result<Event<Lease>>>) {
        let now = self.now();
        match event {
            Some(Ok(Event::Apply(lease) | Event::InitApply(lease))) => match self.leases.read(&lease) {
                Some(seen) => self.state.observed(now, seen),
                None => self.state.request_list(),
            },
            Some(Ok(Event::Delete(_) | Event::InitDone)) => self.state.request_list(),
            Some(Ok(Event::Init)) | None => {}
            Some(Err(error)) => report(self.service, LOOP, &self.readiness, &error),
        }
    }

    /// The end of a request, for the rules.
    fn answer(&mut self, result: Result<LeaseAnswer, RequestError>) -> LeaseAnswer {
        let error = match result {
            Ok(answer) => {
                // Where lists work and writes do not, there is a list before each write.
                if matches!(answer, LeaseAnswer::Written(_)) {
                    self.backoff.reset();
                    self.failure = None;
                    self.readiness.recovered(LOOP);
                    self.count(Ok(()));
                }
                return answer;
            }
            Err(error) => error,
        };
        let delay = self.backoff.next_delay();
        // As long as the server asks for, but the lease must live.
        let delay = delay.max(error.retry_after().unwrap_or_default().min(self.timing.renew));
        let writing = self.state.is_writing();
        let failure = error.failure();
        if writing {
            self.count(Err(failure.reason));
        }
        let reason = failure.reason.as_str();
        tracing::warn!(
            service = self.service,
            writing,
            reason,
            %error,
            "a membership request failed; trying again"
        );
        self.readiness.failing(LOOP, failure.clone());
        self.failure = Some(failure);
        if writing && (error.is_conflict() || error.is_not_found()) {
            return LeaseAnswer::Conflict(delay);
        }
        LeaseAnswer::Failed(delay)
    }

    fn count(&self, result: Result<(), Reason>) {
        RENEWALS.inc((ServiceName(self.service), RenewalResult(result)));
    }

    fn log_events(&mut self) {
        let (service, identity) = (self.service, &self.me);
        while let Some(event) = self.state.take_event() {
            match event {
                MembershipEvent::Joined => {
                    tracing::info!(service, %identity, "replica joined the membership")
                }
                MembershipEvent::Lapsed => {
                    let error = self.failure.as_ref().map_or_else(
                        || "the process was stopped for longer than the lease is valid".to_owned(),
                        ToString::to_string,
                    );
                    let reason = self.failure.as_ref().map(|failure| failure.reason.as_str());
                    let consequence = match self.ownership {
                        Ownership::Exclusive => "all writes are paused",
                        Ownership::Overlapping => "other replicas may take over its share",
                    };
                    tracing::warn!(
                        service,
                        %identity,
                        reason,
                        error,
                        consequence,
                        "membership lease expired before it was renewed"
                    );
                }
                MembershipEvent::Overwritten => tracing::warn!(
                    service,
                    %identity,
                    "another client deleted or changed the membership lease of this replica; joining again"
                ),
                MembershipEvent::IdentityConflict(session) => tracing::error!(
                    service,
                    %identity,
                    %session,
                    "another process with this identity took the membership lease; give every replica its own identity"
                ),
                MembershipEvent::HeldByOther(session) => tracing::warn!(
                    service,
                    %identity,
                    %session,
                    "another process with this identity holds the membership lease; waiting until it expires"
                ),
            }
        }
    }
}

/// Two retries fit between the first failure of a renewal and the end of the lease.
pub(crate) fn retries(timing: &Timing) -> Backoff {
    Backoff::new(timing.renew / 20, timing.renew / 5)
}

/// Follows the Leases of a service.
pub(crate) fn follow(leases: &Leases) -> LeaseWatch {
    let config = watcher::Config::default()
        .labels(&leases.selector())
        .timeout(WATCH_SECONDS);
    // It never ends; if it did, the lists would go on.
    watcher(leases.api.clone(), config)
        .default_backoff()
        .chain(futures::stream::pending())
        .boxed()
}

pub(crate) fn report(
    service: &'static str,
    name: &'static str,
    readiness: &Readiness,
    error: &watcher::Error,
) {
    WATCH_ERRORS.inc(WatchName("membership"));
    let failure = watch::failure(error);
    let reason = failure.reason.as_str();
    tracing::warn!(service, reason, error = %failure, "the watch of the membership leases failed; trying again");
    readiness.failing(name, failure);
}

async fn perform(leases: Arc<Leases>, request: Request) -> Result<LeaseAnswer, RequestError> {
    match request {
        Request::List => leases.list().await.map(LeaseAnswer::Listed),
        Request::Write { base, record } => leases.write(base, &record).await.map(LeaseAnswer::Written),
        Request::Collect {
            identity,
            lease_version,
        } => {
            if let Err(error) = leases.delete(&identity, &lease_version).await {
                tracing::info!(%identity, %error, "an old membership lease could not be deleted; trying again later");
            }
            Ok(LeaseAnswer::Collected)
        }
    }
}

pub(super) async fn done<T>(request: &mut Option<BoxFuture<'static, T>>) -> T {
    let Some(running) = request else {
        return pending().await;
    };
    let result = running.await;
    *request = None;
    result
}

pub(super) async fn wait(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => pending().await,
    }
}
