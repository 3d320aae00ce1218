//! Servers, streams and followers together: whatever happens on the way, every follower ends in the server's state, and
//! none of them keeps the writer waiting.

#![cfg(test)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use parking_lot::Mutex;
use proptest::prelude::*;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use watchdog_watch_stream::follow::{Update, follow};
use watchdog_watch_stream::message::{COMPLETE, Event, HEARTBEAT_INTERVAL, Message};
use watchdog_watch_stream::server::StreamStore;
use watchdog_watch_stream::stream::{Responses, serve};
use watchdog_watch_stream::subscription::Lagged;

type Line = Message<String, u32>;

fn complete(items: u64) -> Event<u32, Arc<u32>> {
    Event::SnapshotComplete {
        items,
        completeness: COMPLETE,
    }
}

/// A server that may be down, and that may come back with another epoch.
#[derive(Clone)]
struct Server {
    store: StreamStore<String, u32>,
    draining: CancellationToken,
    // Cancelled: the connections that are open break.
    connections: CancellationToken,
    up: bool,
}

impl Server {
    fn start(items: &BTreeMap<String, u32>) -> Self {
        let draining = CancellationToken::new();
        let store = StreamStore::new();
        for (key, value) in items {
            store.upsert(key.clone(), *value);
        }
        Self {
            store,
            draining,
            connections: CancellationToken::new(),
            up: true,
        }
    }
}

/// Opens a stream of the server of that moment; reads no faster than `pace` allows.
fn open(server: &Mutex<Server>, pace: &Arc<Mutex<Duration>>) -> Result<Responses<Line>, Status> {
    let server = server.lock().clone();
    if !server.up {
        return Err(Status::unavailable("connection refused"));
    }
    let mut contract = Contract::default();
    let plain = move |message: Message<String, Arc<u32>>| {
        contract.check(&message);
        Ok(Message {
            position: message.position,
            event: message.event.map(|value| *value),
        })
    };
    let body = serve(
        "Watch",
        server.draining.clone(),
        server.store.subscribe(|_| true),
        plain,
    )?;
    let pace = pace.clone();
    let paced = body.then(move |line| {
        let pause = *pace.lock();
        async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            line
        }
    });
    let cut = server.connections.cancelled_owned();
    let end = futures::stream::once(async { Err(Status::unknown("connection reset")) });
    Ok(Box::pin(paced.take_until(cut).chain(end)))
}

/// The promise of a stream: one snapshot, whole and without removals, and then changes in the order of their revisions.
#[derive(Default)]
struct Contract {
    items: u64,
    /// That of the snapshot or the last change; none within the snapshot.
    revision: Option<u64>,
}

impl Contract {
    fn check(&mut self, message: &Message<String, Arc<u32>>) {
        let revision = message.position.revision;
        match (&message.event, self.revision) {
            (Event::Heartbeat { .. }, _) => {}
            (Event::Upsert(..), None) => self.items += 1,
            (Event::SnapshotComplete { items, .. }, None) => {
                assert_eq!(*items, self.items);
                self.revision = Some(revision);
            }
            (Event::Upsert(..) | Event::Removed(_), Some(before)) => {
                assert!(revision > before, "{revision} after {before}");
                self.revision = Some(revision);
            }
            (event, before) => panic!("{event:?} after {before:?}"),
        }
    }
}

/// The state that one follower has received.
#[derive(Default)]
struct FollowerState {
    items: BTreeMap<String, u32>,
    synced: bool,
}

