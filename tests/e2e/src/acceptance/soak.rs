//! Two hundred shoots with random incidents, for as long as one likes: memory, tasks and file descriptors stay flat,
//! and no invariant is violated.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use rand::Rng;
use tokio::time::{Instant, sleep};
use watchdog_test_support::simulation::{
    Cut, Sandbox, SandboxConfig, SimTiming, SimulatedShoot, SimulatedShootSpec,
};

use super::THRESHOLD;
use super::seed::Seed;
use super::times::Times;
use watchdog_test_support::fixtures::{CA, KCM, MCM};
use watchdog_test_support::history::invariants::{Expectation, NodeTimes};
use watchdog_test_support::history::timeline::{Fact, Timeline};
use watchdog_test_support::history::{History, Write, from_sandbox};
use watchdog_test_support::resource_usage::ResourceUsage;
use watchdog_test_support::restartable_service::RestartableService;
use watchdog_test_support::sandboxed::client;
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::wait::{self, BOUND};

/// Shoots of the seed.
const SHOOTS: usize = 200;

/// Nodes of each.
const NODES: usize = 3;

/// The dependants, with their replicas.
const COUNTS: [(&str, i32); 3] = [(KCM, 1), (MCM, 1), (CA, 1)];

/// Incidents begin this often.
const PACE: Duration = Duration::from_millis(500);

/// How often the services are measured.
const MEASURE: Duration = Duration::from_secs(1);

/// Share of the time after which the first window of measures begins: by then every kind of incident has happened.
const WARM_UP: f64 = 0.4;

/// The time after the end of a loss in which a verdict from before may still have an effect.
const QUIET: SignedDuration = SignedDuration::from_secs(15);

const TIMES: Times = Times {
    grace: Duration::from_secs(10),
    machine_health_timeout: Duration::from_secs(150),
    bound: BOUND,
};

/// The resources that one service used over time.
type Measures = Vec<ResourceUsage>;

/// Lets incidents happen for this time; says what each service took in the first window after the warm-up and in the
/// last.
///
/// # Errors
/// When something is not restored, or a service takes more in the end than in the beginning.
pub async fn run(period: Duration) -> anyhow::Result<Vec<String>> {
    let scratch = Scratch::new("soak")?;
    let sandbox = sandbox().await?;
    let admin = client(&sandbox.seed().kubeconfig("administrator")).await?;
    let kubeconfig = |identity: &str| Ok(sandbox.seed().kubeconfig(identity));
    let seed = Seed::start(&scratch, admin, kubeconfig, &TIMES).await?;
    let shoots = sandbox.shoots();
    let mut measures: Vec<Measures> = seed.services().iter().map(|_| Measures::new()).collect();
    let mut writes = RecordedWrites::default();
    let begin = Instant::now();
    let (mut next_incident, mut next_measure) = (begin, begin);
    while begin.elapsed() < period {
        sleep(MEASURE.min(PACE) / 2).await;
        let now = Instant::now();
        if now >= next_incident {
            next_incident = now + PACE;
            tokio::spawn(incident(pick(&shoots)?, seed.timeline.clone()));
        }
        if now >= next_measure {
            next_measure = now + MEASURE;
            writes.take(&sandbox);
            for (service, measures) in seed.services().iter().zip(&mut measures) {
                measures.push(ResourceUsage::of(&service.get()).await?);
            }
        }
    }
    for shoot in &shoots {
        mend(shoot, &seed.timeline);
    }
    let namespaces: Vec<_> = shoots.iter().map(SimulatedShoot::namespace).collect();
    // A verdict from before may still scale something down.
    wait::until_true("nothing changes any more", BOUND, || async {
        let last = seed.timeline.last_change().context("nothing was recorded")?;
        Ok(Timestamp::now().duration_since(last) > QUIET)
    })
    .await?;
    seed.timeline.until_restored(&namespaces, &COUNTS, BOUND).await?;
    writes.take(&sandbox);
    let expected = Expectation {
        counts: COUNTS.to_vec(),
        nodes: Some(NodeTimes {
            grace: TIMES.grace,
            renew_interval: TIMES.renew_interval(),
            threshold: THRESHOLD,
        }),
        restored: true,
        verdicts: true,
    };
    History::new(writes.taken)
        .check_with(&seed.timeline, namespaces, &expected)
        .check()?;
    seed.services()
        .iter()
        .zip(&measures)
        .map(|(service, measures)| compare(service, measures))
        .collect()
}

async fn sandbox() -> anyhow::Result<Sandbox> {
    let timing = SimTiming {
        machine_health_timeout: TIMES.machine_health_timeout,
        ready_delay: Duration::from_millis(300),
        stop_delay: Duration::from_millis(200),
        crash_after: Duration::from_millis(500),
        ..SimTiming::scaled(1.0 / TIMES.factor())
    };
    let config = SandboxConfig {
        timing,
        shoots: (0..SHOOTS)
            .map(|index| SimulatedShootSpec::new(&format!("soak-{index}"), NODES))
            .collect(),
    };
    Sandbox::start(config).await
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

fn pick(shoots: &[SimulatedShoot]) -> anyhow::Result<SimulatedShoot> {
    let index = rand::rng().random_range(0..shoots.len());
    shoots.get(index).cloned().context("no shoots")
}

/// Something happens to a shoot, and ends after a while.
async fn incident(shoot: SimulatedShoot, timeline: Arc<Timeline>) {
    let seconds = rand::rng().random_range(1..20);
    match rand::rng().random_range(0..7) {
        0..=2 => {
            shoot.cut(Cut::All);
            timeline.add(
                shoot.namespace(),
                Fact::Cut {
                    cut: NODES,
                    of: NODES,
                },
            );
        }
        3 => shoot.service_down("kube-apiserver"),
        4 => shoot.service_down("etcd-main-client"),
        5 => shoot.api().freeze(),
        // Its Secret is there: nobody deletes it.
        _ => _ = shoot.rotate_kubeconfig(),
    }
    sleep(Duration::from_secs(seconds)).await;
    mend(&shoot, &timeline);
}

fn mend(shoot: &SimulatedShoot, timeline: &Timeline) {
    shoot.api().thaw();
    shoot.service_up("kube-apiserver");
    shoot.service_up("etcd-main-client");
    shoot.heal();
    timeline.add(shoot.namespace(), Fact::Cut { cut: 0, of: NODES });
}

/// The most that was taken in the first window after the warm-up, against the least in the last: what comes and goes
/// with incidents is in both, what only grows is not.
fn compare(service: &Arc<RestartableService>, measures: &[ResourceUsage]) -> anyhow::Result<String> {
    let name = service.get().process.name().to_owned();
    let len = measures.len();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of some hundreds"
    )]
    let start = (len as f64 * WARM_UP) as usize;
    let window = ((len - start) / 2).max(1);
    let first = extreme(measures.iter().skip(start).take(window), usize::max, u64::max);
    let last = extreme(measures.iter().rev().take(window), usize::min, u64::min);
    let (first, last) = first.zip(last).context("nothing was measured")?;
    anyhow::ensure!(
        last.fits(&first),
        "{name} took at most {first} in the first window, and never less than {last} in the last"
    );
    Ok(format!(
        "{name}: at most {first} at first, at least {last} in the end"
    ))
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
