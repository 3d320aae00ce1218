//! A shoot of a scenario: what the scenario does to it, and what it waits for.

mod actions;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use watchdog_proto::probe::v1::{Outcome, SkipReason, Verdict};

use crate::THRESHOLD;
use crate::backend::{HeldServers, Plan};
use crate::page::{Account, OutageCost};
use crate::seed::Seed;
use crate::times::Times;
use watchdog_test_support::fault_proxy::FaultProxy;
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::history::Violation;
use watchdog_test_support::history::invariants::{Expectation, NodeTimes, violations};
use watchdog_test_support::history::timeline::{Dependant, Fact};
use watchdog_test_support::real::{COUNTS, RealShoot, node_readiness};
use watchdog_test_support::wait;

/// A shoot that is watched over, perhaps with a twin that is not.
pub(crate) struct ShootUnderTest {
    seed: Arc<Seed>,
    site: RealShoot,
    twin: Option<Arc<RealShoot>>,
    plan: Plan,
    times: Times,
    state: Mutex<ScenarioState>,
    // Last, so that nobody borrows them while they are in use here.
    _lent: HeldServers,
}

#[derive(Default)]
struct ScenarioState {
    /// When the nodes were reconnected.
    healed: Option<Instant>,
    /// From then until everything was as before.
    restored: Option<Duration>,
    /// The same of the twin, when it is known.
    twin: Option<AbortOnDropHandle<Option<Duration>>>,
}

/// True if all nodes are there and ready, and all machines run.
async fn is_whole(site: &RealShoot, nodes: usize) -> anyhow::Result<bool> {
    let ready = node_readiness(&site.server.client()).await?;
    let whole = ready.len() >= nodes && ready.values().all(|status| status == "True");
    Ok(whole && site.machines.all_run().await?)
}

fn outage_cost(site: &RealShoot, restored: Option<Duration>) -> OutageCost {
    OutageCost {
        nodes_unknown: site.nodes.ever_unknown().len(),
        machines_replaced: site.machines.replaced.load(Ordering::SeqCst),
        restored,
    }
}

// === impl ShootUnderTest ===

impl ShootUnderTest {
    /// Its Cluster is as of a creation that has not come to its end: it is not probed yet.
    pub(super) async fn new(
        seed: Arc<Seed>,
        site: RealShoot,
        twin: Option<RealShoot>,
        plan: Plan,
        times: Times,
        lent: HeldServers,
    ) -> anyhow::Result<Self> {
        let kubeconfig = match plan.proxy {
            true => site.proxied_kubeconfig()?,
            false => site.probe_kubeconfig()?,
        };
        let grace = format!("{}ms", times.grace.mul_f64(plan.grace).as_millis());
        let mut object = fixtures::shoot(&grace);
        if let Some(last) = object.pointer_mut("/status/lastOperation") {
            *last = json!({"type": "Create", "state": "Processing"});
        }
        site.create_cluster(&site.namespace, &kubeconfig, object).await?;
        let shoot = Self {
            site,
            seed,
            twin: twin.map(Arc::new),
            plan,
            times,
            state: Mutex::default(),
            _lent: lent,
        };
        shoot.wait_counts("the control plane runs", &COUNTS).await?;
        Ok(shoot)
    }

    /// Its namespace on the seed, which is also the name of its Cluster.
    pub(crate) fn namespace(&self) -> &str {
        &self.site.namespace
    }

    /// An administrator's client for it.
    pub(crate) fn api(&self) -> Client {
        self.site.server.client()
    }

    /// The proxy in front of its API server, if the plan says so.
    pub(crate) fn proxy(&self) -> anyhow::Result<&FaultProxy> {
        anyhow::ensure!(self.plan.proxy, "no proxy was planned");
        Ok(&self.site.proxy)
    }

