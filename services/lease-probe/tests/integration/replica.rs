//! A replica of lease-probe with metrics of its own.

use std::ops::Deref;

use clap::Parser;
use lease_probe::config::Args;
use metrics_exporter_prometheus::PrometheusBuilder;
use tonic::transport::Channel;
use tonic::{Code, Status};
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::stream::v1::Scope;
use watchdog_runtime::cli::CommandLine;
use watchdog_runtime::process::Process;
use watchdog_test_support::in_process::InProcess;
use watchdog_test_support::simulation::SimulatedShoot;

use crate::fixture::{Fixture, USER};
use crate::stream::Stream;
use crate::{BOUND, wait};

/// The name of the replica of tests that need only one.
pub const IDENTITY: &str = "lease-probe-0";

pub struct Replica {
    service: InProcess,
    pub client: LeaseProbeServiceClient<Channel>,
}

impl Deref for Replica {
    type Target = InProcess;

    fn deref(&self) -> &InProcess {
        &self.service
    }
}

impl Replica {
    /// Starts a replica and waits until it is ready.
    pub async fn start(fixture: &Fixture) -> Self {
        Self::start_as(fixture, IDENTITY, &[]).await
    }

    /// The same with an identity and more arguments.
    pub async fn start_as(fixture: &Fixture, identity: &str, more: &[&str]) -> Self {
        let replica = Self::launch(fixture, identity, more).await;
        replica.wait_ready().await;
        replica
    }

    /// Starts a replica.
    pub async fn launch(fixture: &Fixture, identity: &str, more: &[&str]) -> Self {
        Self::launch_as_user(fixture, USER, identity, more).await
    }

    /// The same as another user on the seed.
    pub async fn launch_as_user(fixture: &Fixture, user: &str, identity: &str, more: &[&str]) -> Self {
        let mut options = vec!["--allow-local-addresses"];
        options.extend(more);
        let line = fixture
            .files
            .command_line(fixture.seed(), user, identity, &options);
        let config = Args::parse_from(line.unwrap()).check().unwrap();
        // Those of another replica in this process must not be among them.
        let recorder = PrometheusBuilder::new().build_recorder();
        let process = Process {
            metrics: Some(recorder.handle()),
            ..Process::default()
        };
        let recorder: &'static _ = Box::leak(Box::new(recorder));
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        threads.on_thread_start(|| std::mem::forget(metrics::set_default_local_recorder(recorder)));
        let service = InProcess::start_on(threads, lease_probe::app::build(config, process));
        let service = service.await.unwrap();
        Self {
            client: LeaseProbeServiceClient::new(service.channel().unwrap()),
            service,
        }
    }

    pub async fn verdict(&self, shoot: &str) -> Result<pb::Verdict, Status> {
        let request = pb::GetVerdictRequest {
            shoot: shoot.to_owned(),
        };
        let response = self.client.clone().get_verdict(request).await?;
        Ok(response.into_inner().verdict.unwrap())
    }

    /// Waits for a verdict that is as wanted.
    pub async fn until(
        &self,
        shoot: &SimulatedShoot,
        what: &str,
        wanted: impl Fn(&pb::Verdict) -> bool,
    ) -> pb::Verdict {
        let name = shoot.namespace();
        let what = format!("{name} is {what}");
        let found = wait::until(&what, BOUND, || async {
            let verdict = self.verdict(name).await?;
            anyhow::ensure!(wanted(&verdict), "{verdict:#?}");
            Ok(Some(verdict))
        });
        found.await.unwrap()
    }

    pub async fn until_outcome(&self, shoot: &SimulatedShoot, outcome: pb::Outcome) -> pb::Verdict {
        let what = format!("{outcome:?}");
        self.until(shoot, &what, |verdict| verdict.outcome() == outcome)
            .await
    }

    /// Waits for a verdict with this outcome and these words.
    pub async fn until_said(&self, shoot: &SimulatedShoot, outcome: pb::Outcome, words: &str) -> pb::Verdict {
        self.until(shoot, &format!("{outcome:?}, {words:?}"), |verdict| {
            verdict.outcome() == outcome && verdict.message.contains(words)
        })
        .await
    }

    /// Waits until a shoot is no longer known.
    pub async fn until_unknown(&self, shoot: &str) -> Status {
        let what = format!("{shoot} is unknown");
        let unknown = wait::until(&what, BOUND, || async {
            let status = self.verdict(shoot).await.err();
            Ok(status.filter(|status| status.code() == Code::NotFound))
        });
        unknown.await.unwrap()
    }

    pub async fn list(&self, request: pb::ListVerdictsRequest) -> Result<pb::ListVerdictsResponse, Status> {
        let response = self.client.clone().list_verdicts(request).await?;
        Ok(response.into_inner())
    }

    /// Opens a stream of the verdicts on these shoots, all when there are none.
    pub async fn watch(&self, scope: Scope, shoots: &[&str]) -> Stream {
        let request = pb::WatchVerdictsRequest {
            shoots: shoots.iter().map(ToString::to_string).collect(),
            scope: scope.into(),
        };
        Stream::new(self.client.clone().watch_verdicts(request).await.unwrap())
    }

    /// The value of one series of /metrics, by its name with its labels as they stand there.
    pub async fn metric(&self, series: &str) -> Option<f64> {
        self.service.metric(series).await.unwrap()
    }

    /// Waits until a counter has reached this.
    pub async fn until_counted(&self, series: &str, count: f64) {
        self.until_metric(series, |n| n.is_some_and(|n| n >= count)).await;
    }

    /// Waits until a series is as wanted.
    pub async fn until_metric(&self, series: &str, wanted: impl Fn(Option<f64>) -> bool) {
        let what = format!("{series} is as wanted");
        let reached = wait::until_true(&what, BOUND, || async {
            let value = self.metric(series).await;
            anyhow::ensure!(wanted(value), "it is {value:?}");
            Ok(true)
        });
        reached.await.unwrap();
    }
}

/// The evidence of a verdict that has some.
pub fn evidence(verdict: &pb::Verdict) -> &pb::Evidence {
    verdict.evidence.as_ref().unwrap()
}

/// A moment in microseconds.
pub fn micros(time: Option<&prost_types::Timestamp>) -> i64 {
    let time = time.unwrap();
    time.seconds * 1_000_000 + i64::from(time.nanos) / 1_000
}

/// The series of a shoot.
pub fn series(shoot: &SimulatedShoot, metric: &str) -> String {
    format!("{metric}{{shoot=\"{}\"}}", shoot.namespace())
}
