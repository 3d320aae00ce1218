//! The field's scenarios, one file each. The comment at the head of a file says what happens and what must be; its
//! first line is the title of the scenario in docs/contributing/acceptance.md.

use serde_json::{Value, json};
use watchdog_proto::probe::v1::{Exclusion, Outcome};

use crate::fixture::Fixture;
use crate::runner::Scenario;
use crate::shoot::ShootUnderTest;

#[path = "05_api_server_gone.rs"]
mod api_server_gone;
#[path = "06_broken_kubeconfig.rs"]
mod broken_kubeconfig;
#[path = "17_dead_zone.rs"]
mod dead_zone;
#[path = "14_deletion.rs"]
mod deletion;
#[path = "11_hibernation.rs"]
mod hibernation;
#[path = "07_ignored_dependant.rs"]
mod ignored_dependant;
#[path = "15_in_place_update.rs"]
mod in_place_update;
#[path = "03_last_lease_deleted.rs"]
mod last_lease_deleted;
#[path = "04_left_at_zero.rs"]
mod left_at_zero;
#[path = "13_migration.rs"]
mod migration;
#[path = "01_no_workers.rs"]
mod no_workers;
#[path = "08_nodes_cut_off.rs"]
mod nodes_cut_off;
#[path = "02_one_node.rs"]
mod one_node;
#[path = "16_own_grace_period.rs"]
mod own_grace_period;
#[path = "19_rolling_update.rs"]
mod rolling_update;
#[path = "10_terminating_machines.rs"]
mod terminating_machines;
#[path = "18_throttled.rs"]
mod throttled;
#[path = "12_unhealthy_condition.rs"]
mod unhealthy_condition;
#[path = "09_unmanaged_nodes.rs"]
mod unmanaged_nodes;

macro_rules! scenario {
    ($file:literal, $module:ident) => {
        Scenario {
            file: $file,
            source: include_str!($file),
            play: |fixture| Box::pin(async move { $module::play(&fixture).await }),
        }
    };
}

/// All of them, by number.
pub(crate) const ALL: &[Scenario] = &[
    scenario!("01_no_workers.rs", no_workers),
    scenario!("02_one_node.rs", one_node),
    scenario!("03_last_lease_deleted.rs", last_lease_deleted),
    scenario!("04_left_at_zero.rs", left_at_zero),
    scenario!("05_api_server_gone.rs", api_server_gone),
    scenario!("06_broken_kubeconfig.rs", broken_kubeconfig),
    scenario!("07_ignored_dependant.rs", ignored_dependant),
    scenario!("08_nodes_cut_off.rs", nodes_cut_off),
    scenario!("09_unmanaged_nodes.rs", unmanaged_nodes),
    scenario!("10_terminating_machines.rs", terminating_machines),
    scenario!("11_hibernation.rs", hibernation),
    scenario!("12_unhealthy_condition.rs", unhealthy_condition),
    scenario!("13_migration.rs", migration),
    scenario!("14_deletion.rs", deletion),
    scenario!("15_in_place_update.rs", in_place_update),
    scenario!("16_own_grace_period.rs", own_grace_period),
    scenario!("17_dead_zone.rs", dead_zone),
    scenario!("18_throttled.rs", throttled),
    scenario!("19_rolling_update.rs", rolling_update),
];

/// A dependant as the watchdog leaves it when it has scaled it down.
fn held_down(count: i32) -> Value {
    let annotations = json!({
        "dependency-watchdog.gardener.cloud/replicas": count.to_string(),
        "dependency-watchdog.gardener.cloud/meltdown-protection-active": "",
    });
    json!({"metadata": {"annotations": annotations}, "spec": {"replicas": 0}})
}

/// Of three nodes that are cut off, two leases are left out for this reason: nothing is scaled, and all is well in the
/// end.
async fn one_lease_is_too_few(
    fixture: &Fixture,
    shoot: &ShootUnderTest,
    reason: Exclusion,
) -> anyhow::Result<()> {
    let verdict = shoot.wait_outcome(Outcome::TooFewCandidates).await?;
    let evidence = verdict.evidence.unwrap_or_default();
    let found = evidence.excluded.iter().find(|count| count.reason() == reason);
    let found = found.map_or(0, |count| count.leases);
    let message = verdict.message;
    anyhow::ensure!(found == 2, "{found} leases left out as {reason:?}: {message}");

    shoot.stays_untouched(fixture.observation_window()).await?;
    shoot.reconnect().await;
    shoot.wait_outcome(Outcome::Healthy).await.map(drop)
}

/// Says in the Shoot that the grace period is everybody's, while its kube-controller-manager has the longer one of the
/// plan: what is seen before it judges can be watched for longer.
async fn slow_controller(fixture: &Fixture, shoot: &ShootUnderTest) -> anyhow::Result<()> {
    let grace = format!("{}ms", fixture.times().grace.as_millis());
    let manager = json!({"kubeControllerManager": {"nodeMonitorGracePeriod": grace}});
    shoot.change_shoot(json!({"spec": {"kubernetes": manager}})).await
}
