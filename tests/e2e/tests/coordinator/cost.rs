//! The cost of a thousand shoots for the seed: nothing while nothing happens, and the configured rate when all are lost
//! at once; and how soon a single shoot is written to.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use watchdog_proto::scaling::v1::{Direction, FlowState, ListScalingRequest, ShootScaling, Step};
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{ApiOptions, ApiServer, AuditEntry};
use watchdog_test_support::coordinator::{Coordinator, FakeProbe, Outcome};
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::sandboxed;
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::workload_controller::{WorkloadController, WorkloadOptions};

const SHOOTS: usize = 1_000;
const USER: &str = "coordinator";

/// The default of `--request-rate`.
const RATE: usize = 1_000;

/// Long enough for several renewals of whatever is renewed, above all of the membership Lease (every 5 s).
const REST: Duration = Duration::from_secs(12);

/// Turns of the single shoot.
const TURNS: usize = 40;

fn names() -> Vec<String> {
    (0..SHOOTS).map(|i| format!("shoot--cost--{i}")).collect()
}

struct Fixture {
    api: ApiServer,
    probe: FakeProbe,
    coordinator: Coordinator,
    _workloads: WorkloadController,
}

impl Fixture {
    async fn start() -> anyhow::Result<Self> {
        let options = ApiOptions {
            namespaces: vec!["garden".to_owned()],
            ..ApiOptions::default()
        };
        let api = ApiServer::start(options).await?;
        for name in names() {
            api.create(&keys::NAMESPACES, "", json!({"metadata": {"name": name}}))?;
            let cluster = json!({"metadata": {"name": name}, "spec": {"shoot": fixtures::shoot("40s")}});
            api.create(&keys::CLUSTERS, "", cluster)?;
            for (deployment, replicas) in [(KCM, 2), (MCM, 1), (CA, 1)] {
                let object = json!({
                    "metadata": {"name": deployment},
                    "spec": {
                        "replicas": replicas,
                        "selector": {"matchLabels": {"app": deployment}},
                        "template": {
                            "metadata": {"labels": {"app": deployment}},
                            "spec": {"containers": [{"name": deployment, "image": "simulated"}]},
                        },
                    },
                });
                api.create(&keys::DEPLOYMENTS, &name, object)?;
            }
        }
        let seed = sandboxed::client(&api.kubeconfig("controllers")).await?;
        let workloads = WorkloadController::start(&seed, WorkloadOptions::new(Duration::ZERO));
        let scratch = Scratch::new("cost")?;
        let probe = FakeProbe::start().await?;
        probe.say(names().iter().map(String::as_str), Outcome::Healthy);
        let config = scratch.write("prober.yaml", fixtures::prober("probeInterval: 10s", "100ms"))?;
        let coordinator = Coordinator::start(&scratch, &config, &api.kubeconfig(USER), &probe).await?;
        let fixture = Self {
            api,
            probe,
            coordinator,
            _workloads: workloads,
        };
        fixture.until_all(Direction::Up).await?;
        Ok(fixture)
    }

    async fn list(&self) -> anyhow::Result<Vec<ShootScaling>> {
        let request = ListScalingRequest {
            page_size: 1_000,
            ..Default::default()
        };
        Ok(self
            .coordinator
            .client
            .clone()
            .list_scaling(request)
            .await?
            .into_inner()
            .scalings)
    }

    async fn until_all(&self, direction: Direction) -> anyhow::Result<()> {
        wait::until_true(&format!("all are settled {direction:?}"), BOUND, || async {
            Ok(settled(&self.list().await?, direction) == SHOOTS)
        })
        .await
    }

    fn last_id(&self) -> u64 {
        self.api.audit().last().map_or(0, |entry| entry.id)
    }

    fn requests(&self, since: u64) -> Vec<AuditEntry> {
        let mut entries = self.api.audit_since(since);
        entries.retain(|entry| entry.user == USER);
        entries
    }

    /// The requests to scale: Clusters and resources, not the Kubernetes Events, which are few and their own.
    fn scaling_requests(&self, since: u64) -> Vec<AuditEntry> {
        let mut entries = self.requests(since);
        entries.retain(|entry| {
            !["watch", "list"].contains(&entry.verb)
                && !entry.path.contains("/leases")
                && !entry.path.contains("/events")
        });
        entries
    }

    /// Writes on the dependants.
    fn writes(&self, since: u64) -> Vec<AuditEntry> {
        let mut entries = self.requests(since);
        entries.retain(|entry| entry.is_write() && entry.path.contains("/deployments/"));
        entries
    }
}

