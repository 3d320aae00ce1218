//! The run loop: carries out what the rules ask for and reports the results to them.

use std::sync::Arc;

use futures::future::{BoxFuture, Fuse, OptionFuture};
use futures::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use watchdog_runtime::backoff::Backoff;
use watchdog_runtime::failure::{Failure, Reason};
use watchdog_runtime::readiness::{Blocker, Readiness};

use super::leases::Leases;
use super::member_table::Moment;
use super::record::{ObservedLease, Session};
use super::share::{Shared, Snapshot};
use super::state::{LeaseAnswer, MembershipEvent, MembershipState, Request};
use super::timing::Timing;
use super::{MembershipConfig, Ownership};
use crate::client::RequestError;
use crate::metrics::{CHANGES, LEASE_VALID, MEMBERS, RENEWALS, RenewalResult, ServiceName};

/// Name of the run loop in /readyz and in metrics.
const LOOP: &str = "membership";

/// The part of a membership that runs: joins, renews, follows the others, releases at the end.
pub struct MembershipTask {
    service: &'static str,
    ownership: Ownership,
    timing: Timing,
    started: Instant,
    leases: Arc<Leases>,
    state: MembershipState,
    shared: Arc<Shared>,
    backoff: Backoff,
    readiness: Readiness,
    /// Held until this replica has joined.
    blocker: Option<Blocker>,
    /// Why the last request failed, if it did.
    failure: Option<Failure>,
    stop: CancellationToken,
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
            identity: _,
            address,
            readiness,
            timing,
        } = config;
        let me = &shared.me;
        let leases = Leases::new(client, &namespace, service, Some(Arc::clone(me)), &timing);
        let state = MembershipState::new(
            Arc::clone(me),
            address.into(),
            Session::random(),
            ownership,
            timing,
        );
        let why = "this replica has not joined yet: it needs its own Lease, and a list of the others'";
        Self {
            service,
            ownership,
            timing,
            started: Instant::now(),
            leases: Arc::new(leases),
            state,
            shared,
            backoff: retries(&timing),
            blocker: Some(readiness.block(LOOP, why)),
            readiness,
            failure: None,
            stop,
        }
    }

    /// This process lives in the Pod with this UID, and was started after every other process with its identity there
    /// had ended: it takes up what one left behind, without waiting for the end of its lease (ADR 0009).
    #[must_use]
    pub fn in_pod(mut self, uid: &str) -> Self {
        self.state.pod = Some(uid.into());
        self
    }

    /// Runs until the stop token is cancelled and the own Lease is released, or cannot be within
    /// [`Timing::release_timeout`]. To be spawned as a critical task of the process.
    pub async fn run(mut self) {
        let mut changes = Leases::watch(&self.leases, LOOP, &self.readiness);
        let mut request: Fuse<BoxFuture<'static, Result<LeaseAnswer, RequestError>>> = Fuse::terminated();
        let mut drained_by: Option<Instant> = None;
        loop {
            let now = self.now();
            // In this order: nobody may begin to act on a key that is about to be handed over, and nobody must be at
            // it, when the request goes out by which the new owner learns that it may.
            self.show(now);
            let busy_until = self.shared.busy_until(drained_by.is_some());
            self.state.set_busy(busy_until.is_some());
            if let Some(wanted) = self.state.next(now) {
                request = perform(Arc::clone(&self.leases), wanted).boxed().fuse();
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
                result = &mut request => {
                    let now = self.now();
                    let answer = self.answer(result);
                    self.state.answered(now, answer);
                }
                Some(change) = changes.next() => self.watched(change),
                () = self.shared.returned.notified() => {}
                Some(()) = OptionFuture::from(wake.map(sleep_until)) => {}
            }
        }
    }

    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    fn show(&mut self, now: Moment) {
        let service = ServiceName(self.service);
        let ring = self.state.ring();
        MEMBERS.set(service, ring.len() as f64);
        LEASE_VALID.set(service, f64::from(u8::from(self.state.is_valid(now))));
        let shares = self.state.shares();
        let act_until = self.state.act_until(now).map(|at| self.started + at);
        if self.shared.show(Snapshot {
            ring,
            shares,
            act_until,
        }) {
            CHANGES.inc(service);
        }
        // Not before the shares show: who reads that this replica is ready finds that it owns keys.
        if shares {
            self.blocker = None;
        }
    }

    fn watched(&mut self, change: Option<ObservedLease>) {
        match change {
            Some(seen) => self.state.observed(self.now(), seen),
            None => self.state.request_list(),
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
        let (service, identity) = (self.service, &self.shared.me);
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
