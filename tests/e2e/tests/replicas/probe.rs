//! Three lease-probes share shoots; one is killed, comes back, and another is stopped. All the time every replica can
//! answer for every shoot, and no verdict that is still valid is contradicted while nothing happens to the shoots.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use watchdog_proto::feed::v1::Scope;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::probe::v1::watch_verdicts_response::Event;
use watchdog_sandbox::{Cut, SimulatedShootSpec};
use watchdog_test_support::fixtures;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::Service;

/// How many shoots are shared where [`SHOOTS_VARIABLE`] does not say otherwise. The bench has the large numbers.
const SHOOTS: usize = 30;
const SHOOTS_VARIABLE: &str = "REPLICAS_SHOOTS";

/// The replica that observed a shoot last, by shoot.
type Owners = BTreeMap<String, String>;

/// The messages of a stream of all shoots so far.
#[derive(Default)]
struct StreamState {
    latest: BTreeMap<String, ReceivedOutcome>,
    whole: bool,
    /// The replicas that observed each shoot since the last [`ShootFollower::forget`], in order.
    observers: BTreeMap<String, Vec<String>>,
    contradictions: Vec<String>,
}

struct ReceivedOutcome {
    outcome: pb::Outcome,
    observer: String,
    valid_until: Instant,
}

/// Follows all shoots through one replica.
struct ShootFollower {
    received: Arc<Mutex<StreamState>>,
    _task: AbortOnDropHandle<()>,
}

// === impl StreamState ===

impl StreamState {
    fn upsert(&mut self, verdict: pb::Verdict) {
        let now = Instant::now();
        let valid_for = verdict.valid_for.unwrap_or_default();
        let received = ReceivedOutcome {
            outcome: verdict.outcome(),
            observer: verdict.observer,
            valid_until: now + Duration::try_from(valid_for).unwrap_or_default(),
        };
        let observers = self.observers.entry(verdict.shoot.clone()).or_default();
        if observers.last() != Some(&received.observer) {
            observers.push(received.observer.clone());
        }
        if let Some(before) = self.latest.get(&verdict.shoot)
            && before.outcome != pb::Outcome::Pending
            && before.outcome != received.outcome
            && now < before.valid_until
        {
            self.contradictions.push(format!(
                "{}: {:?} by {} became {:?} by {}: {}",
                verdict.shoot,
                before.outcome,
                before.observer,
                received.outcome,
                received.observer,
                verdict.message
            ));
        }
        self.latest.insert(verdict.shoot, received);
    }

    fn removed(&mut self, shoot: &str) {
        if let Some(before) = self.latest.remove(shoot)
            && Instant::now() < before.valid_until
        {
            let (outcome, observer) = (before.outcome, before.observer);
            self.contradictions
                .push(format!("{shoot}: {outcome:?} by {observer} was removed"));
        }
    }
}

// === impl ShootFollower ===

impl ShootFollower {
    async fn start(fixture: &SandboxFixture, through: &Service) -> anyhow::Result<Self> {
        let mut client = LeaseProbeServiceClient::new(fixture.setup.channel(through)?);
        let request = pb::WatchVerdictsRequest {
            scope: Scope::Unspecified.into(),
            ..Default::default()
        };
        let mut stream = client.watch_verdicts(request).await?.into_inner();
        let received: Arc<Mutex<StreamState>> = Arc::default();
        let task = tokio::spawn({
            let received = received.clone();
            async move {
                while let Ok(Some(message)) = stream.message().await {
                    let mut received = received.lock();
                    match message.event {
                        Some(Event::Upsert(verdict)) => received.upsert(verdict),
                        Some(Event::Removed(shoot)) => received.removed(&shoot),
                        Some(Event::SnapshotComplete(_)) => received.whole = true,
                        Some(Event::Heartbeat(_)) | None => {}
                    }
                }
            }
        });
        Ok(Self {
            received,
            _task: AbortOnDropHandle::new(task),
        })
    }

    fn owners(&self) -> Owners {
        let received = self.received.lock();
        let latest = received.latest.iter();
        latest
            .map(|(shoot, received)| (shoot.clone(), received.observer.clone()))
            .collect()
    }

    /// Forgets who observed what so far.
    fn forget(&self) {
        self.received.lock().observers.clear();
    }

    /// The shoots whose observer has changed since.
    fn moved(&self, before: &Owners) -> BTreeSet<String> {
        let received = self.received.lock();
        let changed = |(shoot, observers): (&String, &Vec<String>)| {
            let stayed = before
                .get(shoot)
                .is_some_and(|owner| observers.iter().all(|o| o == owner));
            (!stayed).then(|| shoot.clone())
        };
        received.observers.iter().filter_map(changed).collect()
    }

    fn check(&self) {
        let received = self.received.lock();
        assert!(
            received.contradictions.is_empty(),
            "{:#?}",
            received.contradictions
        );
    }
}

/// All verdicts of a scope, page by page.
async fn list(fixture: &SandboxFixture, through: &Service, scope: Scope) -> anyhow::Result<Owners> {
    let mut client = LeaseProbeServiceClient::new(fixture.setup.channel(through)?);
    let (mut owners, mut token) = (Owners::new(), String::new());
    loop {
        let request = pb::ListVerdictsRequest {
            page_size: 7,
            page_token: token,
            scope: scope.into(),
            ..Default::default()
        };
        let page = client.list_verdicts(request).await?.into_inner();
        owners.extend(
            page.verdicts
                .into_iter()
                .map(|verdict| (verdict.shoot, verdict.observer)),
        );
        token = page.next_page_token;
        if token.is_empty() {
            return Ok(owners);
        }
    }
}

