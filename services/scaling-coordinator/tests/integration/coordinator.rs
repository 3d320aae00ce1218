//! A replica of the coordinator.

use std::ops::Deref;

use clap::Parser;
use scaling_coordinator::config::Args;
use tonic::transport::Channel;
use watchdog_proto::scaling::v1 as pb;
use watchdog_proto::scaling::v1::scaling_service_client::ScalingServiceClient;
use watchdog_runtime::cli::CommandLine;
use watchdog_runtime::process::Process;
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};
use watchdog_test_support::in_process::InProcess;
use watchdog_test_support::wait::{self, BOUND};

use crate::seed::{Seed, USER};
use crate::{SHOOT, eventually, eventually_async};

pub struct Coordinator {
    service: InProcess,
    pub client: ScalingServiceClient<Channel>,
}

impl Deref for Coordinator {
    type Target = InProcess;

    fn deref(&self) -> &InProcess {
        &self.service
    }
}

impl Coordinator {
    /// Starts a replica and waits until it is ready and leads.
    pub async fn start(seed: &Seed, probes: &[&FakeProbe]) -> Self {
        Self::start_with(seed, probes, &[]).await
    }

    /// The same with more options.
    pub async fn start_with(seed: &Seed, probes: &[&FakeProbe], options: &[&str]) -> Self {
        let coordinator = Self::launch(seed, "coordinator-0", probes, options).await;
        coordinator.wait_ready().await;
        coordinator.until_answered().await;
        coordinator
    }

    /// Waits until a replica leads that answers.
    pub async fn until_answered(&self) {
        let list = async || {
            self.client
                .clone()
                .list_scaling(pb::ListScalingRequest::default())
                .await
        };
        eventually_async("the leader answers", async || list().await.is_ok()).await;
    }

    /// Starts a replica.
    pub async fn launch(seed: &Seed, identity: &str, probes: &[&FakeProbe], options: &[&str]) -> Self {
        let probes = probes
            .iter()
            .map(|probe| format!("--lease-probe={}", probe.address()));
        let mut line = seed
            .files
            .command_line(&seed.api, USER, identity, options)
            .unwrap();
        line.extend(probes);
        let config = Args::parse_from(line).check().unwrap();
        let service = InProcess::start(scaling_coordinator::app::build(config, Process::default()));
        let service = service.await.unwrap();
        Self {
            client: ScalingServiceClient::new(service.channel().unwrap()),
            service,
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

    /// Waits until the process would end because of a failure, and kills it. Returns why.
    pub async fn until_failed(&self) -> String {
        let failed = tokio::time::timeout(BOUND, self.bound.tasks.first_end()).await;
        self.kill();
        format!("{:#}", failed.unwrap())
    }

    /// Waits until the state of a shoot is as wanted.
    pub async fn until(
        &self,
        shoot: &str,
        what: &str,
        wanted: impl Fn(&pb::ShootScaling) -> bool,
    ) -> pb::ShootScaling {
        let found = wait::until(what, BOUND, || async {
            let found = self.get(shoot).await;
            anyhow::ensure!(found.as_ref().is_some_and(&wanted), "it is {found:#?}");
            Ok(found)
        });
        found.await.unwrap()
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

    /// Waits until a resource is in this state.
    pub async fn until_state(&self, shoot: &str, name: &str, wanted: pb::ResourceState) -> pb::ShootScaling {
        let what = format!("{name} is {wanted:?}");
        self.until(shoot, &what, |scaling| state_of(scaling, name) == wanted)
            .await
    }

    pub async fn until_holding(&self, shoot: &str, reason: &str) -> pb::ShootScaling {
        self.until(shoot, &format!("it holds because {reason:?}"), |scaling| {
            scaling.direction() == pb::Direction::Hold && scaling.reason.contains(reason)
        })
        .await
    }

    /// The collectors' part of /metrics.
    pub async fn metrics(&self) -> String {
        self.admin_get("/metrics").await.unwrap().1
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

/// The state of a resource by its name.
pub fn state_of(scaling: &pb::ShootScaling, name: &str) -> pb::ResourceState {
    resource(scaling, name).state()
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
