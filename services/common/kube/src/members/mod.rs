//! The live replicas of lease-probe: each keeps one Lease with its name and its gRPC address.
//!
//! Nothing is agreed upon. Views may differ for a moment; then a shoot has more witnesses or fewer, and nothing breaks
//! (ADR 0004). A Lease that did not change while lists were answered for [`LEASE_DURATION`] is that of a dead replica:
//! by the own clock, and only by time in which changes could be seen. So a replica that is cut off from the API server
//! keeps the members that it knows, and so do all of them after an outage of the API server.
//!
//! Permissions, in the namespace of the Leases: `coordination.k8s.io` `leases`: list, create, patch, delete; to find
//! the replicas of another service, list alone.

mod lease;
mod table;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use watchdog_runtime::failure::Reason;
use watchdog_runtime::readiness::{Blocker, Readiness};

pub use self::lease::OwnLease;
use self::table::MemberTable;
pub use self::table::{LEASE_DURATION, MAX_MEMBERS, Members};
use crate::client::{RequestError, request_within};
use crate::metrics::{CHANGES, LEASE_VALID, MEMBERS, RENEWALS, RenewalResult, ServiceName};

/// Name of the loop in /readyz and in metrics, with an own Lease.
const MEMBERSHIP: &str = "membership";

/// The same without one.
const DISCOVERY: &str = "discovery";

/// From one renewal and list to the next.
const INTERVAL: Duration = Duration::from_secs(5);

/// The same after one that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Deadline of one request, that of the leader election on a slow API server. With a shorter one, replicas that start
/// where a leader can still act would find nobody and would not be found.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Follows the members of a service.
pub struct FollowedMembers {
    service: &'static str,
    readiness: Readiness,
    own: Option<OwnLease>,
    leases: Api<Lease>,
    table: MemberTable,
    renewed: Option<Instant>,
    members: watch::Sender<Members>,
    blocker: Option<Blocker>,
}

impl FollowedMembers {
    /// Of this service, by the Leases in this namespace. With `own`, this replica is one of the members, and the
    /// blocker `membership` stays until it has listed them. The receiver is empty until the first list, which counts as
    /// a change also where it finds none. Spawn [`Self::run`] as a critical task.
    #[must_use]
    pub fn new(
        client: kube::Client,
        namespace: &str,
        service: &'static str,
        readiness: Readiness,
        own: Option<OwnLease>,
    ) -> (watch::Receiver<Members>, Self) {
        let (members, receiver) = watch::channel(Members::new());
        let blocker = own.as_ref().map(|_| {
            let why = format!("the membership Leases in {namespace} have not been listed yet");
            readiness.block(MEMBERSHIP, why)
        });
        let followed = Self {
            leases: Api::namespaced(client, namespace),
            service,
            readiness,
            own,
            table: MemberTable::default(),
            renewed: None,
            members,
            blocker,
        };
        (receiver, followed)
    }

