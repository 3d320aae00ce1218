//! A coordinator that listens to a [`FakeProbe`](crate::fake_probe::FakeProbe), as a process.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tonic::transport::Channel;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::scaling::v1::scaling_service_client::ScalingServiceClient;

use crate::binaries;
use crate::process::Command;
use crate::scratch::Scratch;
use crate::wait;
use crate::watchdog::{self, Service};

/// A running coordinator. Killed when dropped.
#[derive(Debug)]
pub struct Coordinator {
    pub service: Service,
    /// Its API.
    pub client: ScalingServiceClient<Channel>,
}

impl Coordinator {
    /// The command line of a coordinator that listens to one lease-probe at this address.
    pub fn command(
        scratch: &Scratch,
        identity: &str,
        kubeconfig: &str,
        config: &Path,
        lease_probe: SocketAddr,
    ) -> anyhow::Result<Command> {
        let binary = binaries::SCALING_COORDINATOR;
        let command = watchdog::command(scratch, binary, identity, kubeconfig, config)?;
        Ok(command
            .args(["--insecure-plaintext", "--lease-probe"])
            .arg(lease_probe.to_string()))
    }

    /// Starts one and waits until it listens.
    pub async fn start(command: Command, scratch: &Arc<Scratch>) -> anyhow::Result<Self> {
        Self::of(Service::start(command, scratch).await?)
    }

    /// Starts it again, after its process has ended.
    pub async fn again(&self) -> anyhow::Result<Self> {
        Self::of(self.service.again().await?)
    }

    fn of(service: Service) -> anyhow::Result<Self> {
        let channel = Channel::from_shared(format!("http://{}", service.grpc))?.connect_lazy();
        Ok(Self {
            service,
            client: ScalingServiceClient::new(channel),
        })
    }

    /// The state of a shoot.
    pub async fn get(&self, shoot: &str) -> anyhow::Result<scaling::ShootScaling> {
        let request = scaling::GetScalingRequest {
            shoot: shoot.to_owned(),
        };
        let answer = self.client.clone().get_scaling(request).await?.into_inner();
        answer.scaling.context("an answer without a state")
    }

    /// The states of all shoots, of which there are at most 1,000.
    pub async fn list(&self) -> anyhow::Result<Vec<scaling::ShootScaling>> {
        let request = scaling::ListScalingRequest {
            page_size: 1_000,
            ..scaling::ListScalingRequest::default()
        };
        let answer = self.client.clone().list_scaling(request).await?.into_inner();
        anyhow::ensure!(answer.next_page_token.is_empty(), "more than one page");
        Ok(answer.scalings)
    }

    /// Waits until a direction is settled.
    pub async fn until_settled(
        &self,
        shoot: &str,
        direction: scaling::Direction,
        bound: Duration,
    ) -> anyhow::Result<()> {
        wait::until(&format!("{shoot} is settled {direction:?}"), bound, || async {
            let state = self.get(shoot).await?;
            let settled = state.direction() == direction && state.state() == scaling::FlowState::Settled;
            anyhow::ensure!(
                settled,
                "it is {:?} {:?}: {}",
                state.direction(),
                state.state(),
                state.reason
            );
            Ok(Some(()))
        })
        .await
    }
}