impl FollowerState {
    fn apply(&mut self, update: Update<String, u32>) {
        match update {
            Update::Snapshot(items, _) => {
                self.items = items
                    .into_iter()
                    .map(|(key, received)| (key, received.value))
                    .collect();
                self.synced = true;
            }
            Update::Upsert(key, received) => drop(self.items.insert(key, received.value)),
            Update::Removed(key) => drop(self.items.remove(&key)),
            Update::Completeness(_) | Update::Skipped(_) => {}
            Update::Lost(_) => self.synced = false,
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Set(u8, u32),
    Remove(u8),
    /// Many keys come and go, so that removals are forgotten.
    Churn,
    /// Connections break.
    Cut,
    /// The server is drained, is away for this many seconds, and comes back with nothing but what it has learnt since.
    Restart(u8),
    /// A follower reads a message in this many milliseconds from now on.
    Pace(usize, u16),
    /// Milliseconds pass.
    Wait(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u8..12, any::<u32>()).prop_map(|(k, v)| Step::Set(k, v)),
        4 => (0_u8..12).prop_map(Step::Remove),
        1 => Just(Step::Churn),
        1 => Just(Step::Cut),
        1 => (0_u8..40).prop_map(Step::Restart),
        2 => (0_usize..3, prop_oneof![Just(0_u16), 1..400_u16, Just(40_000)]).prop_map(|(f, p)| Step::Pace(f, p)),
        4 => (0_u16..7_000).prop_map(Step::Wait),
    ]
}

async fn play(steps: Vec<Step>) {
    let mut model: BTreeMap<String, u32> = BTreeMap::new();
    let server = Arc::new(Mutex::new(Server::start(&model)));
    let stop = CancellationToken::new();
    let followers: Vec<_> = (0..3)
        .map(|_| {
            let (pace, believed) = (
                Arc::new(Mutex::new(Duration::ZERO)),
                Arc::new(Mutex::new(FollowerState::default())),
            );
            let (server, limit) = (server.clone(), pace.clone());
            let (stop, follower) = (stop.clone(), believed.clone());
            tokio::spawn(async move {
                let open = || std::future::ready(open(&server, &limit));
                follow(open, &stop, |update| follower.lock().apply(update)).await;
            });
            (pace, believed)
        })
        .collect();
    for step in steps {
        let store = server.lock().store.clone();
        match step {
            Step::Set(key, value) => {
                store.upsert(key.to_string(), value);
                model.insert(key.to_string(), value);
            }
            Step::Remove(key) => {
                store.remove(&key.to_string());
                model.remove(&key.to_string());
            }
            Step::Churn => {
                for key in 0..1_500 {
                    let key = format!("passing-{key}");
                    store.upsert(key.clone(), 0);
                    store.remove(&key);
                }
            }
            Step::Cut => {
                let fresh = CancellationToken::new();
                std::mem::replace(&mut server.lock().connections, fresh).cancel();
            }
            Step::Restart(seconds) => {
                {
                    let mut server = server.lock();
                    server.up = false;
                    server.draining.cancel();
                }
                tokio::time::sleep(Duration::from_secs(seconds.into())).await;
                *server.lock() = Server::start(&model);
            }
            Step::Pace(follower, millis) => {
                *followers[follower].0.lock() = Duration::from_millis(millis.into())
            }
            Step::Wait(millis) => tokio::time::sleep(Duration::from_millis(millis.into())).await,
        }
    }
    for (pace, _) in &followers {
        *pace.lock() = Duration::ZERO;
    }
    // Longer than the last slow read, the longest back-off and the limit of silence.
    tokio::time::sleep(Duration::from_secs(120)).await;
    for (_, believed) in &followers {
        let believed = believed.lock();
        assert!(believed.synced);
        assert_eq!(believed.items, model);
    }
    let listed = server.lock().store.snapshot().into_iter();
    assert_eq!(
        listed
            .map(|(key, value)| (key, *value))
            .collect::<BTreeMap<_, _>>(),
        model
    );
    stop.cancel();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_follower_ends_in_the_servers_state(steps in prop::collection::vec(step(), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(play(steps));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_missed_forgotten_removals_is_told_so() {
    let (wide, narrow) = (StreamStore::new(), StreamStore::new());
    narrow.upsert(0_u32, ());
    let (mut behind, mut slow) = (wide.subscribe(|_| true), narrow.subscribe(|_| true));
    behind.next().await.unwrap();
    slow.next().await.unwrap();
    for key in 0_u32..5_000 {
        wide.upsert(key, ());
        wide.remove(&key);
    }
    assert_eq!(behind.next().await.unwrap_err(), Lagged);
    // A reader of a store that forgot nothing is not.
    slow.next().await.unwrap();
}

/// It holds no old state, and is not closed. What a hundred of them cost is measured (docs/explanation/performance.md).
#[tokio::test(start_paused = true)]
async fn a_reader_that_stalls_begins_with_the_newest_state() {
    const KEYS: u32 = 1_000;
    let store: StreamStore<u32, u32> = StreamStore::new();
    let same = |message: Message<u32, Arc<u32>>| Ok(message.event);
    let mut stalled = serve("Watch", CancellationToken::new(), store.subscribe(|_| true), same).unwrap();
    for value in 0..3 {
        (0..KEYS).for_each(|key| store.upsert(key, value));
        tokio::time::sleep(2 * HEARTBEAT_INTERVAL).await;
    }
    for key in 0..KEYS {
        let event = stalled.next().await.unwrap().unwrap();
        assert_eq!(event, Event::Upsert(key, Arc::new(2)));
    }
    assert_eq!(stalled.next().await.unwrap().unwrap(), complete(KEYS.into()));
    let heartbeat = stalled.next().await.unwrap().unwrap();
    assert!(matches!(heartbeat, Event::Heartbeat { .. }), "{heartbeat:?}");
}

/// Three batches of a snapshot; while it is read, what was read and what was not change and go.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_read_slowly_ends_in_the_newest_state() {
    let store: StreamStore<u32, u32> = StreamStore::new();
    for key in 0..700 {
        store.upsert(key, 0);
    }
    let subscription = store.subscribe(|_| true);
    let mut body = serve("Watch", CancellationToken::new(), subscription, |message| {
        Ok(message.event)
    })
    .unwrap();
    let (mut items, mut snapshot) = (BTreeMap::new(), None);
    for step in 0.. {
        match step {
            10 => [5, 690].into_iter().for_each(|key| store.upsert(key, 1)),
            20 => [6, 691].into_iter().for_each(|key| store.remove(&key)),
            30 => store.upsert(9_999, 1),
            _ => {}
        }
        match body.next().await.unwrap().unwrap() {
            Event::Upsert(key, value) => drop(items.insert(key, *value)),
            Event::Removed(key) => drop(items.remove(&key)),
            Event::SnapshotComplete { items: count, .. } => snapshot = Some((count, items.len())),
            Event::Heartbeat { .. } => break,
        }
    }
    assert_eq!(snapshot, Some((700, 700)), "without 691, with 9,999");
    let expected: BTreeMap<u32, u32> = store
        .snapshot()
        .into_iter()
        .map(|(key, value)| (key, *value))
        .collect();
    assert_eq!(items, expected);
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_the_drain_and_none_begins_after_it() {
    let draining = CancellationToken::new();
    let store: StreamStore<u32, u32> = StreamStore::new();
    let open = || {
        let subscription = store.subscribe(|_| true);
        serve("Watch", draining.clone(), subscription, |message| {
            Ok(message.event)
        })
    };
    let mut body = open().unwrap();
    assert_eq!(body.next().await.unwrap().unwrap(), complete(0));
    draining.cancel();
    assert_eq!(body.next().await.unwrap().unwrap_err().code(), Code::Unavailable);
    assert!(body.next().await.is_none());
    assert_eq!(open().err().unwrap().code(), Code::Unavailable);
}
