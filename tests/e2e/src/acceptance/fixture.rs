//! The environment of a scenario: the back-end, and the shoots and control planes that the scenario asks for.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::PROJECT;
use super::accounting::Account;
use super::backend::{Backend, HeldServers, Plan};
use super::control_plane::{ControlPlane, ControlPlanes, at_once};
use super::seed::Seed;
use super::shoot::ShootUnderTest;
use super::times::Times;

/// The fixture of one scenario.
pub struct Fixture {
    backend: Arc<Backend>,
    control_planes: Arc<ControlPlanes>,
    name: String,
    stock: tokio::sync::Mutex<HeldServers>,
    shoots: Mutex<Vec<Arc<ShootUnderTest>>>,
    /// Since when it has what it needs.
    begin: Mutex<Instant>,
}

// === impl Fixture ===

impl Fixture {
    pub(super) fn new(backend: Arc<Backend>, control_planes: Arc<ControlPlanes>, name: &str) -> Self {
        Self {
            backend,
            control_planes,
            name: name.to_owned(),
            stock: tokio::sync::Mutex::default(),
            shoots: Mutex::default(),
            begin: Mutex::new(Instant::now()),
        }
    }

    /// Where it is played.
    #[must_use]
    pub const fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    /// How fast its time runs.
    #[must_use]
    pub fn times(&self) -> Times {
        self.backend.times()
    }

    /// The scenario's name: unique, fit for namespaces.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The seed that all scenarios share.
    #[must_use]
    pub fn seed(&self) -> Arc<Seed> {
        self.backend.seed()
    }

    /// A shoot on the shared seed that is known to be healthy.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn healthy_shoot(&self, plan: Plan) -> anyhow::Result<Arc<ShootUnderTest>> {
        let shoot = self.shoot(plan).await?;
        shoot.hand_over_healthy().await?;
        Ok(shoot)
    }

    /// A shoot on the shared seed that Gardener is still creating: it is not probed.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn shoot(&self, plan: Plan) -> anyhow::Result<Arc<ShootUnderTest>> {
        self.reserve(1 + usize::from(plan.twin)).await?;
        self.shoot_on(self.seed(), plan).await
    }

    /// Keeps this many API servers for [`Fixture::second_seed`] and [`Fixture::shoot_on`]. Once, before all else.
    ///
    /// # Errors
    /// When there are fewer.
    pub async fn reserve(&self, servers: usize) -> anyhow::Result<()> {
        *self.stock.lock().await = self.backend.reserve(servers).await?;
        *self.begin.lock() = Instant::now();
        Ok(())
    }

    /// Another seed with services of its own; takes one of the reserved API servers.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn second_seed(&self) -> anyhow::Result<Arc<Seed>> {
        self.backend.second_seed(&mut *self.stock.lock().await).await
    }

    /// A shoot on some seed, not probed yet; takes one of the reserved API servers, two with a twin.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn shoot_on(&self, seed: Arc<Seed>, plan: Plan) -> anyhow::Result<Arc<ShootUnderTest>> {
        let mut stock = self.stock.lock().await;
        let name = match self.shoots.lock().len() {
            0 => self.name.clone(),
            // The same shoot on its second seed has the same name.
            _ if !Arc::ptr_eq(&seed, &self.seed()) => self.name.clone(),
            count => format!("{}-{count}", self.name),
        };
        let site = self.backend.build(&mut stock, Some(&seed), &name, &plan).await?;
        let twin = match plan.twin {
            true => {
                let name = format!("{name}-twin");
                Some(self.backend.build(&mut stock, None, &name, &plan).await?)
            }
            false => None,
        };
        let shoot = Arc::new(ShootUnderTest::new(seed, site, twin, plan, self.times()).await?);
        self.shoots.lock().push(shoot.clone());
        Ok(shoot)
    }

    /// The broken rules. In the end all shoots are restored, except one that may still be held down.
    pub(super) async fn violations(&self, held_down: Option<&Arc<ShootUnderTest>>) -> Vec<String> {
        let shoots = self.shoots.lock().clone();
        let is_restored =
            |shoot: &Arc<ShootUnderTest>| held_down.is_none_or(|down| !Arc::ptr_eq(down, shoot));
        let of_shoots = shoots
            .iter()
            .flat_map(|shoot| shoot.violations(is_restored(shoot)));
        let mut wrong: Vec<_> = of_shoots.map(|violation| violation.to_string()).collect();
        wrong.extend(self.control_planes.wrong_deletions(&self.plane_prefix()).await);
        wrong
    }

    /// A control plane for the weeder, with this many members of etcd, all of it ready.
    ///
    /// # Errors
    /// When the seed does not answer.
    pub async fn control_plane(&self, members: usize) -> anyhow::Result<Arc<ControlPlane>> {
        self.control_planes
            .add(&format!("{}0", self.plane_prefix()), members)
            .await
    }

    /// Several control planes.
    ///
    /// # Errors
    /// When the seed does not answer.
    pub async fn many_control_planes(&self, count: usize) -> anyhow::Result<Vec<Arc<ControlPlane>>> {
        let names: Vec<_> = (0..count)
            .map(|index| format!("{}{index}", self.plane_prefix()))
            .collect();
        at_once(names.iter().map(|name| self.control_planes.add(name, 1))).await
    }

    fn plane_prefix(&self) -> String {
        format!("shoot--{PROJECT}--{}-plane-", self.name)
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
    #[must_use]
    pub fn observation_window(&self) -> Duration {
        self.times().observation_window()
    }
}
