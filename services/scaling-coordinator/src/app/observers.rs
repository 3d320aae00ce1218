//! Receives the verdicts of the lease-probe replicas.

use std::sync::Arc;

use watchdog_proto::probe::v1 as pb;
use watchdog_watch_stream::follow::Update;
use watchdog_watch_stream::replicas::ReplicaHandler;

use crate::controller::verdicts::VerdictTable;
use crate::grpc::convert;

/// Fills the table.
pub(crate) struct Observers(pub(crate) Arc<VerdictTable>);

impl ReplicaHandler for Observers {
    fn on_join(&self, replica: &Arc<str>) {
        self.0.joined(replica);
    }

    fn on_leave(&self, replica: &Arc<str>) {
        self.0.left(replica);
    }

    fn on_update(&self, replica: &Arc<str>, update: Update<String, pb::Verdict>) {
        match update {
            Update::Snapshot(items, _) => {
                let read = |(shoot, received): (String, _)| (shoot, convert::verdict(&received));
                self.0.snapshot(replica, items.into_iter().map(read));
            }
            Update::Upsert(shoot, received) => {
                self.0.upsert(replica, &shoot, convert::verdict(&received));
            }
            Update::Removed(shoot) => self.0.withdraw(replica, &shoot),
            // Each replica is followed by itself.
            Update::Completeness(_) => {}
            // The verdict before it counts as long as it is valid.
            Update::Skipped(_) => {}
            Update::Lost(_) => self.0.lost(replica),
        }
    }
}