/// Waits until each shoot is owned by exactly one of these replicas, all have a share, and each of them knows it all.
async fn until_shared(fixture: &SandboxFixture, replicas: &[&Service]) -> Owners {
    let shoots = fixture.sandbox.shoots().len();
    wait::until("the replicas share the shoots", BOUND, || async {
        let mut all = Owners::new();
        let mut count = 0;
        for replica in replicas {
            let own = list(fixture, replica, Scope::Local).await?;
            let name = replica.process.name();
            anyhow::ensure!(!own.is_empty(), "{name} has nothing");
            anyhow::ensure!(
                own.values().all(|observer| observer == name),
                "{name} tells of others"
            );
            count += own.len();
            all.extend(own);
        }
        anyhow::ensure!(
            all.len() == shoots && count == shoots,
            "{count} shares of {} shoots",
            all.len()
        );
        for replica in replicas {
            let known = list(fixture, replica, Scope::Unspecified).await?;
            anyhow::ensure!(known == all, "{} does not know it all", replica.process.name());
        }
        Ok(Some(all))
    })
    .await
    .unwrap()
}

fn of(owners: &Owners, replica: &str) -> BTreeSet<String> {
    let own = owners.iter().filter(|(_, owner)| *owner == replica);
    own.map(|(shoot, _)| shoot.clone()).collect()
}

async fn until_gone_from(watchers: &[&ShootFollower], replica: &str, shoots: usize) -> Duration {
    let begin = Instant::now();
    wait::until(&format!("nothing is {replica}'s"), BOUND, || async {
        for watcher in watchers {
            let owners = watcher.owners();
            let left = of(&owners, replica).len();
            anyhow::ensure!(
                left == 0 && owners.len() == shoots,
                "{left} are, of {}",
                owners.len()
            );
        }
        Ok(Some(()))
    })
    .await
    .unwrap();
    begin.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_share_and_come_and_go() {
    let shoots = std::env::var(SHOOTS_VARIABLE)
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(SHOOTS);
    let specs = (0..shoots)
        .map(|i| SimulatedShootSpec::new(&format!("s{i}"), 2))
        .collect();
    // With this timeout verdicts are valid for longer than it takes to take over.
    let prober = fixtures::prober("probeInterval: 5s\ninitialDelay: 1s\nprobeTimeout: 20s", "1s");
    let fixture = SandboxFixture::start_with("replicas-probe", specs, &prober, &fixtures::weeder("1m"))
        .await
        .unwrap();
    for shoot in fixture.sandbox.shoots().iter().step_by(3) {
        shoot.cut(Cut::All);
    }
    let start = async |name: &str| {
        let kubeconfig = fixture.sandbox.seed().kubeconfig(name);
        fixture.setup.lease_probe(name, &kubeconfig).await
    };
    let (mut a, b, c) = tokio::try_join!(start("a"), start("b"), start("c")).unwrap();
    let before = until_shared(&fixture, &[&a, &b, &c]).await;
    let watchers = [
        ShootFollower::start(&fixture, &b).await.unwrap(),
        ShootFollower::start(&fixture, &c).await.unwrap(),
    ];
    let [through_b, through_c] = &watchers;
    wait::until_true(
        "what is cut off is known to be, and nothing else",
        BOUND,
        || async {
            Ok(watchers.iter().all(|watcher| {
                let received = watcher.received.lock();
                let expired = |received: &&ReceivedOutcome| received.outcome == pb::Outcome::LeasesExpired;
                let healthy = |received: &&ReceivedOutcome| received.outcome == pb::Outcome::Healthy;
                let expired = received.latest.values().filter(expired).count();
                let healthy = received.latest.values().filter(healthy).count();
                received.whole && expired == shoots.div_ceil(3) && expired + healthy == shoots
            }))
        },
    )
    .await
    .unwrap();
    // Until here verdicts had to change.
    for watcher in &watchers {
        watcher.received.lock().contradictions.clear();
        watcher.forget();
    }

    let of_a = of(&before, "a");
    a.process.kill_9().await.unwrap();
    let took = until_gone_from(&[through_b, through_c], "a", shoots).await;
    eprintln!(
        "{} shoots of a killed replica: all probed again after {took:?}",
        of_a.len()
    );
    let without_a = until_shared(&fixture, &[&b, &c]).await;
    for watcher in &watchers {
        assert_eq!(watcher.moved(&before), of_a, "only its share moves");
        watcher.check();
        watcher.forget();
    }

    a = fixture.setup.again(&a).await.unwrap();
    let again = until_shared(&fixture, &[&a, &b, &c]).await;
    assert_eq!(again, before, "the same share comes back");
    for watcher in &watchers {
        assert_eq!(watcher.moved(&without_a), of_a, "only its share moves");
        watcher.check();
        watcher.forget();
    }

    c.process.sigterm().unwrap();
    let took = until_gone_from(&[through_b], "c", shoots).await;
    eprintln!(
        "{} shoots of a stopped replica: all probed again after {took:?}",
        of(&again, "c").len()
    );
    assert_eq!(c.process.wait_exit(BOUND).await.unwrap().code(), Some(0));
    assert_eq!(through_b.moved(&again), of(&again, "c"), "only its share moves");
    through_b.check();
}
