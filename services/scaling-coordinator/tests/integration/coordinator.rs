//! A coordinator in a runtime of its own, so that it can be killed at any point.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use clap::Parser;
use scaling_coordinator::config::Args;
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tonic::transport::Channel;
use watchdog_kube::membership::Timing;
use watchdog_proto::scaling::v1 as pb;
use watchdog_proto::scaling::v1::scaling_service_client::ScalingServiceClient;
use watchdog_runtime::cli::CommandLine;
use watchdog_runtime::process::{Bound, Process};
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};

use crate::seed::Seed;
use crate::{PATIENCE, SHOOT, eventually};

pub struct Coordinator {
    runtime: Option<Runtime>,
    bound: Option<Bound>,
    pub admin_addr: SocketAddr,
    pub client: ScalingServiceClient<Channel>,
}

impl Coordinator {
    /// Starts a replica and waits until it is ready.
    pub async fn start(seed: &Seed, probes: &[&FakeProbe]) -> Self {
        Self::start_with(seed, probes, &[]).await
    }

    /// The same with more options.
    pub async fn start_with(seed: &Seed, probes: &[&FakeProbe], options: &[&str]) -> Self {
        let coordinator = Self::launch(seed, "coordinator-0", probes, options).await;
        coordinator.until_ready().await;
        coordinator
    }

    /// Starts a replica.
    pub async fn launch(seed: &Seed, identity: &str, probes: &[&FakeProbe], options: &[&str]) -> Self {
        let file = |name: &str| seed.dir.path().join(name).display().to_string();
        let mut args = vec![
            "scaling-coordinator".to_owned(),
            "--insecure-plaintext".into(),
            format!("--config-file={}", file("config.yaml")),
            format!("--kubeconfig={}", file("kubeconfig")),
            format!("--identity={identity}"),
            "--grpc-addr=127.0.0.1:0".into(),
            "--admin-addr=127.0.0.1:0".into(),
        ];
        args.extend(options.iter().map(ToString::to_string));
        args.extend(
            probes
                .iter()
                .map(|probe| format!("--lease-probe={}", probe.address())),
        );
        let mut config = Args::parse_from(args).check().unwrap();
        config.timing = Timing::PRODUCTION.faster(5);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let bound = runtime.spawn(scaling_coordinator::app::build(config, Process::for_tests()));
        let bound = bound.await.unwrap().unwrap();
        let channel = Channel::from_shared(format!("http://{}", bound.grpc_addr))
            .unwrap()
            .connect_lazy();
        Self {
            runtime: Some(runtime),
            admin_addr: bound.admin_addr,
            bound: Some(bound),
            client: ScalingServiceClient::new(channel),
        }
    }

    pub async fn until_ready(&self) {
        let bound = self.bound.as_ref().unwrap();
        let mut ready = bound.readiness.subscribe();
        let waited = tokio::time::timeout(PATIENCE, ready.wait_for(|ready| *ready)).await;
        assert!(waited.is_ok(), "not ready: {:?}", bound.readiness.blockers());
    }

    /// The readiness blockers, one line each.
    pub fn blockers(&self) -> Vec<String> {
        let blockers = self.bound.as_ref().unwrap().readiness.blockers();
        blockers
            .into_iter()
            .map(|(name, why)| format!("{name}: {why}"))
            .collect()
    }

    /// The process dies at once, whatever it is doing.
    pub fn kill(mut self) {
        self.die();
    }

    /// The process is asked to stop, and does.
    pub async fn stop(mut self) {
        let bound = self.bound.take().unwrap();
        let tasks = bound.tasks.clone();
        let drained = self
            .runtime
            .as_ref()
            .unwrap()
            .spawn(async move { tasks.drain(PATIENCE).await });
        let (failed, in_time) = drained.await.unwrap();
        assert_eq!((failed, in_time), (vec![], true));
    }

