//! Nodes with a condition that is configured as unhealthy
//!
//! The worker pool names MemoryPressure as unhealthy. Two of three nodes have it when all three are cut off. Only one
//! lease counts, and nothing is scaled.

use serde_json::json;
use watchdog_proto::probe::v1::Exclusion;

use super::{one_lease_is_too_few, slow_controller};
use crate::backend::Plan;
use crate::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    // kube-controller-manager turns the condition to Unknown after the grace period, with which it ends to count.
    let shoot = fixture.shoot(Plan::nodes(3).grace(3.0)).await?;
    slow_controller(fixture, &shoot).await?;
    let conditions = json!({"nodeConditions": ["MemoryPressure"]});
    let worker =
        json!({"name": "worker", "minimum": 1, "maximum": 9, "machineControllerManager": conditions});
    shoot
        .change_shoot(json!({"spec": {"provider": {"workers": [worker]}}}))
        .await?;
    shoot.hand_over_healthy().await?;
    shoot.cut_all().await;
    for node in shoot.nodes().iter().take(2) {
        shoot
            .set_condition(node, "MemoryPressure", "True", "KubeletHasInsufficientMemory")
            .await?;
    }
    one_lease_is_too_few(fixture, &shoot, Exclusion::UnhealthyCondition).await
}
