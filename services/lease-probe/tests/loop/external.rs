//! The external endpoint: what its answers, and their absence, make of a shoot whose nodes are connected.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lease_probe::cluster::connection::Observations;
use lease_probe::cluster::kubeconfig::Access;
use lease_probe::cluster::shoot_client::{Budget, ExternalEndpoint, ShootClient};
use lease_probe::controller::prober::{Endpoint, ProbeInputs, ProbeReporter, Prober};
use lease_probe::domain::assessment::ListedLeases;
use lease_probe::domain::outcome::{Outcome, ProbeFailure};
use lease_probe::domain::renewals::ListedLease;
use lease_probe::domain::verdict::Verdict;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use watchdog_api::eligibility::ShootSettings;
use watchdog_api::machine::MachineItem;
use watchdog_api::node::NodeItem;
use watchdog_api::unix_time::UnixTime;
use watchdog_runtime::clock::Clock;

use crate::shoot::{config, context, name, nodes_and_machines};

const LIMIT: Duration = Duration::from_secs(5);

/// A shoot whose nodes stop renewing after a while, and an external endpoint with scripted answers.
#[derive(Clone)]
struct ScriptedEndpoints {
    clock: Clock,
    began: i64,
    /// For how long the nodes renew every ten seconds.
    renew_for: Duration,
    answers: Arc<Mutex<VecDeque<Result<(), ProbeFailure>>>>,
    observed: Arc<Mutex<Observed>>,
}

#[derive(Default)]
struct Observed {
    reported: Vec<(UnixTime, Outcome)>,
    failures: Vec<(Endpoint, &'static str)>,
}

impl ProbeReporter for ScriptedEndpoints {
    fn verdict(&self, verdict: Verdict) {
        let reported = (verdict.observed_at, verdict.outcome);
        self.observed.lock().reported.push(reported);
    }

    fn failure(&self, endpoint: Endpoint, failure: &ProbeFailure) {
        self.observed.lock().failures.push((endpoint, failure.as_str()));
    }
}

const RENEW_INTERVAL: i64 = 10_000_000;

impl ShootClient for ScriptedEndpoints {
    async fn leases(&mut self, _: &Access, _: Budget) -> Result<(ListedLeases, Instant), ProbeFailure> {
        let alive = i64::try_from(self.renew_for.as_micros()).unwrap();
        let since = (self.clock.now_micros() - self.began).min(alive);
        let lease = |number| ListedLease {
            name: name(number),
            renew_time: Some(UnixTime(self.began + since / RENEW_INTERVAL * RENEW_INTERVAL)),
            duration_seconds: Some(40),
        };
        let leases = (0..3).map(lease).collect();
        Ok((ListedLeases { leases, malformed: 0 }, Instant::now()))
    }

    async fn nodes_and_machines(
        &mut self,
        _: &Access,
        _: Budget,
    ) -> Result<(Vec<NodeItem>, Vec<MachineItem>), ProbeFailure> {
        Ok(nodes_and_machines(3))
    }

    async fn disconnected(&self) {
        std::future::pending().await
    }

