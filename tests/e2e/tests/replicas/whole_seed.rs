//! Any replica of lease-probe answers for the whole seed: a subscriber that keeps the contract of the streams knows
//! every shoot all the time while every replica is replaced, one after the other, and lists are whole through each of
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;
use tonic::Streaming;
use tonic::transport::Channel;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::probe::v1::{ListVerdictsRequest, WatchVerdictsRequest, WatchVerdictsResponse};
use watchdog_proto::stream::v1::Completeness;
use watchdog_test_support::fixtures;
use watchdog_test_support::real::{FixtureOptions, RealFixture, create_cluster};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{Service, ServiceKind};
use watchdog_watch_stream::message::Event;
use watchdog_watch_stream::wire::WatchResponse;

/// How many shoots there are where [`SHOOTS_VARIABLE`] does not say otherwise: `make nightly` has 1,000, which take
/// over a minute without optimisation.
const SHOOTS: usize = 200;
const SHOOTS_VARIABLE: &str = "REPLICAS_SHOOTS";

/// A Pod has 30 s to stop before it is killed; the rest is for a busy machine.
const STOP_BOUND: Duration = Duration::from_secs(60);

/// The channels to the replicas that are ready, as a Service has them.
type Backends = Arc<Mutex<BTreeMap<String, Channel>>>;

/// The shoots that a subscriber knows, over any number of streams.
#[derive(Debug, Default)]
struct SubscriberState {
    shoots: BTreeSet<String>,
    /// The shoots that it lost, and how.
    lost: Vec<String>,
    snapshots: usize,
}

// === impl SubscriberState ===

impl SubscriberState {
    /// Reads one stream until it ends.
    async fn follow(known: &Mutex<Self>, mut stream: Streaming<WatchVerdictsResponse>) {
        let mut snapshot = Some(BTreeSet::new());
        while let Ok(Some(message)) = stream.message().await {
            let event = message.decode().unwrap().event;
            let mut known = known.lock();
            match (event, &mut snapshot) {
                (Event::Upsert(shoot, _), Some(shoots)) => drop(shoots.insert(shoot)),
                (Event::Upsert(shoot, _), None) => drop(known.shoots.insert(shoot)),
                (Event::Removed(shoot), _) => known.lost.push(format!("{shoot} was removed")),
                (Event::SnapshotComplete { completeness, .. }, shoots) => {
                    let shoots = shoots.take().unwrap_or_default();
                    known.snapshots += 1;
                    if completeness.complete {
                        let gone: Vec<_> = known.shoots.difference(&shoots).cloned().collect();
                        let gone = gone
                            .iter()
                            .map(|shoot| format!("{shoot} is not in a whole snapshot"));
                        known.lost.extend(gone);
                    }
                    known.shoots.extend(shoots);
                }
                (Event::Heartbeat { .. }, _) => {}
            }
        }
    }
}

