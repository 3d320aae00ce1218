//! Random incidents over two hundred shoots: memory, tasks and file descriptors stay flat, and no invariant is
//! violated. `SOAK_SECONDS` says for how long; a minute otherwise.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use jiff::{SignedDuration, Timestamp};
use rand::Rng;
use tokio::time::{Instant, sleep};
use watchdog_test_support::fixtures;
use watchdog_test_support::history::invariants::Expectation;
use watchdog_test_support::history::{History, Write, from_sandbox};
use watchdog_test_support::resource_usage::ResourceUsage;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::simulation::{Sandbox, SimTiming, SimulatedShoot, SimulatedShootSpec};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::Service;

/// In `make test`.
const SECONDS: u64 = 60;

/// Shoots of the seed.
const SHOOTS: usize = 200;

/// Nodes of each.
const NODES: usize = 3;

/// Incidents begin this often.
const PACE: Duration = Duration::from_millis(500);

/// How often the services are measured.
const MEASURE: Duration = Duration::from_secs(1);

/// Share of the time after which the first window of measures begins: by then every kind of incident has happened.
const WARM_UP: f64 = 0.4;

/// The time after the end of a loss in which a verdict from before may still have an effect.
const QUIET: SignedDuration = SignedDuration::from_secs(15);

/// The resources that one service used over time.
type Measures = Vec<ResourceUsage>;

/// A grace period is 10 s.
fn timing() -> SimTiming {
    SimTiming {
        ready_delay: Duration::from_millis(300),
        stop_delay: Duration::from_millis(200),
        crash_after: Duration::from_millis(500),
        ..SimTiming::scaled(4.0)
    }
}

async fn seed() -> anyhow::Result<SandboxFixture> {
    let specs = (0..SHOOTS).map(|index| SimulatedShootSpec::new(&format!("soak-{index}"), NODES));
    let head =
        "probeInterval: 2500ms\ninitialDelay: 1s\nprobeTimeout: 3s\ninternalProbeFailureBackOffDuration: 4s";
    let (prober, weeder) = (fixtures::prober(head, "500ms"), fixtures::weeder("2m"));
    SandboxFixture::start("soak", timing(), specs.collect(), &prober, &weeder).await
}

/// Lets incidents happen for this time, and compares what each service took in the first window after the warm-up and
/// in the last.
async fn run(fixture: &Arc<SandboxFixture>, period: Duration) -> anyhow::Result<()> {
    let services = fixture.start_all().await?;
    let channel = fixture.setup.channel(&services[0])?;
    let _verdicts = fixture.timeline.record_verdicts(channel).await?;
    let shoots = fixture.sandbox.shoots();
    let mut measures = [const { Measures::new() }; 3];
    let mut writes = RecordedWrites::default();
    let begin = Instant::now();
    let (mut next_incident, mut next_measure) = (begin, begin);
    while begin.elapsed() < period {
        sleep(MEASURE.min(PACE) / 2).await;
        let now = Instant::now();
        if now >= next_incident {
            next_incident = now + PACE;
            let shoot = shoots[rand::rng().random_range(0..shoots.len())].clone();
            tokio::spawn(incident(fixture.clone(), shoot));
        }
        if now >= next_measure {
            next_measure = now + MEASURE;
            writes.take(&fixture.sandbox);
            for (service, measures) in services.iter().zip(&mut measures) {
                measures.push(ResourceUsage::of(service).await?);
            }
        }
    }
    shoots.iter().for_each(|shoot| mend(fixture, shoot));
    // A verdict from before may still scale something down.
    wait::until_true("nothing changes any more", BOUND, || async {
        let last = fixture.timeline.last_change().context("nothing was recorded")?;
        Ok(Timestamp::now().duration_since(last) > QUIET)
    })
    .await?;
    let expected = Expectation {
        verdicts: true,
        ..fixture.expectation()
    };
    let history = || {
        writes.take(&fixture.sandbox);
        History::new(writes.taken)
    };
    fixture.check(&expected, history).await?;
    for (service, measures) in services.iter().zip(&measures) {
        compare(service, measures)?;
    }
    Ok(())
}

/// The writes to Deployments and Leases so far; the rest of the sandbox's record is forgotten.
#[derive(Default)]
struct RecordedWrites {
    taken: Vec<Write>,
    last: u64,
}

// === impl RecordedWrites ===

impl RecordedWrites {
    fn take(&mut self, sandbox: &Sandbox) {
        let mut new = sandbox.seed().audit_since(self.last);
        self.last = new.last().map_or(self.last, |entry| entry.id);
        new.retain(|entry| entry.path.contains("/deployments/") || entry.path.contains("/leases"));
        self.taken.extend(from_sandbox(&new));
    }
}

/// Something happens to a shoot, and ends after a while.
async fn incident(fixture: Arc<SandboxFixture>, shoot: SimulatedShoot) {
    let seconds = rand::rng().random_range(1..20);
    match rand::rng().random_range(0..7) {
        0..=2 => fixture.cut_off(&shoot),
        3 => shoot.service_down("kube-apiserver"),
        4 => shoot.service_down("etcd-main-client"),
        5 => shoot.api().freeze(),
        _ => shoot.rotate_kubeconfig().unwrap(),
    }
    sleep(Duration::from_secs(seconds)).await;
    mend(&fixture, &shoot);
}

fn mend(fixture: &SandboxFixture, shoot: &SimulatedShoot) {
    shoot.api().thaw();
    shoot.service_up("kube-apiserver");
    shoot.service_up("etcd-main-client");
    fixture.reconnect(shoot);
}

/// The most that was taken in the first window after the warm-up, against the least in the last: what comes and goes
/// with incidents is in both, what only grows is not.
fn compare(service: &Service, measures: &[ResourceUsage]) -> anyhow::Result<()> {
    let name = service.process.name();
    let len = measures.len();
    let start = (len as f64 * WARM_UP) as usize;
    let window = ((len - start) / 2).max(1);
    let first = extreme(measures.iter().skip(start).take(window), usize::max, u64::max);
    let last = extreme(measures.iter().rev().take(window), usize::min, u64::min);
    let (first, last) = first.zip(last).context("nothing was measured")?;
    ensure!(
        last.fits(&first),
        "{name} took at most {first} in the first window, and never less than {last} in the last"
    );
    eprintln!("{name}: at most {first} at first, at least {last} in the end");
    Ok(())
}

fn extreme<'a>(
    measures: impl Iterator<Item = &'a ResourceUsage>,
    count: fn(usize, usize) -> usize,
    memory: fn(u64, u64) -> u64,
) -> Option<ResourceUsage> {
    measures.copied().reduce(|a, b| ResourceUsage {
        tasks: count(a.tasks, b.tasks),
        descriptors: count(a.descriptors, b.descriptors),
        resident_kb: memory(a.resident_kb, b.resident_kb),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_grows() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    // Its logs are kept when this panics while it is there.
    let fixture = Arc::new(seed().await.unwrap());
    run(&fixture, Duration::from_secs(seconds)).await.unwrap();
}
