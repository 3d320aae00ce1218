//! Merges the verdicts of this replica of lease-probe with those of the others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use watchdog_proto::probe::v1::Verdict;
use watchdog_runtime::service_builder::ServiceBuilder;

use super::known_replicas::PeerState;
use super::reports::{Reports, VerdictReport, renews};
use super::{OwnItems, SeedView};
use crate::follow::{Received, Update};
use crate::item::StreamItem;
use crate::replicas::{ReplicaEndpoints, ReplicaHandler, follow_replicas};
use crate::server::{KeyUpdate, StreamStore};

/// Reports that were left behind stay at most this much too long, and renewals that are due wait at most this long.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);

/// Returns false if it is certain that no replica has a verdict on a shoot any more.
pub(super) type Exists = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// Receives the verdicts of all replicas for a view.
pub(super) struct Merge {
    pub(super) view: SeedView<Verdict>,
    pub(super) exists: Exists,
}

impl SeedView<Verdict> {
    /// A view of the replica named `me`, which shares the seed with others, without any verdicts.
    #[must_use]
    pub fn shared(me: Arc<str>, draining: CancellationToken) -> Self {
        Self {
            whole: StreamStore::new(),
            ..Self::new(me, draining)
        }
    }

    /// Follows the verdicts of this replica and of the others until the process drains. `exists` is false if it is
    /// certain that no replica has a verdict on a shoot any more. A replica without reachable peers answers from what
    /// it has; nothing here keeps it from being ready.
    pub fn spawn_shared<K, V>(
        &self,
        base: &ServiceBuilder,
        own: OwnItems<K, V, Verdict>,
        exists: impl Fn(&str) -> bool + Send + Sync + 'static,
        peers: ReplicaEndpoints,
    ) where
        K: Ord + Clone + Send + Sync + 'static,
        V: Send + Sync + 'static,
    {
        let merge = Arc::new(Merge {
            view: self.clone(),
            exists: Box::new(exists),
        });
        let follow = follow_replicas(
            Some(base.identity.clone()),
            peers,
            merge.clone(),
            base.readiness.clone(),
            self.draining.clone(),
        );
        base.tasks.critical(Verdict::STREAM, async move {
            tokio::select! {
                () = merge.own(&own) => Ok(()),
                // Ends with the drain, and the rest with it.
                followed = follow => followed,
            }
        });
    }
}

impl Merge {
    /// Takes over the verdicts of this replica among those of the others. Never ends.
    pub(super) async fn own<K: Ord + Clone, V>(&self, own: &OwnItems<K, V, Verdict>) {
        let me = &self.view.me;
        let follow = self.view.follow_own(own, |shoot, report| match report {
            Some(report) => self.set(me, shoot, report),
            // One that is taken back waits for that of another replica.
            None => self.unset(me, shoot),
        });
        tokio::join!(follow, self.view.fill(&own.is_filled), self.tidy());
    }

    /// Drops what was left behind once its time is over or the shoot is gone, replaces what is not valid any more, and
    /// publishes the renewals that are due, all at once: to wake every subscriber for each of them costs more than to
    /// send them.
    pub(super) async fn tidy(&self) {
        let mut ticks = tokio::time::interval(TIDY_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = Instant::now();
            let states = self.view.replicas.borrow().states.clone();
            let is_lost = |replica: &str| states.get(replica) == Some(&PeerState::Outdated);
            self.view.reports.lock().retain(|shoot, reports| {
                let is_tidied = reports.tidy(now, || (self.exists)(shoot), is_lost);
                if is_tidied || reports.renewal_is_due(now) || reports.has_successor(now) {
                    self.publish(shoot, reports, now);
                }
                !reports.is_empty()
            });
        }
    }

    fn set(&self, replica: &Arc<str>, shoot: &str, report: VerdictReport) {
        let mut all = self.view.reports.lock();
        let reports = all.entry(shoot.to_owned()).or_default();
        reports.upsert(replica, report);
        self.publish(shoot, reports, Instant::now());
    }

