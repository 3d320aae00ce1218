//! The whole job on a real kube-apiserver: many shoots lose all their nodes at the same instant, Gardener's own
//! configuration, lease-probe and scaling-coordinator as they are released.

use std::collections::BTreeSet;
use std::future::pending;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::fault_proxy::FaultProxy;
use watchdog_test_support::fixtures::KCM;
use watchdog_test_support::resource_usage::ProcessUsage;
use watchdog_test_support::wait;
use watchdog_test_support::workload_controller::ReplicasChange;

use super::loss::crossing;
use super::{INTERVAL, healthy};
use crate::fleet::ShootReport;
use crate::fleet::objects::time;
use crate::rig::{Rig, RigOptions};
use crate::{Spread, print, round};

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
#[derive(Debug, Clone, Copy, clap::Args, Serialize)]
#[serde(rename_all = "camelCase")]
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
struct IncidentFigures {
    scenario: &'static str,
    #[serde(flatten)]
    options: IncidentOptions,
    connections_cut: u32,
    crossing_to_verdict: Option<Spread>,
    last_renewal_to_verdict: Option<Spread>,
    crossing_to_first_scale_write: Option<Spread>,
    last_renewal_to_kcm_wanted_0: Option<Spread>,
    last_renewal_to_kcm_gone: Option<Spread>,
    recovery_to_kcm_ready: Option<Spread>,
    recovery_to_all_ready: Option<Spread>,
    coordinator_cpu_seconds: f64,
    lease_probe_cpu_seconds: f64,
}

/// Measures.
pub async fn run(options: IncidentOptions) -> anyhow::Result<()> {
    let rig = Rig::start(RigOptions {
        dependants: true,
        real: true,
        prober: GARDENER.to_owned(),
        ..RigOptions::new(options.shoots, NODES, INTERVAL)
    })
    .await?;
    until_ready(&rig, Timestamp::UNIX_EPOCH, 1, "the dependants run").await?;
    let (services, subscriber) = healthy::start(&rig, 1).await?;
    let proxy = match options.cut_connections {
        true => Some(proxy_of(&rig.kubeconfig).await?),
        false => None,
    };
    let kubeconfig = match &proxy {
        Some(proxy) => proxy.kubeconfig(&rig.kubeconfig),
        None => rig.kubeconfig.clone(),
    };
    let coordinator = rig
        .setup
        .coordinator("scaling-coordinator-0", &kubeconfig, &[])
        .await?;
    coordinator.wait_ready().await?;
    tokio::time::sleep(SETTLE).await;

    let lost_at = time(rig.fleet.lose(options.shoots, Duration::ZERO));
    let down = until_ready(&rig, lost_at, 0, "all dependants are at 0");
    let mut connections_cut = 0;
    tokio::select! {
        down = down => down?,
        () = cut_again_and_again(proxy.as_ref(), &mut connections_cut) => {}
    }
    subscriber
        .until(options.shoots, Outcome::LeasesExpired, BOUND)
        .await?;
    let latest = subscriber.latest();
    let shoots = rig.fleet.shoot_reports();
    let down = since(rig.scales(), lost_at);
    let healed_at = rig.fleet.recover(0, Duration::ZERO);
    until_ready(&rig, time(healed_at), 1, "all dependants are back").await?;
    let up = since(rig.scales(), time(healed_at));

    let last = |shoot: &ShootReport| shoot.renewed.last().copied();
    let spread =
        |moment: &dyn Fn(&ShootReport) -> Option<i64>| Spread::of_micros(shoots.iter().filter_map(moment));
    let verdict = |shoot: &ShootReport| Some(latest.get(&shoot.name)?.at);
    let first_down =
        |shoot: &ShootReport, is_ready, name| times(&down, shoot, is_ready, name).first().copied();
    let last_up = |shoot: &ShootReport, name| times(&up, shoot, true, name).last().copied();
    print(&IncidentFigures {
        scenario: "incident",
        options,
        connections_cut,
        crossing_to_verdict: spread(&|s| Some(verdict(s)? - crossing(s)?)),
        last_renewal_to_verdict: spread(&|s| Some(verdict(s)? - last(s)?)),
        crossing_to_first_scale_write: spread(&|s| Some(first_down(s, false, None)? - crossing(s)?)),
        last_renewal_to_kcm_wanted_0: spread(&|s| Some(first_down(s, false, Some(KCM))? - last(s)?)),
        last_renewal_to_kcm_gone: spread(&|s| Some(first_down(s, true, Some(KCM))? - last(s)?)),
        recovery_to_kcm_ready: spread(&|s| Some(last_up(s, Some(KCM))? - healed_at)),
        recovery_to_all_ready: spread(&|s| Some(last_up(s, None)? - healed_at)),
        coordinator_cpu_seconds: round(ProcessUsage::of([&coordinator])?.cpu.as_secs_f64()),
        lease_probe_cpu_seconds: round(ProcessUsage::of(&services)?.cpu.as_secs_f64()),
    })
}

/// A proxy before the API server of this kubeconfig.
async fn proxy_of(kubeconfig: &str) -> anyhow::Result<FaultProxy> {
    let kubeconfig: Value = serde_json::from_str(kubeconfig)?;
    let server = kubeconfig.pointer("/clusters/0/cluster/server");
    let address = server.and_then(|url| url.as_str()?.strip_prefix("https://"));
    FaultProxy::start_tcp(address.context("the kubeconfig names no server")?.parse()?).await
}

/// Never ends.
async fn cut_again_and_again(proxy: Option<&FaultProxy>, cut: &mut u32) {
    let Some(proxy) = proxy else {
        return pending().await;
    };
    for pause in [1.1, 4.3, 2.2, 3.4, 1.7, 5.0].into_iter().cycle() {
        tokio::time::sleep(Duration::from_secs_f64(pause)).await;
        proxy.cut_connections();
        *cut += 1;
    }
}

/// Waits until all dependants have become ready at a count since a time.
async fn until_ready(rig: &Rig, since: Timestamp, replicas: i64, what: &str) -> anyhow::Result<()> {
    let wanted = rig.options.shoots * DEPENDANTS;
    wait::until_true(what, BOUND, || async {
        let changes = rig.scales();
        let ready: BTreeSet<_> = changes
            .iter()
            .filter(|c| c.at >= since && c.is_ready && c.replicas == replicas)
            .map(|c| (&c.namespace, &c.name))
            .collect();
        anyhow::ensure!(ready.len() >= wanted, "{} of {wanted}", ready.len());
        Ok(true)
    })
    .await
}

fn since(mut changes: Vec<ReplicasChange>, since: Timestamp) -> Vec<ReplicasChange> {
    changes.retain(|change| change.at >= since);
    changes
}

/// When dependants of a shoot changed, in order and in microseconds since 1970: the replicas that are wanted, or those
/// that are ready, of all dependants or of one.
fn times(changes: &[ReplicasChange], shoot: &ShootReport, is_ready: bool, name: Option<&str>) -> Vec<i64> {
    let of_shoot = changes
        .iter()
        .filter(|change| change.namespace == shoot.name && change.is_ready == is_ready);
    let named = of_shoot.filter(|change| name.is_none_or(|name| change.name == name));
    named.map(|change| change.at.as_microsecond()).collect()
}