    fn die(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    pub async fn get(&self, shoot: &str) -> Option<pb::ShootScaling> {
        let request = pb::GetScalingRequest {
            shoot: shoot.to_owned(),
        };
        self.client
            .clone()
            .get_scaling(request)
            .await
            .ok()?
            .into_inner()
            .scaling
    }

    /// The plan of this replica, which rests on its own watches, by the name of the resource.
    pub async fn planned(
        &self,
        shoot: &str,
        direction: pb::Direction,
    ) -> BTreeMap<String, pb::PlannedResource> {
        let request = pb::PlanScalingRequest {
            shoot: shoot.to_owned(),
            direction: direction.into(),
        };
        let answer = self.client.clone().plan_scaling(request).await.unwrap();
        let levels = answer.into_inner().levels.into_iter();
        levels
            .flat_map(|level| level.resources)
            .map(|planned| (planned.resource.clone().unwrap_or_default().name, planned))
            .collect()
    }

    /// The events of a shoot that this replica remembers, oldest first.
    pub async fn history(&self, shoot: &str) -> Vec<pb::ShootEvent> {
        let request = pb::ListShootEventsRequest {
            shoot: shoot.to_owned(),
            ..Default::default()
        };
        let answer = self.client.clone().list_shoot_events(request).await.unwrap();
        answer.into_inner().events
    }

    /// Waits until the state of a shoot is as wanted.
    pub async fn until(
        &self,
        shoot: &str,
        what: &str,
        mut wanted: impl FnMut(&pb::ShootScaling) -> bool,
    ) -> pb::ShootScaling {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let scaling = self.get(shoot).await;
            if let Some(scaling) = scaling.as_ref().filter(|scaling| wanted(scaling)) {
                return scaling.clone();
            }
            assert!(
                Instant::now() < deadline,
                "gave up waiting until {what}: {scaling:#?}"
            );
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// Waits until a direction has reached its targets.
    pub async fn until_settled(&self, shoot: &str, direction: pb::Direction) -> pb::ShootScaling {
        self.until(shoot, &format!("{direction:?} is settled"), |scaling| {
            scaling.direction() == direction && scaling.state() == pb::FlowState::Settled
        })
        .await
    }

    /// Reports a loss and waits until all is down.
    pub async fn lose(&self, probe: &FakeProbe, shoot: &str) -> pb::ShootScaling {
        probe.say([shoot], Outcome::LeasesExpired);
        self.until_settled(shoot, pb::Direction::Down).await
    }

    /// Reports that the shoot is healthy and waits until all is up.
    pub async fn recover(&self, probe: &FakeProbe, shoot: &str) -> pb::ShootScaling {
        probe.say([shoot], Outcome::Healthy);
        self.until_settled(shoot, pb::Direction::Up).await
    }

    /// Waits until a resource is in this step.
    pub async fn until_step(&self, shoot: &str, name: &str, wanted: pb::Step) -> pb::ShootScaling {
        let what = format!("{name} is {wanted:?}");
        self.until(shoot, &what, |scaling| step(scaling, name) == wanted)
            .await
    }

    pub async fn until_holding(&self, shoot: &str, reason: &str) -> pb::ShootScaling {
        self.until(shoot, &format!("it holds because {reason:?}"), |scaling| {
            scaling.direction() == pb::Direction::Hold && scaling.reason.contains(reason)
        })
        .await
    }

    /// The collectors' part of /metrics (the exporter itself belongs to the process).
    pub async fn metrics(&self) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(self.admin_addr).await.unwrap();
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.die();
    }
}

/// A seed with a shoot that has this many replicas of kube-controller-manager, a lease-probe that has not reported it
/// yet, and a coordinator.
pub async fn one_shoot(kcm: i32, with_ca: bool) -> (Seed, FakeProbe, Coordinator) {
    one_shoot_with(kcm, with_ca, &[]).await
}

/// The same with options of the coordinator.
pub async fn one_shoot_with(kcm: i32, with_ca: bool, options: &[&str]) -> (Seed, FakeProbe, Coordinator) {
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    seed.shoot(SHOOT, kcm, with_ca).await;
    let coordinator = Coordinator::start_with(&seed, &[&probe], options).await;
    (seed, probe, coordinator)
}

/// The step of a resource by its name.
pub fn step(scaling: &pb::ShootScaling, name: &str) -> pb::Step {
    resource(scaling, name).step()
}

pub fn resource<'a>(scaling: &'a pb::ShootScaling, name: &str) -> &'a pb::ResourceScaling {
    let mut resources = scaling.resources.iter();
    resources
        .find(|r| {
            r.resource
                .as_ref()
                .is_some_and(|reference| reference.name == name)
        })
        .unwrap()
}

/// Waits until the seed has seen a write of this kind.
pub async fn until_written(seed: &Seed, shoot: &str, write: &str) {
    eventually(&format!("{write:?} is written"), || {
        seed.writes(shoot).iter().any(|w| w.starts_with(write))
    })
    .await;
}
