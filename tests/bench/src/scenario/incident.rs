//! The whole job on a real kube-apiserver: many shoots lose all their nodes at the same instant, Gardener's own
//! configuration, lease-probe and scaling-coordinator as they are released.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::fault_proxy::FaultProxy;
use watchdog_test_support::fixtures::KCM;
use watchdog_test_support::wait;

use super::INTERVAL;
use super::healthy::{self, Start};
use super::loss::crossing;
use crate::fleet::ShootReport;
use crate::fleet::admin::ScaleChange;
use crate::rig::{Rig, RigOptions};
use crate::usage::{Usage, load_average};
use crate::{Spread, round};

/// The configuration that Gardener deploys.
const GARDENER: &str = include_str!("../../../../services/common/api/tests/fixtures/prober-gardener.yaml");

/// Nodes of each shoot.
const NODES: usize = 20;

/// Dependants of a shoot.
const DEPENDANTS: usize = 3;

/// The reference needs up to 140 s for 500 shoots.
const BOUND: Duration = Duration::from_secs(300);

/// A lease is renewed three times in it: every one has been seen to change.
const SETTLE: Duration = Duration::from_secs(45);

/// The parameters of the measurement.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct IncidentOptions {
    /// Shoots
    #[arg(long, default_value_t = 100)]
    pub shoots: usize,
    /// While all shoots are lost, cuts all of scaling-coordinator's connections to the seed every 1 to 5 s, the watches
    /// and the writes under way with them
    #[arg(long)]
    pub cut_connections: bool,
}

/// The result. Spreads are over the shoots.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IncidentFigures {
    pub scenario: &'static str,
    pub shoots: usize,
    pub connections_cut: u32,
    pub nodes: usize,
    pub load_average_before: f64,
    pub load_average_after: f64,
    pub start: Start,
    pub crossing_to_verdict: Option<Spread>,
    pub last_renewal_to_verdict: Option<Spread>,
    pub crossing_to_first_scale_write: Option<Spread>,
    pub last_renewal_to_first_scale_write: Option<Spread>,
    pub last_renewal_to_kcm_wanted_0: Option<Spread>,
    pub last_renewal_to_kcm_gone: Option<Spread>,
    pub recovery_to_kcm_ready: Option<Spread>,
    pub recovery_to_all_ready: Option<Spread>,
    pub coordinator_cpu_seconds: f64,
    pub lease_probe_cpu_seconds: f64,
}

/// Measures.
///
/// # Errors
/// When something does not come up, or a shoot is not scaled down or not restored.
pub async fn run(options: IncidentOptions) -> anyhow::Result<IncidentFigures> {
    let load_average_before = load_average();
    let rig = Rig::start(RigOptions {
        dependants: true,
        real: true,
        prober: GARDENER.to_owned(),
        ..RigOptions::new(options.shoots, NODES, INTERVAL)
    })
    .await?;
    let wanted = options.shoots * DEPENDANTS;
    until_ready(&rig, 0, 1, wanted, "the dependants run").await?;
    let (services, subscriber, start) = healthy::start(&rig, 1).await?;
    let proxy = proxy_of(&rig.seed.kubeconfig).await?;
    let kubeconfig = match options.cut_connections {
        true => proxy.kubeconfig(&rig.seed.kubeconfig),
        false => rig.seed.kubeconfig.clone(),
    };
    let coordinator = rig
        .setup
        .coordinator("scaling-coordinator-0", &kubeconfig, &[])
        .await?;
    coordinator.wait_ready().await?;
    tokio::time::sleep(SETTLE).await;

    let lost_at = rig.admin.post("/lose").await?;
    let down = until_ready(&rig, lost_at, 0, wanted, "all dependants are at 0");
    let mut connections_cut = 0;
    tokio::select! {
        down = down => down?,
        () = cut_again_and_again(&proxy, &mut connections_cut), if options.cut_connections => {}
    }
    subscriber
        .until(options.shoots, Outcome::LeasesExpired, BOUND)
        .await?;
    let latest = subscriber.latest();
    let shoots = rig.admin.shoots().await?;
    let down = Scales::since(&rig.admin.scales().await?, lost_at);
    let healed_at = rig.admin.post("/recover").await?;
    until_ready(&rig, healed_at, 1, wanted, "all dependants are back").await?;
    let up = Scales::since(&rig.admin.scales().await?, healed_at);

    let last = |shoot: &ShootReport| shoot.renewed.last().copied();
    let spread =
        |moment: &dyn Fn(&ShootReport) -> Option<i64>| Spread::of_micros(shoots.iter().filter_map(moment));
    let verdict = |shoot: &ShootReport| Some(latest.get(&shoot.name)?.at);
    let kcm =
        |scales: &Scales, shoot: &ShootReport, replicas, ready| scales.at(&shoot.name, KCM, replicas, ready);
    Ok(IncidentFigures {
        scenario: "incident",
        shoots: options.shoots,
        connections_cut,
        nodes: NODES,
        load_average_before,
        load_average_after: load_average(),
        start,
        crossing_to_verdict: spread(&|s| Some(verdict(s)? - crossing(s)?)),
        last_renewal_to_verdict: spread(&|s| Some(verdict(s)? - last(s)?)),
        crossing_to_first_scale_write: spread(&|s| Some(down.first(&s.name)? - crossing(s)?)),
        last_renewal_to_first_scale_write: spread(&|s| Some(down.first(&s.name)? - last(s)?)),
        last_renewal_to_kcm_wanted_0: spread(&|s| Some(kcm(&down, s, 0, false)? - last(s)?)),
        last_renewal_to_kcm_gone: spread(&|s| Some(kcm(&down, s, 0, true)? - last(s)?)),
        recovery_to_kcm_ready: spread(&|s| Some(kcm(&up, s, 1, true)? - healed_at)),
        recovery_to_all_ready: spread(&|s| Some(up.last_ready(&s.name)? - healed_at)),
        coordinator_cpu_seconds: round(Usage::of_process(coordinator.process.id())?.cpu.as_secs_f64()),
        lease_probe_cpu_seconds: round(Usage::of_services(&services)?.cpu.as_secs_f64()),
    })
}