/// Follows a seed through whichever replica is ready.
fn subscribe(backends: &Backends) -> (Arc<Mutex<SubscriberState>>, AbortOnDropHandle<()>) {
    let known: Arc<Mutex<SubscriberState>> = Arc::default();
    let (backends, follows) = (backends.clone(), known.clone());
    let task = async move {
        let mut turn = 0;
        loop {
            let ready: Vec<Channel> = backends.lock().values().cloned().collect();
            turn += 1;
            if let Some(channel) = ready.get(turn % ready.len().max(1))
                && let Ok(stream) = LeaseProbeServiceClient::new(channel.clone())
                    .watch_verdicts(WatchVerdictsRequest::default())
                    .await
            {
                SubscriberState::follow(&follows, stream.into_inner()).await;
            }
            // A client's back-off.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    (known, AbortOnDropHandle::new(tokio::spawn(task)))
}

/// The number of shoots that a replica lists, and whether that is all.
async fn list(fixture: &RealFixture, through: &Service) -> anyhow::Result<(usize, Completeness)> {
    let mut client = LeaseProbeServiceClient::new(fixture.setup.channel(through)?);
    let (mut shoots, mut page_token) = (0, String::new());
    loop {
        let request = ListVerdictsRequest {
            page_size: 70,
            page_token,
            ..Default::default()
        };
        let page = client.list_verdicts(request).await?.into_inner();
        shoots += page.verdicts.len();
        if page.next_page_token.is_empty() {
            return Ok((shoots, page.completeness.unwrap_or_default()));
        }
        page_token = page.next_page_token;
    }
}

/// The same for one that is whole at once. A busy machine may need more than the 3 s of a TLS handshake.
async fn assert_lists(fixture: &RealFixture, through: &Service, shoots: usize) {
    let answer = wait::until("an answer", BOUND, || async {
        list(fixture, through).await.map(Some)
    });
    let (listed, _) = answer.await.unwrap();
    assert_eq!(listed, shoots, "through {}", through.process.name());
}

async fn until_whole(fixture: &RealFixture, replicas: &[Service], shoots: usize) {
    wait::until("every replica lists the whole seed", BOUND, || async {
        for replica in replicas {
            let (listed, completeness) = list(fixture, replica).await?;
            let name = replica.process.name();
            anyhow::ensure!(
                listed == shoots && completeness.complete,
                "{name} lists {listed}: {completeness:?}"
            );
        }
        Ok(Some(()))
    })
    .await
    .unwrap();
}

/// Makes shoots whose kubeconfigs are missing: each has a verdict that says so.
async fn make(fixture: &RealFixture, shoots: usize) {
    let seed = fixture.seed.client();
    let made = stream::iter(0..shoots).map(|number| {
        let seed = seed.clone();
        async move { create_cluster(&seed, &format!("shoot--whole--s{number}"), fixtures::shoot("40s")).await }
    });
    let made: Vec<_> = made.buffer_unordered(16).collect().await;
    made.into_iter().collect::<anyhow::Result<()>>().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn is_seen_through_a_rollout_of_every_replica() {
    let shoots = std::env::var(SHOOTS_VARIABLE)
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(SHOOTS);
    let names = ["a0", "a1", "b0", "b1"];
    let options = FixtureOptions::new("whole-seed", &[]).users(&names);
    let fixture = RealFixture::start(options).await.unwrap();
    make(&fixture, shoots).await;
    let backends = Backends::default();
    let start = async |name: &str| {
        let replica = fixture
            .start_replica(ServiceKind::LeaseProbe, name)
            .await
            .unwrap();
        let channel = fixture.setup.channel(&replica).unwrap();
        backends.lock().insert(name.to_owned(), channel);
        replica
    };
    let mut replicas = vec![start("a0").await, start("a1").await];
    until_whole(&fixture, &replicas, shoots).await;
    let (known, _task) = subscribe(&backends);
    wait::until("the subscriber knows every shoot", BOUND, || async {
        let known = known.lock();
        anyhow::ensure!(known.shoots.len() == shoots, "{} of {shoots}", known.shoots.len());
        Ok(Some(()))
    })
    .await
    .unwrap();
    for i in 0..replicas.len() {
        let new = start(&format!("b{i}")).await;
        // A ready replica answers for the whole seed at once.
        assert_lists(&fixture, &new, shoots).await;
        let old = std::mem::replace(&mut replicas[i], new);
        backends.lock().remove(old.process.name());
        assert_eq!(old.process.stop(STOP_BOUND).await.unwrap().code(), Some(0));
        for replica in &replicas {
            assert_lists(&fixture, replica, shoots).await;
        }
    }
    until_whole(&fixture, &replicas, shoots).await;
    wait::until("the subscriber has connected again", BOUND, || async {
        Ok((known.lock().snapshots > 1).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(known.lock().lost, [""; 0]);

    let killed = replicas.remove(0);
    let name = killed.process.name().to_owned();
    backends.lock().remove(&name);
    killed.process.kill_9().await.unwrap();
    wait::until("the killed replica is missing", BOUND, || async {
        let (listed, completeness) = list(&fixture, &replicas[0]).await?;
        anyhow::ensure!(listed == shoots, "{listed} are listed");
        Ok((completeness.missing_replicas == [name.as_str()]).then_some(()))
    })
    .await
    .unwrap();
    until_whole(&fixture, &replicas, shoots).await;
    assert_eq!(known.lock().lost, [""; 0]);
}
