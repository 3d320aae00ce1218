//! A seed with the three services on it, and its timeline.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kube::Client;
use tokio_util::task::AbortOnDropHandle;
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::probe::v1::watch_verdicts_response::Event;

use super::times::Times;
use watchdog_test_support::fixtures;
use watchdog_test_support::history::timeline::{Fact, Recorder, Timeline};
use watchdog_test_support::restartable_service::RestartableService;
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::watchdog::{self, Setup};

/// After a broken stream.
const RETRY: Duration = Duration::from_millis(100);

/// A request to a service.
const REQUEST_BOUND: Duration = Duration::from_secs(30);

/// A seed that is watched over. The services end with it.
pub struct Seed {
    /// An administrator's client.
    pub client: Client,
    pub timeline: Arc<Timeline>,
    /// Starts services, and calls them.
    pub setup: Arc<Setup>,
    pub lease_probe: Arc<RestartableService>,
    /// scaling-coordinator.
    pub coordinator: Arc<RestartableService>,
    pub weeder: Arc<RestartableService>,
    // Held for their end.
    _verdicts: AbortOnDropHandle<()>,
    _recorder: Recorder,
}

// === impl Seed ===

impl Seed {
    /// Starts the services on a seed and waits until they are ready. `kubeconfig` gives one for each identity.
    ///
    /// # Errors
    /// When one does not come up.
    pub async fn start(
        scratch: &Arc<Scratch>,
        client: Client,
        kubeconfig: impl Fn(&str) -> anyhow::Result<String>,
        times: &Times,
    ) -> anyhow::Result<Self> {
        let (timeline, recorder) = Timeline::start(&client).await?;
        let prober = fixtures::prober(&times.prober_head(), "500ms");
        let setup = Arc::new(Setup::new(scratch, &prober, &fixtures::weeder("2m"))?);
        let [probe, coordinator, weeder] =
            ["lease-probe-0", "scaling-coordinator-0", "weeder-0"].map(kubeconfig);
        let (probe, coordinator, weeder) = (&probe?, &coordinator?, &weeder?);
        let (lease_probe, coordinator, weeder) = tokio::try_join!(
            setup.lease_probe("lease-probe-0", probe),
            setup.coordinator("scaling-coordinator-0", coordinator, &[]),
            setup.weeder("weeder-0", weeder),
        )?;
        for service in [&lease_probe, &coordinator, &weeder] {
            service.wait_ready().await?;
        }
        let lease_probe = RestartableService::new(lease_probe);
        let verdicts = listen(setup.clone(), lease_probe.clone(), timeline.clone());
        Ok(Self {
            client,
            timeline,
            setup,
            lease_probe,
            coordinator: RestartableService::new(coordinator),
            weeder: RestartableService::new(weeder),
            _verdicts: AbortOnDropHandle::new(tokio::spawn(verdicts)),
            _recorder: recorder,
        })
    }

    /// All services.
    #[must_use]
    pub fn services(&self) -> [&Arc<RestartableService>; 3] {
        [&self.lease_probe, &self.coordinator, &self.weeder]
    }

    /// The verdict on a shoot.
    ///
    /// # Errors
    /// When lease-probe does not answer or does not know the shoot.
    pub async fn verdict(&self, shoot: &str) -> anyhow::Result<probe::Verdict> {
        let asked = watchdog::verdict(self.lease_probe.channel(&self.setup)?, shoot);
        tokio::time::timeout(REQUEST_BOUND, asked)
            .await
            .context("lease-probe does not answer")?
    }
}

/// Writes every verdict into the timeline.
async fn listen(setup: Arc<Setup>, lease_probe: Arc<RestartableService>, timeline: Arc<Timeline>) {
    loop {
        // Broken streams are opened again; what was missed is in the snapshot.
        let _ = stream(&setup, &lease_probe, &timeline).await;
        tokio::time::sleep(RETRY).await;
    }
}

async fn stream(setup: &Setup, lease_probe: &RestartableService, timeline: &Timeline) -> anyhow::Result<()> {
    let mut client = LeaseProbeServiceClient::new(lease_probe.channel(setup)?);
    let request = probe::WatchVerdictsRequest::default();
    let mut stream = client.watch_verdicts(request).await?.into_inner();
    while let Some(message) = stream.message().await? {
        if let Some(Event::Upsert(verdict)) = message.event {
            timeline.add(&verdict.shoot, Fact::Verdict(verdict.outcome()));
        }
    }
    Ok(())
}
