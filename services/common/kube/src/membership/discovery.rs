//! The live replicas of another service, by the same rule of liveness. Reads only.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use watchdog_runtime::publish::publish_if_changed;
use watchdog_runtime::readiness::Readiness;

use super::leases::Leases;
use super::member_table::{MemberTable, Moment};
use super::record::Identity;
use super::run::retries;
use super::timing::Timing;

/// Name of the loop in /readyz and in metrics.
const LOOP: &str = "discovery";

/// Identity to gRPC address.
pub type ReplicaAddresses = BTreeMap<Identity, Arc<str>>;

/// Follows the replicas of another service.
#[derive(Debug)]
pub struct Discovery {
    service: &'static str,
    timing: Timing,
    started: Instant,
    leases: Arc<Leases>,
    member_table: MemberTable,
    found: watch::Sender<ReplicaAddresses>,
    readiness: Readiness,
    stop: CancellationToken,
}

// === impl Discovery ===

impl Discovery {
    /// Follows the live replicas of `service` in `namespace`: the receiver always has the latest. It is empty until the
    /// first list, which counts as a change also where it finds none. Spawn [`Self::run`] as a critical task.
    ///
    /// A replica that has crashed shows for up to 18 s; one that has left is gone at once. While the API server cannot
    /// be reached the last known replicas stay.
    #[must_use]
    pub fn follow(
        client: kube::Client,
        namespace: &str,
        service: &'static str,
        timing: Timing,
        readiness: Readiness,
        stop: CancellationToken,
    ) -> (watch::Receiver<ReplicaAddresses>, Self) {
        let (found, addresses) = watch::channel(ReplicaAddresses::new());
        let discovery = Self {
            service,
            timing,
            started: Instant::now(),
            leases: Arc::new(Leases::new(client, namespace, service, None, &timing)),
            member_table: MemberTable::new(timing.peer_ttl),
            found,
            readiness,
            stop,
        };
        (addresses, discovery)
    }

    /// Runs until the stop token is cancelled.
    pub async fn run(mut self) {
        let mut changes = Leases::watch(&self.leases, LOOP, &self.readiness);
        let mut backoff = retries(&self.timing);
        let (mut list_at, mut retry_at) = (Moment::ZERO, Moment::ZERO);
        let mut first = true;
        loop {
            let due = self
                .member_table
                .suspect_at()
                .unwrap_or(list_at)
                .min(list_at)
                .max(retry_at);
            let started = self.started.elapsed();
            if due > started {
                tokio::select! {
                    () = self.stop.cancelled() => return,
                    Some(change) = changes.next() => {
                        let now = self.started.elapsed();
                        if change.is_none_or(|seen| self.member_table.observed(now, seen)) {
                            list_at = Moment::ZERO;
                        }
                        self.publish();
                    }
                    () = sleep_until(self.started + due) => {}
                }
                continue;
            }
            let mark = self.member_table.mark();
            let listed = tokio::select! {
                () = self.stop.cancelled() => return,
                listed = self.leases.list() => listed,
            };
            let now = self.started.elapsed();
            match listed {
                Ok(leases) => {
                    backoff.reset();
                    self.readiness.recovered(LOOP);
                    let unsure = self.member_table.listed(started, mark, now, leases);
                    if std::mem::take(&mut first) && self.member_table.live().next().is_none() {
                        self.found.send_modify(|_| {});
                    }
                    list_at = if unsure {
                        Moment::ZERO
                    } else {
                        now + self.timing.resync
                    };
                }
                Err(error) => {
                    let failure = error.failure();
                    let reason = failure.reason.as_str();
                    tracing::warn!(service = self.service, reason, %error, "cannot list the replicas; trying again");
                    self.readiness.failing(LOOP, failure);
                    retry_at = now + backoff.next_delay();
                }
            }
            self.publish();
        }
    }

    fn publish(&self) {
        let live = self
            .member_table
            .live()
            .map(|m| (Arc::clone(&m.record.identity), Arc::clone(&m.record.address)));
        let live: ReplicaAddresses = live.collect();
        publish_if_changed(&self.found, &live);
    }
}