    /// Its objects of one kind on the seed.
    pub(crate) fn on_seed<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.seed.client(), self.namespace())
    }

    /// The seed it is on.
    pub(crate) const fn seed(&self) -> &Arc<Seed> {
        &self.seed
    }

    // --- waiting

    /// Waits for a verdict with this outcome.
    pub(crate) async fn wait_outcome(&self, outcome: Outcome) -> anyhow::Result<Verdict> {
        self.wait_verdict(&format!("it is {outcome:?}"), |verdict| {
            verdict.outcome() == outcome
        })
        .await
    }

    /// Waits until it is not probed, and for this reason.
    pub(crate) async fn wait_skipped(&self, reason: SkipReason) -> anyhow::Result<()> {
        let verdict = self.wait_outcome(Outcome::Skipped).await?;
        anyhow::ensure!(verdict.skip_reason() == reason, "{}", verdict.message);
        Ok(())
    }

    /// Waits for a verdict of which `good` holds.
    pub(crate) async fn wait_verdict(
        &self,
        what: &str,
        good: impl Fn(&Verdict) -> bool,
    ) -> anyhow::Result<Verdict> {
        let what = format!("the verdict on {}: {what}", self.namespace());
        let (good, bound) = (&good, self.times.bound);
        wait::until(&what, bound, || async {
            let verdict = self.seed.verdict(self.namespace()).await?;
            anyhow::ensure!(
                good(&verdict),
                "it is {:?}: {}",
                verdict.outcome(),
                verdict.message
            );
            Ok(Some(verdict))
        })
        .await
    }

    /// Waits until all dependants want nothing and have nothing.
    pub(crate) async fn wait_down(&self) -> anyhow::Result<()> {
        self.wait_counts("all dependants are down", &COUNTS.map(|(name, _)| (name, 0)))
            .await
    }

    /// Waits until all dependants are at their counts, nothing is marked as held down, and all nodes are ready.
    pub(crate) async fn wait_restored(&self) -> anyhow::Result<()> {
        self.site.wait_restored().await?;
        let what = format!("the nodes of {} are ready", self.namespace());
        wait::until_true(&what, self.times.bound, || is_whole(&self.site, self.plan.nodes)).await?;
        let mut state = self.state.lock();
        if let Some(healed) = state.healed {
            state.restored.get_or_insert(healed.elapsed());
        }
        Ok(())
    }

    /// Waits until dependants want and have this many replicas.
    pub(crate) async fn wait_counts(&self, what: &str, counts: &[(&str, i32)]) -> anyhow::Result<()> {
        let good = |dependant: &Dependant| {
            let mut counts = counts.iter();
            counts
                .find(|(name, _)| *name == dependant.name)
                .is_none_or(|(_, count)| (dependant.wanted, dependant.ready) == (*count, *count))
        };
        self.wait_dependants(what, good).await
    }

    /// Waits until something holds of each of the dependants.
    pub(crate) async fn wait_dependants(
        &self,
        what: &str,
        good: impl Fn(&Dependant) -> bool,
    ) -> anyhow::Result<()> {
        let timeline = self.seed.timeline();
        timeline
            .until_dependants(what, &[self.namespace()], self.times.bound, good)
            .await
    }

    /// A dependant as the seed has it.
    pub(crate) fn dependant(&self, name: &str) -> Dependant {
        let found = self.seed.timeline().dependant(self.namespace(), name);
        found.unwrap_or_default()
    }

    /// Wanted replicas of each dependant and the watchdog's annotations: the recorded count, and whether it is held
    /// down.
    pub(super) fn protection(&self) -> [(i32, Option<String>, bool); 3] {
        [KCM, MCM, CA].map(|name| {
            let found = self.dependant(name);
            (found.wanted, found.recorded, found.held)
        })
    }

    /// Watches for so long that nothing is scaled and nothing annotated.
    pub(crate) async fn stays_untouched(&self, period: Duration) -> anyhow::Result<()> {
        let before = self.protection();
        let what = format!("nothing is done to {}", self.namespace());
        wait::holds(&what, period, || async {
            let now = self.protection();
            anyhow::ensure!(now == before, "{before:?} turned into {now:?}");
            Ok(true)
        })
        .await
    }

    /// Watches for so long that no node is Unknown.
    pub(crate) async fn no_node_turns_unknown(&self, period: Duration) -> anyhow::Result<()> {
        wait::holds("no node turns Unknown", period, || async {
            let unknown = self.site.nodes.ever_unknown();
            anyhow::ensure!(unknown.is_empty(), "{unknown:?} did");
            Ok(true)
        })
        .await
    }

    // --- at the end

    /// The errors in its history, in the end of which it is restored or not.
    pub(super) fn violations(&self, restored: bool) -> Vec<Violation> {
        let expected = Expectation {
            counts: COUNTS.to_vec(),
            nodes: Some(NodeTimes {
                grace: self.times.grace.mul_f64(self.plan.grace),
                renew_interval: self.times.renew_interval(),
                threshold: THRESHOLD,
            }),
            restored,
            verdicts: true,
        };
        violations(
            self.namespace(),
            &self.seed.timeline().of(self.namespace()),
            &expected,
        )
    }

    /// The cost of the outage, and its cost for the twin. None where nobody counted.
    pub(super) async fn account(&self) -> anyhow::Result<Option<Account>> {
        if !self.plan.counted {
            return Ok(None);
        }
        let (waiting, restored) = {
            let mut state = self.state.lock();
            (state.twin.take(), state.restored)
        };
        let twin_restored = match waiting {
            Some(waiting) => waiting.await?,
            None => None,
        };
        Ok(Some(Account {
            protected: outage_cost(&self.site, restored),
            unprotected: self.twin.as_ref().map(|twin| outage_cost(twin, twin_restored)),
        }))
    }

    fn fact(&self, fact: Fact) {
        self.seed.timeline().add(self.namespace(), fact);
    }
}
