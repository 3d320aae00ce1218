//! The environment of a scenario: the back-end, and the shoots and control planes that the scenario asks for.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::backend::{Backend, HeldServers, Plan};
use crate::page::Account;
use crate::seed::Seed;
use crate::shoot::ShootUnderTest;
use crate::times::Times;

/// The fixture of one scenario.
pub(crate) struct Fixture {
    backend: Arc<Backend>,
    name: String,
    stock: tokio::sync::Mutex<HeldServers>,
    shoots: Mutex<Vec<Arc<ShootUnderTest>>>,
    /// Since when it has what it needs.
    begin: Mutex<Instant>,
}

// === impl Fixture ===

impl Fixture {
    pub(super) fn new(backend: Arc<Backend>, name: &str) -> Self {
        Self {
            backend,
            name: name.to_owned(),
            stock: tokio::sync::Mutex::default(),
            shoots: Mutex::default(),
            begin: Mutex::new(Instant::now()),
        }
    }

    /// Where it is played.
    pub(crate) const fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    /// How fast its time runs.
    pub(crate) fn times(&self) -> Times {
        self.backend.times()
    }

    /// The seed that all scenarios share.
    pub(crate) fn seed(&self) -> Arc<Seed> {
        self.backend.seed()
    }

    /// A shoot on the shared seed that is known to be healthy.
    pub(crate) async fn healthy_shoot(&self, plan: Plan) -> anyhow::Result<Arc<ShootUnderTest>> {
        let shoot = self.shoot(plan).await?;
        shoot.hand_over_healthy().await?;
        Ok(shoot)
    }

    /// A shoot on the shared seed that Gardener is still creating: it is not probed.
    pub(crate) async fn shoot(&self, plan: Plan) -> anyhow::Result<Arc<ShootUnderTest>> {
        self.reserve(1 + usize::from(plan.twin)).await?;
        self.shoot_on(self.seed(), plan).await
    }

    /// Keeps this many API servers for [`Fixture::second_seed`] and [`Fixture::shoot_on`]. Once, before all else.
    pub(crate) async fn reserve(&self, servers: usize) -> anyhow::Result<()> {
        *self.stock.lock().await = self.backend.reserve(servers).await?;
        *self.begin.lock() = Instant::now();
        Ok(())
    }

    /// Another seed with services of its own; takes one of the reserved API servers.
    pub(crate) async fn second_seed(&self) -> anyhow::Result<Arc<Seed>> {
        self.backend.second_seed(&mut *self.stock.lock().await).await
    }

    /// A shoot on some seed, not probed yet; takes one of the reserved API servers, two with a twin.
    pub(crate) async fn shoot_on(&self, seed: Arc<Seed>, plan: Plan) -> anyhow::Result<Arc<ShootUnderTest>> {
        let mut stock = self.stock.lock().await;
        let name = match self.shoots.lock().len() {
            0 => self.name.clone(),
            // The same shoot on its second seed has the same name.
            _ if !Arc::ptr_eq(&seed, &self.seed()) => self.name.clone(),
            count => format!("{}-{count}", self.name),
        };
        let lent = stock.pop().context("no API server reserved")?;
        let site = self.backend.build(&lent, &seed, &name, &plan).await?;
        let mut lent = vec![lent];
        let twin = match plan.twin {
            true => {
                let server = stock.pop().context("no API server reserved")?;
                let name = format!("{name}-twin");
                let twin = self.backend.build(&server, &self.seed(), &name, &plan).await?;
                lent.push(server);
                Some(twin)
            }
            false => None,
        };
        let shoot = ShootUnderTest::new(seed, site, twin, plan, self.times(), lent).await?;
        let shoot = Arc::new(shoot);
        self.shoots.lock().push(shoot.clone());
        Ok(shoot)
    }

    /// The broken rules. In the end all shoots are restored, except one that may still be held down.
    pub(super) fn violations(&self, held_down: Option<&Arc<ShootUnderTest>>) -> Vec<String> {
        let shoots = self.shoots.lock().clone();
        let is_restored =
            |shoot: &Arc<ShootUnderTest>| held_down.is_none_or(|down| !Arc::ptr_eq(down, shoot));
        let of_shoots = shoots
            .iter()
            .flat_map(|shoot| shoot.violations(is_restored(shoot)));
        of_shoots.map(|violation| violation.to_string()).collect()
    }

    /// The cost of the outage, with the watchdog and without it.
    pub(super) async fn account(&self) -> anyhow::Result<Option<Account>> {
        let shoots = self.shoots.lock().clone();
        for shoot in shoots {
            if let Some(account) = shoot.account().await? {
                return Ok(Some(account));
            }
        }
        Ok(None)
    }

    /// How long it has been played, without the wait for others to give API servers back.
    pub(super) fn elapsed(&self) -> Duration {
        self.begin.lock().elapsed()
    }

    /// Nothing is expected for so long that it would have come.
    pub(crate) fn observation_window(&self) -> Duration {
        self.times().observation_window()
    }
}