    fn take_observations(&mut self) -> Observations {
        Observations::default()
    }
}

impl ExternalEndpoint for ScriptedEndpoints {
    async fn answers(&mut self, _: &Access, _: Budget) -> Result<(), ProbeFailure> {
        let next = self.answers.lock().pop_front();
        match next {
            Some(answer) => answer,
            // No scripted answer is left.
            None => std::future::pending().await,
        }
    }
}

const FOREVER: Duration = Duration::from_secs(86_400);

/// Probes until all answers were given.
async fn probe(renew_for: Duration, answers: impl IntoIterator<Item = Result<(), ProbeFailure>>) -> Observed {
    let clock = Clock::start();
    let endpoints = ScriptedEndpoints {
        clock,
        began: clock.now_micros(),
        renew_for,
        answers: Arc::new(Mutex::new(answers.into_iter().collect())),
        observed: Arc::default(),
    };
    let none = || Err(ProbeFailure::Kubeconfig("none is needed".to_owned()));
    let (_changes, inputs) = watch::channel(ProbeInputs {
        settings: Arc::new(ShootSettings::default()),
        // Without jitter, so that it is known which renewals come before which probe.
        config: Arc::new(config("10s\nbackoffJitterFactor: 0")),
        internal: none(),
        external: Some(none()),
    });
    let prober = Prober::new(
        "shoot".into(),
        context(clock),
        inputs,
        endpoints.clone(),
        endpoints.clone(),
        endpoints.clone(),
    );
    let hour = Duration::from_secs(3600);
    let run = prober.run(1, CancellationToken::new());
    assert!(tokio::time::timeout(hour, run).await.is_err(), "the prober ended");
    std::mem::take(&mut *endpoints.observed.lock())
}

/// Without the one that is pending before the first probe.
fn outcomes(observed: &Observed) -> Vec<Outcome> {
    let reported = observed.reported.iter().skip(1);
    reported.map(|(_, outcome)| outcome.clone()).collect()
}

fn unanswered() -> Result<(), ProbeFailure> {
    Err(ProbeFailure::Timeout(LIMIT))
}

/// A broken resolver or egress on the seed takes the external endpoints of all shoots away at once.
#[tokio::test(start_paused = true)]
async fn renewed_leases_refute_an_endpoint_that_does_not_answer() {
    let observed = probe(FOREVER, std::iter::repeat_with(unanswered).take(50)).await;
    assert!(
        outcomes(&observed)
            .iter()
            .all(|outcome| *outcome == Outcome::Healthy)
    );
    assert_eq!(observed.failures, [(Endpoint::External, "timeout"); 50]);
}

/// The last renewal is at 40 s, the endpoint fails from 50 s on, the crossing is at 70 s.
#[tokio::test(start_paused = true)]
async fn it_makes_a_loss_known_earlier() {
    let stop = Duration::from_secs(47);
    let observed = probe(
        stop,
        (0..60).map(|probe| if probe < 5 { Ok(()) } else { unanswered() }),
    )
    .await;
    let (first, _) = observed.reported[0];
    let lost = observed
        .reported
        .iter()
        .find(|(_, outcome)| outcome.is_loss())
        .unwrap();
    assert_eq!(lost.1, Outcome::ExternalUnreachable);
    let at = lost.0.since(first).as_secs();
    assert!((58..=69).contains(&at), "reported after {at} s");
}

/// It is this process that waited for itself, or that has no file descriptor for a connection.
#[tokio::test(start_paused = true)]
async fn an_endpoint_that_was_not_asked_is_not_unreachable() {
    for own in [
        ProbeFailure::QueueTimeout(LIMIT),
        ProbeFailure::LocalLimit("Too many open files".to_owned()),
    ] {
        let not_asked = std::iter::repeat_n(Err(own), 60);
        let observed = probe(Duration::from_secs(20), not_asked).await;
        let found = outcomes(&observed);
        assert!(!found.contains(&Outcome::ExternalUnreachable), "{found:?}");
        assert_eq!(found.last(), Some(&Outcome::LeasesExpired), "by its leases");
    }
}

/// A server that answers 429 answers, and wants to be left alone.
#[tokio::test(start_paused = true)]
async fn a_429_of_the_external_endpoint_is_heeded() {
    let asked = Duration::from_secs(45);
    let answers = [
        Err(ProbeFailure::Throttled(Some(asked))),
        Err(ProbeFailure::Throttled(None)),
        Ok(()),
        Ok(()),
    ];
    let observed = probe(FOREVER, answers).await;
    assert!(
        outcomes(&observed)
            .iter()
            .all(|outcome| *outcome == Outcome::Healthy)
    );
    let at: Vec<_> = observed.reported.iter().skip(1).map(|(at, _)| *at).collect();
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
