//! Receives the verdicts of the lease-probe replicas.

use std::sync::Arc;

use parking_lot::Mutex;
use watchdog_proto::probe::v1 as pb;
use watchdog_runtime::readiness::{Blocker, Readiness};
use watchdog_watch_stream::client::Update;
use watchdog_watch_stream::replicas::ReplicaHandler;

use crate::controller::verdicts::VerdictTable;
use crate::grpc::convert;

/// Name of the blocker while no lease-probe reports: the coordinator protects nobody.
const BLOCKER: &str = "verdicts";

pub(crate) struct Observers {
    pub(crate) verdicts: Arc<VerdictTable>,
    readiness: Readiness,
    blocker: Mutex<Option<Blocker>>,
}

impl Observers {
    pub(crate) fn new(verdicts: Arc<VerdictTable>, readiness: Readiness) -> Self {
        let observers = Self {
            verdicts,
            readiness,
            blocker: Mutex::default(),
        };
        observers.show_readiness();
        observers
    }

    /// Ready only with a synchronized stream from a lease-probe replica.
    fn show_readiness(&self) {
        let streams = self.verdicts.streams();
        let mut blocker = self.blocker.lock();
        if streams.synced > 0 {
            *blocker = None;
            return;
        }
        let why = match streams.known {
            0 => "no lease-probe replica is known: check that it runs and keeps its Leases in the same namespace"
                .to_owned(),
            known => format!("none of the {known} known lease-probe replicas has a synchronized stream"),
        };
        match &*blocker {
            Some(blocker) => blocker.because(why),
            None => *blocker = Some(self.readiness.block(BLOCKER, why)),
        }
    }
}

impl ReplicaHandler for Observers {
    fn on_join(&self, replica: &Arc<str>) {
        self.verdicts.joined(replica);
        self.show_readiness();
    }

    fn on_leave(&self, replica: &Arc<str>) {
        self.verdicts.left(replica);
        self.show_readiness();
    }

    fn on_update(&self, replica: &Arc<str>, update: Update<String, pb::Verdict>) {
        match update {
            Update::Snapshot(items, _) => {
                let read = |(shoot, received): (String, _)| (shoot, convert::verdict(&received));
                self.verdicts.snapshot(replica, items.into_iter().map(read));
            }
            Update::Upsert(shoot, received) => {
                self.verdicts.upsert(replica, &shoot, convert::verdict(&received));
            }
            Update::Removed(shoot) => self.verdicts.withdraw(replica, &shoot),
            // Each replica is followed by itself.
            Update::Completeness(_) => {}
            // The verdict before it counts as long as it is valid.
            Update::Skipped(_) => {}
            Update::Lost(_) => self.verdicts.lost(replica),
        }
        self.show_readiness();
    }
}

#[cfg(test)]
mod tests {
    use watchdog_client::failure::{Failure, Reason};
    use watchdog_watch_stream::message::COMPLETE;

    use super::*;

    #[tokio::test]
    async fn it_is_ready_only_with_a_synchronized_stream() {
        let readiness = Readiness::default();
        let verdicts = Arc::new(VerdictTable::new(Arc::default()));
        let observers = Observers::new(verdicts, readiness.clone());
        let assert_blocked = |why: &str| {
            let blocker = readiness.blockers().get(BLOCKER).cloned().unwrap_or_default();
            assert!(blocker.starts_with(why), "{blocker}");
        };
        assert_blocked("no lease-probe replica is known");
        let replica: Arc<str> = "lease-probe-0".into();
        observers.on_join(&replica);
        assert_blocked("none of the 1 known lease-probe replicas");
        observers.on_update(&replica, Update::Snapshot(Default::default(), COMPLETE));
        assert_eq!(readiness.blockers().get(BLOCKER), None);
        observers.on_update(&replica, Update::Lost(Failure::new(Reason::Connection, &"cut")));
        assert_blocked("none of the 1 known lease-probe replicas");
        observers.on_leave(&replica);
        assert_blocked("no lease-probe replica is known");
    }
}
