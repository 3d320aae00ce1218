//! The run loop of a leader election.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Fuse, FusedFuture as _, OptionFuture};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use watchdog_runtime::readiness::{Blocker, Readiness};

use super::election::{Candidate, ElectionStep, ElectionTiming, Moment, next_renew_time};
use super::{Leadership, LeadershipSetter};
use crate::Identity;
use crate::client::{RequestError, request_within};
use crate::metrics::{LEADER, LEASE_VALID, RENEWALS, RenewalResult, ServiceName};
use crate::stored_lease;

/// Name of the run loop in /readyz and in metrics.
const LOOP: &str = "leader-election";

/// Actions that are under way, and then the release of the Lease, may take this time each. The Go program's Pod has 5 s
/// to stop.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// The same while the API server is slow: two requests, each of which may take as long as those of the election. Both
/// times are a drain's.
const SLOW_RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings of a leader election.
pub struct ElectionConfig {
    /// For the seed.
    pub client: kube::Client,
    /// Where the Lease lives.
    pub namespace: String,
    /// The name of the Lease.
    pub lease: &'static str,
    /// The program whose replicas elect a leader, for metrics and logs.
    pub service: &'static str,
    /// The name of this replica.
    pub identity: Identity,
    /// Where others reach this replica, if they can.
    pub address: Option<Arc<str>>,
    /// Shows why the last request failed.
    pub readiness: Readiness,
    /// How long the election takes for what.
    pub timing: ElectionTiming,
}

/// A Lease that is held for this many times the longest duration is one that somebody wrote to keep others out.
const PARKED_FROM: u32 = 4;

/// The run loop of a leader election.
pub struct LeaderElection {
    config: ElectionConfig,
    /// To write the Lease.
    leases: Api<Lease>,
    /// To read it.
    stored: Api<DynamicObject>,
    candidate: Candidate,
    setter: LeadershipSetter,
    started: Instant,
    /// When the request that is under way began.
    sent: Moment,
    /// Last renewTime written: a write that changes nothing gets no new version, and others would not see it.
    renewed: Timestamp,
    blocker: Option<Blocker>,
    /// When the Lease was last read or written.
    answered: Option<Moment>,
    /// True while this process may act.
    acting: bool,
    /// While this process holds the Lease and must not act.
    overdue: Option<Blocker>,
    /// True while the Lease is held for much longer than its duration.
    parked: bool,
    /// True while the API server counts as slow.
    slow: bool,
    stop: CancellationToken,
}

/// A request that is under way, for what [`Candidate::step`] says.
type ElectionRequest = BoxFuture<'static, Result<Option<Lease>, RequestError>>;

// === impl LeaderElection ===

impl LeaderElection {
    /// Prepares the election. The blocker `leader-election` stays until the Lease was read. Spawn [`Self::run`] as a
    /// critical task; when `stop` is cancelled it releases the Lease and returns.
    pub fn join(config: ElectionConfig, stop: CancellationToken) -> (Leadership, Self) {
        let (setter, leadership) = Leadership::channel(Arc::clone(&config.identity), config.address.clone());
        // Never that of a predecessor, even in the same Pod.
        let holder = format!("{}_{:016x}", config.identity, rand::random::<u64>());
        let why = format!(
            "the Lease {}/{} has not been read yet",
            config.namespace, config.lease
        );
        let election = Self {
            leases: Api::namespaced(config.client.clone(), &config.namespace),
            stored: stored_lease::api(config.client.clone(), &config.namespace),
            candidate: Candidate::new(holder.into(), config.address.clone(), config.timing),
            setter,
            started: Instant::now(),
            sent: Moment::ZERO,
            renewed: Timestamp::UNIX_EPOCH,
            blocker: Some(config.readiness.block(LOOP, why)),
            answered: None,
            acting: false,
            overdue: None,
            parked: false,
            slow: false,
            config,
            stop,
        };
        (leadership, election)
    }