fn settled(all: &[ShootScaling], direction: Direction) -> usize {
    let is = |s: &&ShootScaling| s.direction() == direction && s.state() == FlowState::Settled;
    all.iter().filter(is).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_shoots() {
    let fixture = Fixture::start().await.unwrap();

    // Nothing happens: nothing is asked for but what keeps the replica a member and its watches alive.
    let begin = fixture.last_id();
    wait::holds(
        "nothing but Leases of the replicas is asked for",
        REST,
        || async {
            let mut requests = fixture.requests(begin).into_iter();
            Ok(requests.all(|entry| {
                ["watch", "list"].contains(&entry.verb) || entry.path.contains("/namespaces/garden/leases")
            }))
        },
    )
    .await
    .unwrap();
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for entry in fixture.requests(begin) {
        *kinds.entry(format!("{} {}", entry.verb, entry.path)).or_default() += 1;
    }
    eprintln!("requests in {REST:?} of rest: {kinds:?}");

    // One shoot is lost and found again and again: how soon is the first write there?
    let one = names().remove(7);
    let mut first_writes = Vec::new();
    for turn in 0..TURNS {
        let (outcome, direction, most) = if turn.is_multiple_of(2) {
            (Outcome::LeasesExpired, Direction::Down, 7)
        } else {
            (Outcome::Healthy, Direction::Up, 10)
        };
        let (before, given_at) = (fixture.last_id(), Timestamp::now());
        fixture.probe.say([one.as_str()], outcome);
        fixture
            .coordinator
            .until_settled(&one, direction, BOUND)
            .await
            .unwrap();
        let requests = fixture.scaling_requests(before);
        eprintln!("turn {turn} {direction:?}: {} requests", requests.len());
        // The status of a Deployment changes while it is written: conflicts are the controller's doing.
        let fulfilled = requests.iter().filter(|entry| entry.code != 409).count();
        assert!(fulfilled <= most, "{direction:?}: {requests:#?}");
        let took = fixture
            .writes(before)
            .first()
            .unwrap()
            .time
            .duration_since(given_at);
        first_writes.push(Duration::try_from(took).unwrap());
    }
    first_writes.sort();
    let median = first_writes[TURNS / 2];
    eprintln!(
        "verdict to first write: median {median:?}, of {TURNS} the longest {:?}",
        first_writes[TURNS - 1]
    );

    // All are lost at the same instant.
    let begin = fixture.last_id();
    fixture
        .probe
        .say(names().iter().map(String::as_str), Outcome::LeasesExpired);
    let progress = wait::until("some are settled, others wait for their turn", BOUND, || async {
        let all = fixture.list().await?;
        let waits = |s: &&ShootScaling| s.resources.iter().any(|r| r.step() == Step::Writing);
        let (done, waiting) = (settled(&all, Direction::Down), all.iter().filter(waits).count());
        anyhow::ensure!(done < SHOOTS, "all are settled");
        Ok((waiting > 0).then_some((done, waiting)))
    })
    .await
    .unwrap();
    eprintln!(
        "progress as reported: {} settled, {} are writing or wait for their turn",
        progress.0, progress.1
    );
    fixture.until_all(Direction::Down).await.unwrap();
    let writes = fixture.writes(begin);
    let applied = writes.iter().filter(|write| write.code == 200).count();
    assert_eq!(applied, SHOOTS * 3, "one write on each of three");
    let took = writes.last().unwrap().time.duration_since(writes[0].time);
    eprintln!(
        "{} writes in {took:?}, {} of them conflicts",
        writes.len(),
        writes.len() - applied
    );
    // Nowhere more in a second than the rate, the burst and the jitter of a busy machine.
    let requests = fixture.scaling_requests(begin);
    eprintln!("{} requests for them", requests.len());
    let mut window = 0;
    for (i, request) in requests.iter().enumerate() {
        while request.time.duration_since(requests[window].time).as_millis() > 1_000 {
            window += 1;
        }
        assert!(
            i - window < RATE + RATE / 4,
            "{} requests within a second",
            i - window
        );
    }
    // The shoots take turns: the last one to begin has not waited until most are done.
    let mut by_shoot: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut begun_by, mut most) = (writes[0].time, 0_usize);
    for write in &writes {
        let shoot = write.path.split('/').nth(5).unwrap();
        let made = by_shoot.get(shoot).map_or(1, |made| made + 1);
        by_shoot.insert(shoot, made);
        if by_shoot.len() == SHOOTS {
            begun_by = write.time;
            break;
        }
        most = most.max(made);
    }
    let begun = begun_by.duration_since(writes[0].time);
    let ahead = by_shoot.values().filter(|made| **made > 2).count();
    eprintln!(
        "every shoot has begun after {begun:?}; {ahead} had made more than 2 writes by then, the first {most}"
    );
    assert_eq!(by_shoot.len(), SHOOTS);
    assert!(ahead < SHOOTS / 10, "{ahead} shoots ran ahead of the last one");
}
