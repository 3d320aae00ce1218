//! A coordinator that listens to a [`FakeProbe`], as a process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::scaling::v1::scaling_service_client::ScalingServiceClient;

pub use crate::fake_probe::{FakeProbe, Outcome};

use crate::binaries;
use crate::process::ChildProcess;
use crate::scratch::Scratch;
use crate::wait::{self, BOUND};
use crate::watchdog::{self, LISTENING};

/// A running coordinator that listens to a [`FakeProbe`]. Killed when dropped.
#[derive(Debug)]
pub struct Coordinator {
    pub process: ChildProcess,
    /// Its API.
    pub client: ScalingServiceClient<tonic::transport::Channel>,
}

impl Coordinator {
    /// Starts one and waits until it listens.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start(
        scratch: &Arc<Scratch>,
        config: &Path,
        kubeconfig: &str,
        probe: &FakeProbe,
    ) -> anyhow::Result<Self> {
        let name = "coordinator-0";
        let process = watchdog::command(scratch, binaries::SCALING_COORDINATOR, name, kubeconfig, config)?
            .args(["--insecure-plaintext", "--lease-probe"])
            .arg(probe.address().to_string())
            .spawn(scratch)?;
        let grpc = process.wait_for_field(LISTENING, "grpc_addr", BOUND).await?;
        let channel = tonic::transport::Channel::from_shared(format!("http://{grpc}"))?.connect_lazy();
        Ok(Self {
            process,
            client: ScalingServiceClient::new(channel),
        })
    }

    /// The state of a shoot.
    ///
    /// # Errors
    /// When it does not answer, or does not know the shoot.
    pub async fn get(&self, shoot: &str) -> anyhow::Result<scaling::ShootScaling> {
        let request = scaling::GetScalingRequest {
            shoot: shoot.to_owned(),
        };
        let answer = self.client.clone().get_scaling(request).await?.into_inner();
        answer.scaling.context("an answer without a state")
    }

    /// Waits until a direction is settled.
    ///
    /// # Errors
    /// When it is not within the bound.
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