    fn unset(&self, replica: &str, shoot: &str) {
        let mut all = self.view.reports.lock();
        if let Some(reports) = all.get_mut(shoot) {
            let now = Instant::now();
            if reports.remove(replica, (self.exists)(shoot), now) {
                self.publish(shoot, reports, now);
            }
            if reports.is_empty() {
                all.remove(shoot);
            }
        }
    }

    /// Removes the reports of a replica on all shoots that it does not report.
    fn forget(&self, replica: &str, is_reported: impl Fn(&String) -> bool) {
        let now = Instant::now();
        self.view.reports.lock().retain(|shoot, reports| {
            if !is_reported(shoot) && reports.remove(replica, (self.exists)(shoot), now) {
                self.publish(shoot, reports, now);
            }
            !reports.is_empty()
        });
    }

    /// Publishes the report that counts; a renewal only when subscribers need it. Under the lock of the reports, so
    /// that two changes keep their order.
    fn publish(&self, shoot: &str, reports: &mut Reports, now: Instant) {
        let whole = &self.view.whole;
        let shoot = shoot.to_owned();
        let Some(newest) = reports.newest(now).cloned() else {
            whole.remove(&shoot);
            return;
        };
        whole.update(shoot, |shown| {
            if shown == Some(&newest) && !reports.renewal_is_due(now) {
                return KeyUpdate::None;
            }
            let is_renewal = shown.is_some_and(|shown| renews(&newest.item, &shown.item));
            if is_renewal && reports.defer_renewal(now) {
                KeyUpdate::Renewed(newest)
            } else {
                reports.note_sent(&newest, now);
                KeyUpdate::Changed(newest)
            }
        });
    }

    fn note(&self, replica: &str, state: PeerState) {
        self.view.replicas.send_if_modified(|replicas| {
            let known = replicas.states.get_mut(replica).filter(|known| **known != state);
            known.map(|known| *known = state).is_some()
        });
    }
}

impl ReplicaHandler for Merge {
    fn on_listed(&self) {
        self.view
            .replicas
            .send_if_modified(|replicas| !std::mem::replace(&mut replicas.listed, true));
    }

    fn on_join(&self, replica: &Arc<str>) {
        let joined = PeerState::Joined(Instant::now());
        self.view.replicas.send_modify(|replicas| {
            replicas.states.insert(replica.clone(), joined);
        });
    }

    fn on_leave(&self, replica: &Arc<str>) {
        // Before the replica stops being missing.
        self.forget(replica, |_| false);
        self.view.replicas.send_modify(|replicas| {
            replicas.states.remove(replica);
        });
    }

    fn on_update(&self, replica: &Arc<str>, update: Update<String, Verdict>) {
        match update {
            Update::Snapshot(items, completeness) => {
                let shoots: BTreeSet<String> = items.keys().cloned().collect();
                for (shoot, received) in items {
                    self.set(replica, &shoot, report(received));
                }
                self.forget(replica, |shoot| shoots.contains(shoot));
                let state = if completeness.complete {
                    PeerState::Synced
                } else {
                    PeerState::Outdated
                };
                self.note(replica, state);
            }
            Update::Upsert(shoot, received) => self.set(replica, &shoot, report(received)),
            Update::Removed(shoot) => self.unset(replica, &shoot),
            // Of its own items, a replica has all from its snapshot on.
            Update::Completeness(_) | Update::Skipped(_) => {}
            // Its items stay until it sends others or leaves.
            Update::Lost(_) => {
                let known = self.view.replicas.borrow().states.get(replica).copied();
                if !matches!(known, Some(PeerState::Joined(_))) {
                    self.note(replica, PeerState::Outdated);
                }
            }
        }
    }
}

fn report(received: Received<Verdict>) -> VerdictReport {
    VerdictReport {
        item: Arc::new(received.value),
        as_of: received.sent_at,
        set_at: received.set_at,
    }
}
