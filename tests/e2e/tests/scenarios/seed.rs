//! A seed with the three services on it.

use std::sync::Arc;

use kube::Client;
use tokio_util::task::AbortOnDropHandle;
use watchdog_proto::probe::v1 as probe;

use crate::times::Times;
use watchdog_test_support::fault_proxy::FaultProxy;
use watchdog_test_support::fixtures;
use watchdog_test_support::history::timeline::Timeline;
use watchdog_test_support::real::{FixtureOptions, KubeApiserver, RealControlPlane, RealFixture};
use watchdog_test_support::watchdog::Service;

/// A seed that is watched over. The services end with it.
pub(crate) struct Seed {
    services: [Service; 3],
    // Held for its end.
    _verdicts: AbortOnDropHandle<()>,
    pub(crate) fixture: RealFixture,
}

// === impl Seed ===

impl Seed {
    /// Starts the services on a seed, perhaps behind a proxy, and waits until they are ready.
    pub(crate) async fn start(
        name: &str,
        plane: Arc<RealControlPlane>,
        server: Arc<KubeApiserver>,
        proxy: Option<&FaultProxy>,
        times: &Times,
    ) -> anyhow::Result<Self> {
        let options = FixtureOptions::new(name, &[]).prober(&fixtures::prober(&times.prober_head(), "500ms"));
        let fixture = RealFixture::start_on(plane, server, &options).await?;
        let services = fixture.start_all_behind(proxy).await?;
        let [lease_probe, ..] = &services;
        let verdicts = fixture.setup.channel(lease_probe)?;
        Ok(Self {
            _verdicts: fixture.timeline.record_verdicts(verdicts).await?,
            services,
            fixture,
        })
    }

    /// An administrator's client.
    pub(crate) fn client(&self) -> Client {
        self.fixture.seed.client()
    }

    /// The record of all that happens.
    pub(crate) const fn timeline(&self) -> &Arc<Timeline> {
        &self.fixture.timeline
    }

    /// All services.
    pub(crate) const fn services(&self) -> &[Service; 3] {
        &self.services
    }

    /// The verdict on a shoot.
    pub(crate) async fn verdict(&self, shoot: &str) -> anyhow::Result<probe::Verdict> {
        let [lease_probe, ..] = &self.services;
        self.fixture.setup.verdict(lease_probe, shoot).await
    }
}
