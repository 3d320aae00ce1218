//! Any interleaving of changes, slow readers and reconnects ends in the server's state.

#![cfg(test)]

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use watchdog_watch_stream::message::Event;
use watchdog_watch_stream::server::StreamStore;
use watchdog_watch_stream::subscription::{Lagged, Subscription};

#[derive(Debug, Clone)]
enum Step {
    Set(u8, u32),
    Remove(u8),
    // Takes this many messages.
    Read(u8),
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..12, any::<u32>()).prop_map(|(k, v)| Step::Set(k, v)),
        3 => (0_u8..12).prop_map(Step::Remove),
        3 => (1_u8..6).prop_map(Step::Read),
        1 => Just(Step::Reconnect),
    ]
}

/// A client as the contract describes it.
struct Reader {
    stream: Subscription<u8, u32>,
    pending: Option<BTreeMap<u8, u32>>,
    state: BTreeMap<u8, u32>,
    revision: u64,
}

impl Reader {
    fn new(store: &StreamStore<u8, u32>) -> Self {
        Self {
            stream: store.subscribe(|_| true),
            pending: Some(BTreeMap::new()),
            state: BTreeMap::new(),
            revision: 0,
        }
    }

    /// Reads one message if there is one. Returns whether there was.
    async fn read(&mut self) -> Result<bool, Lagged> {
        let next = tokio::select! {
            biased;
            next = self.stream.next() => next?,
            () = std::future::ready(()) => return Ok(false),
        };
        let (message, _) = next;
        match (message.event, &mut self.pending) {
            (Event::Upsert(k, v), Some(pending)) => {
                pending.insert(k, *v);
            }
            (Event::Upsert(k, v), None) => {
                assert!(
                    message.position.revision > self.revision,
                    "changes come in the order of their revisions"
                );
                self.revision = message.position.revision;
                self.state.insert(k, *v);
            }
            (Event::Removed(k), None) => {
                assert!(message.position.revision > self.revision);
                self.revision = message.position.revision;
                self.state.remove(&k);
            }
            (Event::SnapshotComplete { items, .. }, pending) => {
                self.state = pending.take().expect("one snapshot a stream");
                assert_eq!(self.state.len() as u64, items);
                self.revision = message.position.revision;
            }
            (Event::Heartbeat { .. }, _) => {}
            (Event::Removed(_), Some(_)) => panic!("a removal within the snapshot"),
        }
        Ok(true)
    }
}

proptest! {
    #[test]
    fn every_interleaving_ends_in_the_servers_state(steps in prop::collection::vec(step(), 0..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let store = StreamStore::new();
            let mut model = BTreeMap::new();
            let mut reader = Reader::new(&store);
            for step in steps {
                match step {
                    Step::Set(k, v) => {
                        store.upsert(k, v);
                        model.insert(k, v);
                    }
                    Step::Remove(k) => {
                        store.remove(&k);
                        model.remove(&k);
                    }
                    Step::Read(n) => {
                        for _ in 0..n {
                            reader.read().await.unwrap();
                        }
                    }
                    Step::Reconnect => reader = Reader::new(&store),
                }
            }
            while reader.read().await.unwrap() {}
            assert_eq!(reader.state, model);
            let listed = store.snapshot().into_iter().map(|(k, v): (u8, Arc<u32>)| (k, *v));
            let listed: BTreeMap<u8, u32> = listed.collect();
            assert_eq!(listed, model);
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_missed_forgotten_removals_is_told_so() {
    let store = StreamStore::new();
    store.upsert(0_u8, 0_u32);
    let mut slow = store.subscribe(|_| true);
    let wide: StreamStore<u32, ()> = StreamStore::new();
    let mut behind = wide.subscribe(|_| true);
    behind.next().await.unwrap();
    for key in 0..5_000 {
        wide.upsert(key, ());
        wide.remove(&key);
    }
    assert_eq!(behind.next().await.unwrap_err(), Lagged);
    // A reader of a store that forgot nothing is not.
    slow.next().await.unwrap();
    slow.next().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn pages_are_ordered_and_complete() {
    let store = StreamStore::new();
    for key in 0..10_u32 {
        store.upsert(key, key);
    }
    let even = |_: &u32, v: &u32| v.is_multiple_of(2);
    let first = store.page(None, 3, even);
    assert_eq!((first.items.len(), first.more, first.total), (3, true, 5));
    let last = first.items.last().unwrap().0;
    let second = store.page(Some(&last), 3, even);
    assert_eq!((second.items.len(), second.more, second.total), (2, false, 5));
}
