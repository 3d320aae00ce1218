//! The external endpoint: what its answers, and their absence, make of a shoot whose nodes are connected.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use lease_probe::cluster::prober::{Endpoint, Inputs, Prober, Report, Shared};
use lease_probe::cluster::source::{Access, Budget, Outside, Source};
use lease_probe::domain::assessment::Leases;
use lease_probe::domain::moment::Moment;
use lease_probe::domain::outcome::{Failure, Outcome};
use lease_probe::domain::renewals::ListedLease;
use lease_probe::domain::verdict::Verdict;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchdog_api::eligibility::ShootSettings;
use watchdog_api::machine::MachineItem;
use watchdog_api::node::NodeItem;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::trace::Tracer;

use crate::shoot::config;

const LIMIT: Duration = Duration::from_secs(5);

/// A shoot whose nodes renew all the time, and an external endpoint that answers as it is told.
#[derive(Clone)]
struct World {
    clock: Clock,
    answers: Arc<Mutex<VecDeque<Result<(), Failure>>>>,
    observed: Arc<Mutex<Observed>>,
}

#[derive(Default)]
struct Observed {
    told: Vec<(Moment, Outcome)>,
    failures: Vec<(Endpoint, &'static str)>,
}

impl Report for World {
    fn verdict(&self, verdict: Verdict) {
        let told = (verdict.observed_at, verdict.outcome);
        self.observed.lock().told.push(told);
    }

    fn failure(&self, endpoint: Endpoint, failure: &Failure) {
        self.observed.lock().failures.push((endpoint, failure.as_str()));
    }
}

impl Source for World {
    async fn leases(&mut self, _: &Access, _: Budget) -> Result<Leases, Failure> {
        let lease = |number| ListedLease {
            name: format!("node-{number}").into(),
            renew_time: Some(Moment(self.clock.now_micros())),
            duration_seconds: Some(40),
        };
        Ok(Leases {
            leases: (0..3).map(lease).collect(),
            malformed: 0,
        })
    }

    async fn nodes_and_machines(
        &mut self,
        _: &Access,
        _: Budget,
    ) -> Result<(Vec<NodeItem>, Vec<MachineItem>), Failure> {
        panic!("nothing is about to expire");
    }
}

impl Outside for World {
    async fn answers(&mut self, _: &Access, _: Budget) -> Result<(), Failure> {
        let next = self.answers.lock().pop_front();
        match next {
            Some(answer) => answer,
            // All that is to be seen was seen.
            None => std::future::pending().await,
        }
    }
}

/// Probes until all answers were given.
async fn probe(answers: impl IntoIterator<Item = Result<(), Failure>>) -> Observed {
    let clock = Clock::start();
    let answers: VecDeque<_> = answers.into_iter().collect();
    let count = answers.len();
    let world = World {
        clock,
        answers: Arc::new(Mutex::new(answers)),
        observed: Arc::default(),
    };
    // Nobody talks to it.
    let seed = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
    let shared = Shared {
        seed: kube::Client::try_from(seed).unwrap(),
        clock,
        identity: "lease-probe-0".into(),
        tracer: Tracer::off(),
        probing: AtomicUsize::new(0),
    };
    let none = || Err(Failure::Kubeconfig("none is needed".to_owned()));
    let (_changes, inputs) = watch::channel(Inputs {
        settings: Arc::new(ShootSettings::default()),
        config: Arc::new(config("10s")),
        internal: none(),
        external: Some(none()),
    });
    let prober = Prober::new(
        "shoot".into(),
        Arc::new(shared),
        inputs,
        world.clone(),
        world.clone(),
        world.clone(),
    );
    let hour = Duration::from_secs(3600);
    let run = prober.run(1, CancellationToken::new());
    assert!(tokio::time::timeout(hour, run).await.is_err(), "the prober ended");
    let observed = std::mem::take(&mut *world.observed.lock());
    // And the one that is pending before the first probe.
    assert_eq!(observed.told.len(), count + 1, "{:?}", observed.told);
    observed
}

fn outcomes(observed: &Observed) -> Vec<Outcome> {
    let told = observed.told.iter().skip(1);
    told.map(|(_, outcome)| outcome.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_does_not_answer_is_a_loss_until_it_does() {
    let observed = probe([Ok(()), Err(Failure::Timeout(LIMIT)), Ok(())]).await;
    assert_eq!(
        outcomes(&observed),
        [Outcome::Healthy, Outcome::ExternalUnreachable, Outcome::Healthy]
    );
    assert_eq!(observed.failures, [(Endpoint::External, "timeout")]);
}

/// It is this process that waited for itself.
#[tokio::test(start_paused = true)]
async fn an_endpoint_that_was_not_asked_is_not_unreachable() {
    let observed = probe([Err(Failure::NoPlace(LIMIT)), Ok(()), Err(Failure::NoPlace(LIMIT))]).await;
    assert_eq!(
        outcomes(&observed),
        [Outcome::Healthy, Outcome::Healthy, Outcome::Healthy]
    );
    assert_eq!(observed.failures, [(Endpoint::External, "no_place"); 2]);
}

/// Where many external endpoints fail at once, places are scarce: that must not restore what was scaled down.
#[tokio::test(start_paused = true)]
async fn a_loss_is_not_over_because_nobody_could_look() {
    let answers = [
        Err(Failure::Timeout(LIMIT)),
        Err(Failure::NoPlace(LIMIT)),
        Err(Failure::NoPlace(LIMIT)),
        Err(Failure::Timeout(LIMIT)),
        Err(Failure::NoPlace(LIMIT)),
        Ok(()),
        Err(Failure::NoPlace(LIMIT)),
    ];
    let observed = probe(answers).await;
    assert_eq!(
        outcomes(&observed),
        [
            Outcome::ExternalUnreachable,
            Outcome::Inconclusive,
            Outcome::Inconclusive,
            Outcome::ExternalUnreachable,
            Outcome::Inconclusive,
            Outcome::Healthy,
            Outcome::Healthy
        ]
    );
    assert!(
        observed
            .failures
            .iter()
            .all(|(endpoint, _)| *endpoint == Endpoint::External)
    );
}

/// Who answers 429 answers, and wants to be left alone.
#[tokio::test(start_paused = true)]
async fn a_429_of_the_external_endpoint_is_heeded() {
    let asked = Duration::from_secs(45);
    let observed = probe([
        Err(Failure::Throttled(Some(asked))),
        Err(Failure::Throttled(None)),
        Ok(()),
        Ok(()),
    ])
    .await;
    assert!(
        outcomes(&observed)
            .iter()
            .all(|outcome| *outcome == Outcome::Healthy)
    );
    let at: Vec<_> = observed.told.iter().skip(1).map(|(at, _)| *at).collect();
    let pauses: Vec<_> = at
        .windows(2)
        .map(|pair| pair[1].since(pair[0]).as_secs())
        .collect();
    // With a jitter of up to a fifth; the second is as long as the interval.
    assert!(
        (45..=54).contains(&pauses[0]) && (10..=12).contains(&pauses[1]),
        "{pauses:?}"
    );
}
