//! Healthy shoots and the three programs that protect them.

use std::time::Duration;

use futures::future::try_join_all;
use tonic::transport::Channel;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::simulation::SimulatedShoot;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{self, Service};

/// The shoots. At the end the first one loses its nodes.
const SHOOTS: [&str; 3] = ["one", "two", "three"];

/// Outcomes on which the coordinator scales down.
const LOSSES: [&str; 2] = ["leases_expired", "external_unreachable"];

pub(crate) struct Fleet {
    pub(crate) fixture: SandboxFixture,
    pub(crate) lease_probe: Service,
    pub(crate) coordinator: Service,
    pub(crate) weeder: Service,
}

/// The symptom that a program lacks something: a line of /readyz that begins with `name`, the series of
/// `watchdog_retry_loop_failing` with that loop and `reason`, and a line of the log.
pub(crate) struct Symptom {
    pub(crate) name: &'static str,
    pub(crate) reason: &'static str,
    /// None where the log is what is broken.
    pub(crate) message: Option<&'static str>,
}

pub(crate) const STALLED: Symptom = Symptom {
    name: "timer",
    reason: "stalled",
    message: Some("a timer was late: the process was frozen, or got too little CPU"),
};

// === impl Fleet ===

impl Fleet {
    pub(crate) async fn start(name: &str) -> anyhow::Result<Self> {
        let fixture = SandboxFixture::start(name, &SHOOTS).await?;
        let (lease_probe, coordinator, weeder) =
            tokio::try_join!(fixture.lease_probe(), fixture.coordinator(), fixture.weeder())?;
        let fleet = Self {
            fixture,
            lease_probe,
            coordinator,
            weeder,
        };
        fleet.until_healthy().await?;
        Ok(fleet)
    }

    pub(crate) const fn services(&self) -> [&Service; 3] {
        [&self.lease_probe, &self.coordinator, &self.weeder]
    }

    pub(crate) fn shoots(&self) -> Vec<SimulatedShoot> {
        self.fixture.sandbox.shoots()
    }

    pub(crate) async fn until_healthy(&self) -> anyhow::Result<()> {
        for shoot in self.shoots() {
            self.fixture
                .wait_outcome(&self.lease_probe, shoot.namespace(), Outcome::Healthy)
                .await?;
        }
        Ok(())
    }

    /// A channel that is connected to lease-probe.
    pub(crate) async fn channel_to_lease_probe(&self) -> anyhow::Result<Channel> {
        let channel = self.fixture.setup.channel(&self.lease_probe)?;
        watchdog::verdict(channel.clone(), self.shoots()[0].namespace()).await?;
        Ok(channel)
    }

    /// The shoots close their connections. lease-probe says of each that it cannot open another, because of an error of
    /// its own.
    pub(crate) async fn check_it_blames_itself(
        &self,
        lease_probe: &Channel,
        error: &str,
    ) -> anyhow::Result<()> {
        let cause = format!("this replica cannot open a connection: {error}");
        for shoot in &self.shoots() {
            shoot.api().cut_connections();
        }
        for shoot in &self.shoots() {
            let what = format!("the verdict on {} names the cause", shoot.name());
            wait::until_true(&what, BOUND, || async {
                let verdict = watchdog::verdict(lease_probe.clone(), shoot.namespace()).await?;
                let message = &verdict.message;
                anyhow::ensure!(verdict.outcome() == Outcome::Inconclusive, "{message}");
                Ok(message.contains(&cause))
            })
            .await?;
        }
        Ok(())
    }

    /// No loss was ever reported on the other shoots than the first `lost`, and nothing was written to them.
    pub(crate) fn check_no_false_alarm(&self, lost: usize) -> anyhow::Result<()> {
        for shoot in &self.shoots()[lost..] {
            let writes = self.fixture.writes(shoot);
            anyhow::ensure!(writes.is_empty(), "{}: {writes:?}", shoot.namespace());
            let reported = self.lease_probe.process.log_reader()?.find(|line| {
                let outcome = line.field("outcome")?;
                let of_shoot = line.field("shoot")? == shoot.namespace();
                (of_shoot && LOSSES.contains(&outcome.as_str())).then(|| line.text.to_owned())
            })?;
            anyhow::ensure!(reported.is_none(), "{reported:?}");
        }
        Ok(())
    }

    /// All that for as long.
    pub(crate) async fn no_false_alarm_for(&self, period: Duration) -> anyhow::Result<()> {
        wait::holds("no loss is reported and nothing is written", period, || async {
            self.check_no_false_alarm(0)?;
            Ok(true)
        })
        .await
    }

    /// A loss is still reported and acted on, and so is its end; until here there was no false alarm, nor one since.
    pub(crate) async fn check_still_protects(&self) -> anyhow::Result<()> {
        self.until_healthy().await?;
        self.check_no_false_alarm(0)?;
        self.fixture.cut_off(&self.shoots()[0]);
        self.check_acts_on_loss().await
    }

    /// The loss of the first shoot is acted on, and so is its end. Everything that happened is judged.
    pub(crate) async fn check_acts_on_loss(&self) -> anyhow::Result<()> {
        let shoot = &self.shoots()[0];
        self.fixture.wait_replicas(shoot, 0, BOUND).await?;
        self.fixture.reconnect(shoot);
        self.fixture.check_history().await?;
        self.check_no_false_alarm(1)
    }
}

// === impl Symptom ===

impl Symptom {
    fn series(&self) -> String {
        let (name, reason) = (self.name, self.reason);
        format!("watchdog_retry_loop_failing{{loop=\"{name}\",reason=\"{reason}\"}}")
    }

    fn line(&self) -> String {
        format!("{}: the last try failed: ", self.name)
    }

    /// Waits until programs show it everywhere.
    pub(crate) async fn until_shown(&self, services: &[&Service]) -> anyhow::Result<()> {
        try_join_all(services.iter().map(|service| self.until_shown_by(service))).await?;
        Ok(())
    }

    async fn until_shown_by(&self, service: &Service) -> anyhow::Result<()> {
        if let Some(message) = self.message {
            service.process.wait_for_text(message, BOUND).await?;
        }
        let line = self.line();
        let what = format!("{} shows {line:?}", service.process.name());
        wait::until_true(&what, BOUND, || async {
            let (_, body) = service.admin_get("/readyz").await?;
            anyhow::ensure!(body.contains(&line), "{body}");
            Ok(service.metric(&self.series()).await? == Some(1.0))
        })
        .await
    }

    /// Waits until programs are ready and show it no more.
    pub(crate) async fn until_gone(&self, services: &[&Service]) -> anyhow::Result<()> {
        try_join_all(services.iter().map(|service| self.until_gone_from(service))).await?;
        Ok(())
    }

    async fn until_gone_from(&self, service: &Service) -> anyhow::Result<()> {
        let what = format!("{} is well again", service.process.name());
        wait::until_true(&what, BOUND, || async {
            let (_, body) = service.admin_get("/readyz").await?;
            anyhow::ensure!(
                body.starts_with("ready\n") && !body.contains(&self.line()),
                "{body}"
            );
            Ok(service.metric(&self.series()).await?.is_none())
        })
        .await
    }
}
