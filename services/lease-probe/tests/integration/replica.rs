//! A replica of lease-probe in a runtime of its own, with metrics of its own.

use std::net::SocketAddr;

use clap::Parser;
use lease_probe::config::Args;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use tonic::{Code, Status};
use watchdog_proto::feed::v1::Scope;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_runtime::cli::CommandLine;
use watchdog_runtime::process::{Bound, Process};
use watchdog_sandbox::SimulatedShoot;

use crate::fixture::Fixture;
use crate::stream::Stream;
use crate::{PATIENCE, until};

/// The name of the replica of tests that need only one.
pub const IDENTITY: &str = "lease-probe-0";

pub struct Replica {
    runtime: Option<Runtime>,
    bound: Option<Bound>,
    admin_addr: SocketAddr,
    pub client: LeaseProbeServiceClient<Channel>,
}

impl Replica {
    /// Starts a replica and waits until it is ready.
    pub async fn start(fixture: &Fixture) -> Self {
        Self::start_as(fixture, IDENTITY, &[]).await
    }

    /// The same with an identity and more arguments.
    pub async fn start_as(fixture: &Fixture, identity: &str, more: &[&str]) -> Self {
        let replica = Self::launch(fixture, identity, more).await;
        let bound = replica.bound.as_ref().unwrap();
        let mut ready = bound.readiness.subscribe();
        let waited = tokio::time::timeout(PATIENCE, ready.wait_for(|ready| *ready)).await;
        assert!(waited.is_ok(), "not ready: {:?}", bound.readiness.blockers());
        replica
    }

    /// Starts a replica.
    pub async fn launch(fixture: &Fixture, identity: &str, more: &[&str]) -> Self {
        let file = |name: &str| fixture.dir.path().join(name).display().to_string();
        let mut args = vec![
            "lease-probe".to_owned(),
            "--insecure-plaintext".into(),
            "--allow-local-addresses".into(),
            format!("--config-file={}", file("config.yaml")),
            format!("--kubeconfig={}", file("kubeconfig")),
            format!("--identity={identity}"),
            "--grpc-addr=127.0.0.1:0".into(),
            "--admin-addr=127.0.0.1:0".into(),
        ];
        args.extend(more.iter().map(ToString::to_string));
        let config = Args::parse_from(args).check().unwrap();
        // Those of another replica in this process must not be among them.
        let recorder = PrometheusBuilder::new().build_recorder();
        let process = Process {
            metrics: Some(recorder.handle()),
            ..Process::for_tests()
        };
        let recorder: &'static _ = Box::leak(Box::new(recorder));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .on_thread_start(|| std::mem::forget(metrics::set_default_local_recorder(recorder)))
            .enable_all()
            .build()
            .unwrap();
        let bound = runtime.spawn(lease_probe::app::build(config, process));
        let bound = bound.await.unwrap().unwrap();
        let channel = Channel::from_shared(format!("http://{}", bound.grpc_addr))
            .unwrap()
            .connect_lazy();
        Self {
            runtime: Some(runtime),
            admin_addr: bound.admin_addr,
            bound: Some(bound),
            client: LeaseProbeServiceClient::new(channel),
        }
    }

    /// The reasons why the replica is not ready, one per line.
    pub fn blockers(&self) -> String {
        let blockers = self.bound.as_ref().unwrap().readiness.blockers();
        let lines: Vec<_> = blockers
            .iter()
            .map(|(name, why)| format!("{name}: {why}"))
            .collect();
        lines.join("\n")
    }

    /// Asks it to stop, and waits until it has.
    pub async fn stop(mut self) {
        let tasks = self.bound.take().unwrap().tasks;
        let drained = self
            .runtime
            .as_ref()
            .unwrap()
            .spawn(async move { tasks.drain(PATIENCE).await });
        assert_eq!(drained.await.unwrap(), (vec![], true));
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
        mut wanted: impl FnMut(&pb::Verdict) -> bool,
    ) -> pb::Verdict {
        let name = shoot.namespace();
        let last = std::cell::RefCell::new(None);
        let look = async || {
            let verdict = self.verdict(name).await;
            let found = verdict.as_ref().ok().filter(|verdict| wanted(verdict)).cloned();
            *last.borrow_mut() = Some(verdict);
            found
        };
        until(|| format!("{name} is {what}: {:#?}", last.borrow()), look).await
    }

    pub async fn until_outcome(&self, shoot: &SimulatedShoot, outcome: pb::Outcome) -> pb::Verdict {
        let what = format!("{outcome:?}");
        self.until(shoot, &what, |verdict| verdict.outcome() == outcome)
            .await
    }

    /// Waits until a shoot is no longer known.
    pub async fn until_unknown(&self, shoot: &str) -> Status {
        let what = || format!("{shoot} is unknown");
        until(what, async || {
            let status = self.verdict(shoot).await.err()?;
            (status.code() == Code::NotFound).then_some(status)
        })
        .await
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

    /// GET on the admin endpoint, the whole answer.
    pub async fn admin(&self, path: &str) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let exchange = async {
            let mut stream = tokio::net::TcpStream::connect(self.admin_addr).await?;
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await?;
            std::io::Result::Ok(text)
        };
        tokio::time::timeout(PATIENCE, exchange).await.unwrap().unwrap()
    }

    /// The value of one series of /metrics, by its name with its labels as they stand there.
    pub async fn metric(&self, series: &str) -> Option<f64> {
        let text = self.admin("/metrics").await;
        text.lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    /// Waits until a counter has reached this.
    pub async fn until_counted(&self, series: &str, count: f64) {
        self.until_metric(series, |n| n.is_some_and(|n| n >= count)).await;
    }

    /// Waits until a series is as wanted.
    pub async fn until_metric(&self, series: &str, mut wanted: impl FnMut(Option<f64>) -> bool) {
        let last = std::cell::Cell::new(None);
        let look = async || {
            last.set(self.metric(series).await);
            wanted(last.get()).then_some(())
        };
        until(|| format!("{series} is as wanted: {:?}", last.get()), look).await;
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
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