    /// Runs until the stop token is cancelled and the Lease is released, or its release timed out.
    pub async fn run(mut self) {
        let mut request: Fuse<ElectionRequest> = Fuse::terminated();
        loop {
            let now = self.now();
            let due = self.candidate.step().due();
            if request.is_terminated() && due <= now {
                self.sent = now;
                self.note_slow_actions(now);
                request = self.request().fuse();
            }
            // After the claim, which may shorten the leadership, and before it is sent.
            self.show(now);
            let idle = request.is_terminated().then_some(due);
            let wake = idle.into_iter().chain(self.candidate.act_until(now)).min();
            tokio::select! {
                () = self.stop.cancelled() => break,
                answer = &mut request => self.on_answer(answer),
                Some(()) = OptionFuture::from(wake.map(|at| sleep_until(self.started + at))) => {}
            }
        }
        // A claim that is under way may still arrive.
        let claiming = !request.is_terminated() && matches!(self.candidate.step(), ElectionStep::Write(_));
        drop(request);
        self.leave(claiming).await;
    }

    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    fn wall_clock(&mut self) -> Timestamp {
        self.renewed = next_renew_time(self.renewed, Timestamp::now());
        self.renewed
    }

    fn note_slow_actions(&mut self, now: Moment) {
        self.candidate.on_acted(now, self.setter.take_slowest());
    }

    fn request(&mut self) -> ElectionRequest {
        let deadline = self.candidate.times(self.sent).request_timeout();
        let name = self.config.lease;
        if matches!(self.candidate.step(), ElectionStep::Read(_)) {
            let stored = self.stored.clone();
            return async move { request_within(deadline, stored_lease::read(&stored, name)).await }.boxed();
        }
        let leases = self.leases.clone();
        let at = self.wall_clock();
        let lease = self.candidate.claim(self.sent, name, at);
        async move { write(&leases, deadline, name, &lease).await.map(Some) }.boxed()
    }

    fn on_answer(&mut self, answer: Result<Option<Lease>, RequestError>) {
        let (now, was_leader) = (self.now(), self.candidate.is_leader());
        if answer.is_ok() {
            self.answered = Some(now);
        }
        match (self.candidate.step(), answer) {
            (_, Err(error)) => self.on_failed(now, &error),
            (ElectionStep::Write(_), Ok(Some(lease))) => {
                RENEWALS.inc((ServiceName(self.config.service), RenewalResult("ok")));
                self.config.readiness.recovered(LOOP);
                self.candidate.on_written(self.sent, now, lease);
            }
            (_, Ok(lease)) => {
                self.config.readiness.recovered(LOOP);
                let spread = rand::random_range(1.0..=1.2);
                self.candidate.on_read(self.sent, now, lease, spread);
                self.show_holder(now);
            }
        }
        let lease = self.config.lease;
        let Some(leader) = self.candidate.leader().filter(|leader| !leader.is_empty()) else {
            if was_leader {
                tracing::warn!(
                    lease,
                    "the Lease was emptied, deleted, or released by another client; this process has stopped acting: \
                     never edit or delete the Lease while a process leads"
                );
            }
            return;
        };
        match (was_leader, self.candidate.is_leader()) {
            (false, true) => tracing::info!(lease, holder = %leader, "this process is the leader"),
            (true, false) => {
                tracing::warn!(lease, %leader, "another process is the leader; this process has stopped acting")
            }
            _ => {}
        }
    }

    /// From here on it is known who leads, or that nobody does. Where the Lease is held for longer than a leader needs,
    /// somebody keeps all processes out: then nobody leads, and this Pod must show that.
    fn show_holder(&mut self, now: Moment) {
        let held_for = self.candidate.held_for(now);
        if held_for <= PARKED_FROM * self.config.timing.slow.lease_duration {
            self.blocker = None;
            self.parked = false;
            return;
        }
        if std::mem::replace(&mut self.parked, true) {
            return;
        }
        let holder = self.candidate.leader().map_or("", |holder| holder);
        let (lease, seconds) = (self.config.lease, held_for.as_secs());
        let why = format!(
            "{holder} holds the Lease {}/{lease} for another {seconds} s, so no process can become the leader: \
             release the Lease (docs/how-to/switch.md)",
            self.config.namespace
        );
        tracing::warn!(
            lease,
            holder,
            seconds,
            "another holder keeps the Lease for longer than a leader needs, so no process can become the leader: \
             release the Lease"
        );
        self.blocker = None;
        self.blocker = Some(self.config.readiness.block(LOOP, why));
    }

