//! The reading end of `WatchVerdicts`.

use std::collections::BTreeMap;

use tonic::{Response, Status, Streaming};
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::watch_verdicts_response::Event;

use crate::BOUND;

pub struct Stream(Streaming<pb::WatchVerdictsResponse>);

impl Stream {
    pub fn new(response: Response<Streaming<pb::WatchVerdictsResponse>>) -> Self {
        Self(response.into_inner())
    }

    /// The next event, heartbeats left out.
    pub async fn next(&mut self) -> Result<Event, Status> {
        loop {
            let message = tokio::time::timeout(BOUND, self.0.message()).await;
            let message = message.expect("the stream is silent")?;
            let message = message.ok_or_else(|| Status::ok("the stream ended as if it were complete"))?;
            assert!(message.position.is_some());
            match message.event.unwrap() {
                Event::Heartbeat(_) => {}
                event => return Ok(event),
            }
        }
    }

    /// Everything up to the end of the snapshot.
    pub async fn snapshot(&mut self) -> BTreeMap<String, pb::Verdict> {
        let mut all = BTreeMap::new();
        loop {
            match self.next().await.unwrap() {
                Event::Upsert(verdict) => drop(all.insert(verdict.shoot.clone(), verdict)),
                Event::SnapshotComplete(complete) => {
                    assert_eq!(usize::try_from(complete.items).unwrap(), all.len());
                    return all;
                }
                event => panic!("{event:?} within the snapshot"),
            }
        }
    }

    /// Reads on to the first verdict with this outcome.
    pub async fn until_outcome(&mut self, shoot: &str, outcome: pb::Outcome) -> pb::Verdict {
        loop {
            if let Event::Upsert(verdict) = self.next().await.unwrap()
                && verdict.shoot == shoot
                && verdict.outcome() == outcome
            {
                return verdict;
            }
        }
    }

    /// Reads on to the removal of a shoot.
    pub async fn until_removed(&mut self, shoot: &str) {
        loop {
            if self.next().await.unwrap() == Event::Removed(shoot.to_owned()) {
                return;
            }
        }
    }

    /// Reads on to the end.
    pub async fn end(mut self) -> Status {
        loop {
            if let Err(status) = self.next().await {
                return status;
            }
        }
    }
}
