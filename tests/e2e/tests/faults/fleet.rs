//! Healthy shoots and the three programs that protect them.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::try_join_all;
use parking_lot::Mutex;
use tonic::transport::Channel;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::fault_proxy::FaultProxy;
use watchdog_test_support::log::LogReader;
use watchdog_test_support::real::{FixtureOptions, RealFixture, RealShoot};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{self, Service};

/// The shoots. After each fault the first one loses its nodes.
const SHOOTS: [&str; 2] = ["one", "two"];

/// Outcomes on which the coordinator scales down.
const LOSSES: [&str; 2] = ["leases_expired", "external_unreachable"];

/// Longer than a Lease is valid of which no renewal is seen any more.
pub(crate) const EXPIRY: Duration = Duration::from_secs(14);

pub(crate) struct Fleet {
    pub(crate) fixture: RealFixture,
    /// Between the programs and the seed.
    pub(crate) to_seed: FaultProxy,
    pub(crate) lease_probe: Service,
    pub(crate) coordinator: Service,
    pub(crate) weeder: Service,
    record: Mutex<Record>,
}

/// The record from the beginning of a fault on.
#[derive(Default)]
struct Record {
    /// The log of lease-probe from then on.
    log: Option<LogReader>,
    /// The number of writes to each shoot before.
    writes: BTreeMap<String, usize>,
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
        let fixture = RealFixture::start(FixtureOptions::new(name, &SHOOTS)).await?;
        let to_seed = fixture.proxy_to_seed().await?;
        let [lease_probe, coordinator, weeder] = fixture.start_all_behind(Some(&to_seed)).await?;
        Ok(Self {
            fixture,
            to_seed,
            lease_probe,
            coordinator,
            weeder,
            record: Mutex::default(),
        })
    }

    /// Begins a new record once every shoot is healthy. What was before is no false alarm.
    pub(crate) async fn begin(&self) -> anyhow::Result<()> {
        self.until_healthy().await?;
        let mut log = self.lease_probe.process.log_reader()?;
        log.find(|_| None::<()>)?;
        let mut writes = BTreeMap::new();
        for shoot in &self.fixture.shoots {
            writes.insert(shoot.namespace.clone(), self.all_writes(shoot)?.len());
        }
        let log = Some(log);
        *self.record.lock() = Record { log, writes };
        Ok(())
    }

    pub(crate) const fn services(&self) -> [&Service; 3] {
        [&self.lease_probe, &self.coordinator, &self.weeder]
    }

    /// The one that loses its nodes.
    pub(crate) fn shoot(&self) -> &RealShoot {
        &self.fixture.shoots[0]
    }

    async fn until_healthy(&self) -> anyhow::Result<()> {
        let setup = &self.fixture.setup;
        for shoot in &self.fixture.shoots {
            setup
                .wait_outcome(&self.lease_probe, &shoot.namespace, Outcome::Healthy)
                .await?;
        }
        Ok(())
    }

    /// A channel that is connected to lease-probe.
    pub(crate) async fn channel_to_lease_probe(&self) -> anyhow::Result<Channel> {
        let channel = self.fixture.setup.channel(&self.lease_probe)?;
        watchdog::verdict(channel.clone(), &self.shoot().namespace).await?;
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
        for shoot in &self.fixture.shoots {
            shoot.proxy.cut_connections();
        }
        for shoot in &self.fixture.shoots {
            let what = format!("the verdict on {} names the cause", shoot.namespace);
            wait::until_true(&what, BOUND, || async {
                let verdict = watchdog::verdict(lease_probe.clone(), &shoot.namespace).await?;
                let message = &verdict.message;
                anyhow::ensure!(verdict.outcome() == Outcome::Inconclusive, "{message}");
                Ok(message.contains(&cause))
            })
            .await?;
        }
        Ok(())
    }

    fn all_writes(&self, shoot: &RealShoot) -> anyhow::Result<Vec<String>> {
        Ok(self.fixture.history()?.writes_into(&shoot.namespace))
    }

    /// The writes to a shoot on record.
    pub(crate) fn writes(&self, shoot: &RealShoot) -> anyhow::Result<Vec<String>> {
        let before = self.record.lock().writes.get(&shoot.namespace).copied();
        Ok(self.all_writes(shoot)?.split_off(before.unwrap_or_default()))
    }

    /// No loss was reported on the other shoots than the first `lost`, and nothing was written to them.
    fn check_no_false_alarm(&self, lost: usize) -> anyhow::Result<()> {
        let others = &self.fixture.shoots[lost..];
        for shoot in others {
            let writes = self.writes(shoot)?;
            anyhow::ensure!(writes.is_empty(), "{}: {writes:?}", shoot.namespace);
        }
        let mut record = self.record.lock();
        let Some(log) = &mut record.log else {
            anyhow::bail!("no record has begun");
        };
        let reported = log.find(|line| {
            let shoot = line.field("shoot")?;
            let is_other = others.iter().any(|other| other.namespace == shoot);
            let is_loss = LOSSES.contains(&line.field("outcome")?.as_str());
            (is_other && is_loss).then(|| line.text.to_owned())
        })?;
        anyhow::ensure!(reported.is_none(), "{reported:?}");
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
        self.shoot().cut_off().await;
        self.check_acts_on_loss().await
    }

    /// The loss of the first shoot is acted on, and so is its end. Everything that happened is judged.
    pub(crate) async fn check_acts_on_loss(&self) -> anyhow::Result<()> {
        let shoot = self.shoot();
        shoot.wait_down("the loss is acted on").await?;
        shoot.reconnect();
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
