//! Receives the verdicts of the lease-probe replicas.

use std::ops::RangeInclusive;
use std::sync::Arc;

use watchdog_proto::probe::v1 as pb;
use watchdog_watch_stream::client::{Received, Update};
use watchdog_watch_stream::replicas::ReplicaHandler;

use crate::controller::history::HistoryStore;
use crate::controller::verdicts::{TracedVerdict, VerdictTable};
use crate::grpc::convert;

/// Lengths of the trace contexts that are kept. That of lease-probe has 55 characters.
const TRACEPARENT: RangeInclusive<usize> = 1..=128;

pub(crate) struct Observers {
    pub(crate) verdicts: Arc<VerdictTable>,
    pub(crate) history: Arc<HistoryStore>,
}

impl Observers {
    fn read(&self, shoot: &str, received: &Received<pb::Verdict>) -> TracedVerdict {
        let verdict = convert::verdict(received);
        let evidence = received.value.evidence.as_ref().map(convert::evidence_counts);
        self.history.verdict(shoot, &verdict, evidence);
        let traceparent = Some(&*received.value.traceparent);
        TracedVerdict {
            verdict,
            traceparent: traceparent
                .filter(|text| TRACEPARENT.contains(&text.len()))
                .map(Into::into),
        }
    }
}

impl ReplicaHandler<pb::Verdict> for Observers {
    fn on_join(&self, replica: &Arc<str>) {
        self.verdicts.joined(replica);
    }

    fn on_leave(&self, replica: &Arc<str>) {
        self.verdicts.left(replica);
    }

    fn on_update(&self, replica: &Arc<str>, update: Update<String, pb::Verdict>) {
        match update {
            Update::Snapshot(items, _) => {
                let read = |(shoot, received): (String, _)| {
                    let verdict = self.read(&shoot, &received);
                    (shoot, verdict)
                };
                self.verdicts.snapshot(replica, items.into_iter().map(read));
            }
            Update::Upsert(shoot, received) => {
                let verdict = self.read(&shoot, &received);
                self.verdicts.upsert(replica, &shoot, verdict);
            }
            Update::Removed(shoot) => self.verdicts.withdraw(replica, &shoot),
            // Each replica is followed by itself.
            Update::Completeness(_) => {}
            Update::Lost(_) => self.verdicts.lost(replica),
        }
    }
}
