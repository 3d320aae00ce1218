//! A seed with the three services on it, and its timeline.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kube::Client;
use tokio_util::task::AbortOnDropHandle;
use watchdog_proto::probe::v1 as probe;

use crate::times::Times;
use watchdog_test_support::fixtures;
use watchdog_test_support::history::timeline::{Recorder, Timeline};
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::watchdog::{self, Service, Setup};

/// A request to a service.
const REQUEST_BOUND: Duration = Duration::from_secs(30);

/// A seed that is watched over. The services end with it.
pub(crate) struct Seed {
    /// An administrator's client.
    pub(crate) client: Client,
    pub(crate) timeline: Arc<Timeline>,
    /// Calls the services.
    setup: Setup,
    lease_probe: Service,
    coordinator: Service,
    weeder: Service,
    // Held for their end.
    _verdicts: AbortOnDropHandle<()>,
    _recorder: Recorder,
}

// === impl Seed ===

impl Seed {
    /// Starts the services on a seed and waits until they are ready.
    pub(crate) async fn start(
        scratch: &Arc<Scratch>,
        client: Client,
        kubeconfig: &str,
        times: &Times,
    ) -> anyhow::Result<Self> {
        let (timeline, recorder) = Timeline::start(&client).await?;
        let prober = fixtures::prober(&times.prober_head(), "500ms");
        let setup = Setup::new(scratch, &prober, &fixtures::weeder("2m"))?;
        let (lease_probe, coordinator, weeder) = tokio::try_join!(
            setup.lease_probe("lease-probe-0", kubeconfig),
            setup.coordinator("scaling-coordinator-0", kubeconfig, &[]),
            setup.weeder("weeder-0", kubeconfig),
        )?;
        for service in [&lease_probe, &coordinator, &weeder] {
            service.wait_ready().await?;
        }
        let verdicts = timeline.record_verdicts(setup.channel(&lease_probe)?).await?;
        Ok(Self {
            client,
            timeline,
            setup,
            lease_probe,
            coordinator,
            weeder,
            _verdicts: verdicts,
            _recorder: recorder,
        })
    }

    /// All services.
    pub(crate) fn services(&self) -> [&Service; 3] {
        [&self.lease_probe, &self.coordinator, &self.weeder]
    }

    /// The verdict on a shoot.
    pub(crate) async fn verdict(&self, shoot: &str) -> anyhow::Result<probe::Verdict> {
        let asked = watchdog::verdict(self.setup.channel(&self.lease_probe)?, shoot);
        tokio::time::timeout(REQUEST_BOUND, asked)
            .await
            .context("lease-probe does not answer")?
    }
}