    /// Renews the own Lease, if there is one, and lists all, until `stop` is cancelled; then deletes the own one.
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
        self.leave().await;
    }

    async fn follow(&mut self) {
        let name = if self.own.is_some() { MEMBERSHIP } else { DISCOVERY };
        loop {
            let done = self.turn().await;
            let pause = match &done {
                Ok(()) => {
                    if self.readiness.recovered(name) {
                        tracing::info!(
                            service = self.service,
                            "requests about membership Leases work again"
                        );
                    }
                    self.blocker = None;
                    INTERVAL
                }
                Err(error) => {
                    let (service, failure) = (self.service, error.failure());
                    let reason = failure.reason.as_str();
                    if self.readiness.failing(name, failure) {
                        tracing::warn!(
                            service,
                            reason,
                            %error,
                            "a request about membership Leases failed; trying again"
                        );
                    }
                    RETRY_INTERVAL
                }
            };
            self.show();
            sleep(pause.mul_f64(rand::random_range(0.9..=1.1))).await;
        }
    }

    /// A renewal that fails keeps nobody from seeing the others.
    async fn turn(&mut self) -> Result<(), RequestError> {
        let renewed = self.renew().await;
        self.list().await?;
        renewed
    }

    async fn renew(&mut self) -> Result<(), RequestError> {
        let Some(own) = &self.own else {
            return Ok(());
        };
        let began = Instant::now();
        let lease = lease::render(self.service, own);
        let name = lease::name(self.service, &own.identity);
        let (patch, params) = (Patch::Merge(&lease), PatchParams::default());
        let mut written = request_within(REQUEST_TIMEOUT, self.leases.patch(&name, &params, &patch)).await;
        if written.as_ref().is_err_and(RequestError::is_not_found) {
            let params = PostParams::default();
            written = request_within(REQUEST_TIMEOUT, self.leases.create(&params, &lease)).await;
        }
        let failed = written.as_ref().err().map(|error| error.failure().reason);
        let result = failed.map_or("ok", Reason::as_str);
        RENEWALS.inc((ServiceName(self.service), RenewalResult(result)));
        written?;
        self.renewed = Some(began);
        Ok(())
    }

    async fn list(&mut self) -> Result<(), RequestError> {
        let service = self.service;
        // One more than are read, so that it shows when there are more. Metadata alone: nobody reads the rest.
        let params = ListParams::default()
            .labels(&format!("{}={service}", lease::SERVICE_LABEL))
            .limit(MAX_MEMBERS + 1);
        let listed = request_within(REQUEST_TIMEOUT, self.leases.list_metadata(&params)).await?;
        let parsed = listed
            .items
            .iter()
            .filter_map(|lease| lease::parse(service, &lease.metadata));
        // The first list counts as a change.
        let first = self.table.listed(Instant::now(), parsed.collect());
        let mut live = self.table.live();
        if let Some(own) = &self.own {
            // Whatever its Lease says.
            live.insert(Arc::clone(&own.identity), Arc::clone(&own.address));
        }
        let found = live.len();
        let changed = self.members.send_if_modified(|members| {
            let differs = first || *members != live;
            *members = live;
            differs
        });
        if changed {
            tracing::info!(service, members = found, "the live replicas have changed");
            if self.own.is_some() {
                CHANGES.inc(ServiceName(service));
            }
        }
        if listed.items.len() > MAX_MEMBERS as usize {
            tracing::warn!(
                service,
                read = MAX_MEMBERS,
                "there are more membership Leases than this process reads: delete those that belong to no replica"
            );
        }
        if self.own.is_some() {
            self.clear().await?;
        }
        Ok(())
    }

    /// Deletes the Leases of replicas that died long ago.
    async fn clear(&mut self) -> Result<(), RequestError> {
        let service = self.service;
        for member in self.table.abandoned() {
            let lease = member.lease;
            let params = DeleteParams::default().preconditions(Preconditions {
                uid: Some(member.uid),
                resource_version: Some(member.version),
            });
            match request_within(REQUEST_TIMEOUT, self.leases.delete(&lease, &params)).await {
                Ok(_) => tracing::info!(
                    service,
                    lease,
                    "the Lease of a replica that no longer exists was deleted"
                ),
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn show(&self) {
        if self.own.is_none() {
            return;
        }
        let service = ServiceName(self.service);
        let is_valid = self.renewed.is_some_and(|began| began.elapsed() < LEASE_DURATION);
        MEMBERS.set(service, self.members.borrow().len() as f64);
        LEASE_VALID.set(service, f64::from(u8::from(is_valid)));
    }

    async fn leave(self) {
        let Some(own) = self.own.filter(|_| self.renewed.is_some()) else {
            return;
        };
        let lease = lease::name(self.service, &own.identity);
        let params = DeleteParams::default();
        match request_within(REQUEST_TIMEOUT, self.leases.delete(&lease, &params)).await {
            Ok(_) => tracing::info!(lease, "the membership Lease is deleted"),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                tracing::warn!(lease, %error, "the membership Lease was not deleted; it expires on its own")
            }
        }
    }
}

#[cfg(test)]
mod tests;