/// A proxy before the API server of this kubeconfig.
async fn proxy_of(kubeconfig: &str) -> anyhow::Result<FaultProxy> {
    let (_, server) = kubeconfig
        .split_once("https://")
        .context("the kubeconfig names no server")?;
    let end = server.find(|c: char| c != '.' && c != ':' && !c.is_ascii_digit());
    FaultProxy::start_tcp(server[..end.unwrap_or(server.len())].parse()?).await
}

/// Never ends.
async fn cut_again_and_again(proxy: &FaultProxy, cut: &mut u32) {
    for pause in [1.1, 4.3, 2.2, 3.4, 1.7, 5.0].into_iter().cycle() {
        tokio::time::sleep(Duration::from_secs_f64(pause)).await;
        proxy.cut_connections();
        *cut += 1;
    }
}

/// Waits until this many dependants have become ready at a count since a time.
async fn until_ready(rig: &Rig, since: i64, replicas: i64, wanted: usize, what: &str) -> anyhow::Result<()> {
    wait::until_true(what, BOUND, || async {
        let changes = rig.admin.scales().await?;
        let found: BTreeSet<_> = changes
            .iter()
            .filter(|c| c.at >= since && c.ready && c.replicas == replicas)
            .map(|c| (&c.shoot, &c.name))
            .collect();
        anyhow::ensure!(found.len() >= wanted, "{} of {wanted}", found.len());
        // The fleet's answer is large: it is not asked more often than this.
        Ok(true)
    })
    .await
    .with_context(|| format!("{} shoots", rig.options.shoots))
}

/// The first time of every change of a dependant, in microseconds since 1970.
struct Scales(BTreeMap<(String, String, i64, bool), i64>);

impl Scales {
    fn since(changes: &[ScaleChange], since: i64) -> Self {
        let mut first = BTreeMap::new();
        for change in changes.iter().filter(|change| change.at >= since) {
            let key = (
                change.shoot.clone(),
                change.name.clone(),
                change.replicas,
                change.ready,
            );
            first.entry(key).or_insert(change.at);
        }
        Self(first)
    }

    fn at(&self, shoot: &str, name: &str, replicas: i64, ready: bool) -> Option<i64> {
        self.0
            .get(&(shoot.to_owned(), name.to_owned(), replicas, ready))
            .copied()
    }

    fn of<'a>(&'a self, shoot: &'a str) -> impl Iterator<Item = (bool, i64)> + 'a {
        let from = (shoot.to_owned(), String::new(), i64::MIN, false);
        let of_shoot = self.0.range(from..).take_while(move |(key, _)| key.0 == shoot);
        of_shoot.map(|((_, _, _, ready), at)| (*ready, *at))
    }

    fn first(&self, shoot: &str) -> Option<i64> {
        self.of(shoot).filter(|(ready, _)| !ready).map(|(_, at)| at).min()
    }

    fn last_ready(&self, shoot: &str) -> Option<i64> {
        self.of(shoot).filter(|(ready, _)| *ready).map(|(_, at)| at).max()
    }
}
