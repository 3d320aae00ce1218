//! The verdicts of the lease-probe replicas, by shoot. Only open streams count: a lost stream takes its verdicts along.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use watchdog_runtime::readiness::{Blocker, Readiness};
use watchdog_runtime::work_queue::WorkQueue;

use crate::domain::decision::{ReceivedVerdict, StreamCounts};

/// Name of the blocker while no lease-probe reports: the coordinator protects nobody.
const BLOCKER: &str = "verdicts";

pub(crate) struct VerdictTable {
    work_queue: Arc<WorkQueue>,
    readiness: Readiness,
    blocker: Mutex<Option<Blocker>>,
    /// The stream of each replica; none before it is synchronized.
    streams: Mutex<BTreeMap<Arc<str>, Option<VerdictsByShoot>>>,
}

type VerdictsByShoot = HashMap<String, ReceivedVerdict>;

impl VerdictTable {
    pub(crate) fn new(work_queue: Arc<WorkQueue>, readiness: Readiness) -> Self {
        let table = Self {
            work_queue,
            readiness,
            blocker: Mutex::default(),
            streams: Mutex::default(),
        };
        table.streams_changed();
        table
    }

    /// Blocks readiness unless a stream is synchronized. All shoots may have other verdicts now.
    fn streams_changed(&self) {
        let mut blocker = self.blocker.lock();
        let streams = self.streams();
        let why = match streams.known {
            _ if streams.synced > 0 => None,
            0 => Some(
                "no lease-probe replica is known: check that it runs and keeps its Leases in the same namespace"
                    .to_owned(),
            ),
            known => Some(format!(
                "none of the {known} known lease-probe replicas has a synchronized stream"
            )),
        };
        *blocker = why.map(|why| self.readiness.block(BLOCKER, why));
        self.work_queue.add_all();
    }

    /// A lease-probe replica is known, and its stream will be opened.
    pub(crate) fn joined(&self, stream: &Arc<str>) {
        self.streams.lock().entry(stream.clone()).or_default();
        self.streams_changed();
    }

    /// A replica of lease-probe is gone.
    pub(crate) fn left(&self, stream: &str) {
        self.streams.lock().remove(stream);
        self.streams_changed();
    }

    /// A stream is lost: its verdicts can be neither renewed nor cancelled.
    pub(crate) fn lost(&self, stream: &str) {
        let lost = self.streams.lock().get_mut(stream).and_then(Option::take);
        if lost.is_some() {
            self.streams_changed();
        }
    }

    /// Replaces all verdicts of a stream.
    pub(crate) fn snapshot(
        &self,
        stream: &Arc<str>,
        verdicts: impl IntoIterator<Item = (String, ReceivedVerdict)>,
    ) {
        let synced = verdicts.into_iter().collect();
        // A stream that was removed meanwhile no longer counts.
        if let Some(known) = self.streams.lock().get_mut(stream) {
            *known = Some(synced);
        }
        self.streams_changed();
    }

    /// A stream brings a verdict.
    pub(crate) fn upsert(&self, stream: &Arc<str>, shoot: &str, verdict: ReceivedVerdict) {
        let mut streams = self.streams.lock();
        let Some(Some(known)) = streams.get_mut(stream) else {
            return;
        };
        let verdict = match known.get(shoot) {
            Some(before) => verdict.after(before),
            None => verdict,
        };
        known.insert(shoot.to_owned(), verdict);
        drop(streams);
        self.work_queue.add(shoot);
    }

    /// A stream no longer reports a shoot.
    pub(crate) fn withdraw(&self, stream: &str, shoot: &str) {
        if let Some(Some(known)) = self.streams.lock().get_mut(stream) {
            known.remove(shoot);
        }
        self.work_queue.add(shoot);
    }

    pub(crate) fn on(&self, shoot: &str) -> Vec<ReceivedVerdict> {
        let streams = self.streams.lock();
        let synced = streams.values().flatten();
        synced.filter_map(|known| known.get(shoot)).cloned().collect()
    }

    pub(crate) fn streams(&self) -> StreamCounts {
        let streams = self.streams.lock();
        StreamCounts {
            known: streams.len(),
            synced: streams.values().flatten().count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::domain::decision::ReportedOutcome;
    use crate::domain::testing::{S, start, verdict};

    #[test]
    fn it_is_ready_only_with_a_synchronized_stream() {
        let readiness = Readiness::default();
        let verdicts = VerdictTable::new(Arc::default(), readiness.clone());
        let assert_blocked = |why: &str| {
            let blocker = readiness.blockers().get(BLOCKER).cloned().unwrap_or_default();
            assert!(blocker.starts_with(why), "{blocker}");
        };
        assert_blocked("no lease-probe replica is known");
        let replica: Arc<str> = "lease-probe-0".into();
        verdicts.joined(&replica);
        assert_blocked("none of the 1 known lease-probe replicas");
        verdicts.snapshot(&replica, []);
        assert_eq!(readiness.blockers().get(BLOCKER), None);
        verdicts.lost(&replica);
        assert_blocked("none of the 1 known lease-probe replicas");
        verdicts.left(&replica);
        assert_blocked("no lease-probe replica is known");
    }

    #[test]
    fn a_verdict_follows_those_of_its_own_stream_only() {
        let verdicts = VerdictTable::new(Arc::default(), Readiness::default());
        let stream: Arc<str> = "a".into();
        let now = start();
        let upsert = |observed| {
            verdicts.upsert(&stream, "s", verdict(ReportedOutcome::Healthy, observed));
            verdicts.on("s")[0].outcome
        };
        verdicts.joined(&stream);
        verdicts.snapshot(&stream, []);
        assert_eq!(upsert(now), ReportedOutcome::Healthy);
        assert_eq!(upsert(now - 10 * S), ReportedOutcome::Outdated);
        verdicts.lost("a");
        verdicts.snapshot(&stream, []);
        assert_eq!(upsert(now - 10 * S), ReportedOutcome::Healthy, "another stream");
    }

    #[test]
    fn the_verdicts_of_a_stream_go_with_it() {
        let verdicts = VerdictTable::new(Arc::default(), Readiness::default());
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let healthy = || verdict(ReportedOutcome::Healthy, Instant::now());
        verdicts.upsert(&a, "s", healthy());
        assert!(
            verdicts.on("s").is_empty(),
            "a stream that is not known is not believed"
        );
        for stream in [&a, &b] {
            verdicts.joined(stream);
            verdicts.snapshot(stream, [("s".to_owned(), healthy()), ("t".to_owned(), healthy())]);
        }
        assert_eq!(
            (verdicts.on("s").len(), verdicts.streams()),
            (2, StreamCounts { known: 2, synced: 2 })
        );
        verdicts.withdraw("a", "s");
        assert_eq!((verdicts.on("s").len(), verdicts.on("t").len()), (1, 2));
        verdicts.lost("b");
        assert_eq!((verdicts.on("s").len(), verdicts.on("t").len()), (0, 1));
        assert_eq!(verdicts.streams(), StreamCounts { known: 2, synced: 1 });
        verdicts.snapshot(&a, []);
        assert!(verdicts.on("t").is_empty(), "a snapshot replaces all");
        verdicts.left("b");
        assert_eq!(verdicts.streams(), StreamCounts { known: 1, synced: 1 });
    }
}