    fn on_failed(&mut self, now: Moment, error: &RequestError) {
        let writing = matches!(self.candidate.step(), ElectionStep::Write(_));
        let deleted = error.is_not_found() && self.candidate.replaces();
        let conflict = writing && (error.is_conflict() || deleted);
        let failure = error.failure();
        let reason = failure.reason.as_str();
        if writing {
            RENEWALS.inc((ServiceName(self.config.service), RenewalResult(reason)));
        }
        let lease = self.config.lease;
        if conflict {
            tracing::info!(lease, reason, %error, "another process changed the Lease of the leader election");
        } else if self.config.readiness.failing(LOOP, failure) {
            tracing::warn!(lease, writing, reason, %error, "a request of the leader election failed; trying again");
        }
        self.candidate.on_failed(self.sent, now, conflict);
    }

    fn show(&mut self, now: Moment) {
        self.show_pace(now);
        let act_until = self.candidate.act_until(now).map(|until| self.started + until);
        let service = ServiceName(self.config.service);
        let in_time = self
            .answered
            .is_some_and(|at| now < at + self.candidate.times(now).lease_duration);
        LEASE_VALID.set(service, f64::from(u8::from(in_time)));
        LEADER.set(service, f64::from(u8::from(act_until.is_some())));
        let acted = std::mem::replace(&mut self.acting, act_until.is_some());
        if act_until.is_some() || !self.candidate.is_leader() {
            self.overdue = None;
        }
        if !self.candidate.is_leader() {
            return self.setter.follow(self.candidate.found());
        }
        self.setter.lead(act_until);
        if acted && act_until.is_none() {
            let (namespace, lease) = (&self.config.namespace, self.config.lease);
            tracing::warn!(lease, "the Lease was not renewed in time; all writes are paused");
            let why = format!(
                "the Lease {namespace}/{lease} was not renewed in time, so this replica must not act and another one \
                 may lead: check the API server of the seed and the network to it"
            );
            self.overdue = Some(self.config.readiness.block(LOOP, why));
        }
    }

    /// Slow requests make a crash cost more, if this process leads.
    fn show_pace(&mut self, now: Moment) {
        let times = *self.candidate.times(now);
        let slow = times != self.config.timing.usual;
        if std::mem::replace(&mut self.slow, slow) == slow {
            return;
        }
        let (lease, seconds) = (self.config.lease, times.lease_duration.as_secs());
        if slow {
            tracing::warn!(
                lease,
                seconds,
                "requests to the API server take long; if this process leads, its Lease lasts longer, and after a \
                 crash another replica takes it later"
            );
        } else {
            tracing::info!(
                lease,
                seconds,
                "requests to the API server are fast again; the Lease of a leader is short"
            );
        }
    }

    /// Ceases to lead, and releases the Lease once no action is under way.
    async fn leave(mut self, claiming: bool) {
        self.setter.follow(None);
        let (lease, times) = (self.config.lease, *self.candidate.times(self.now()));
        // Always the usual ones where a process has no others, such as in the Go program's Pod.
        let within = match times == self.config.timing.usual {
            true => RELEASE_TIMEOUT,
            false => SLOW_RELEASE_TIMEOUT,
        };
        if !self.setter.idle(within).await {
            tracing::warn!(
                lease,
                "a write is still in flight at the end of the drain; the Lease expires on its own"
            );
            return;
        }
        if !claiming && !self.candidate.is_leader() {
            return;
        }
        match timeout(within, self.release(times.request_timeout())).await {
            Ok(Ok(())) => tracing::info!(lease, "the Lease is released"),
            Ok(Err(error)) => {
                tracing::warn!(lease, %error, "the Lease was not released; it expires on its own")
            }
            Err(_) => tracing::warn!(lease, "the Lease was not released in time; it expires on its own"),
        }
    }

    async fn release(&mut self, deadline: Duration) -> Result<(), RequestError> {
        let (name, began) = (self.config.lease, self.now());
        // A renewal may have been under way.
        let lease = request_within(deadline, stored_lease::read(&self.stored, name)).await?;
        self.candidate.on_read(began, self.now(), lease, 0.0);
        let at = self.wall_clock();
        if let Some(released) = self.candidate.release(at) {
            write(&self.leases, deadline, name, &released).await?;
        }
        Ok(())
    }
}

/// Creates the Lease, or replaces exactly that version of it.
async fn write(
    leases: &Api<Lease>,
    deadline: Duration,
    name: &str,
    lease: &Lease,
) -> Result<Lease, RequestError> {
    let params = PostParams::default();
    match &lease.metadata.resource_version {
        None => request_within(deadline, leases.create(&params, lease)).await,
        Some(_) => request_within(deadline, leases.replace(name, &params, lease)).await,
    }
}

#[cfg(test)]
mod tests;
