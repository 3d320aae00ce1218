//! A loss during a rolling update of the control plane
//!
//! Gardener rolls out new pod templates before and during a loss. The dependants stay down. Each has
//! meltdown-protection-active, which tells Gardener to keep the counts, from before it goes down until it is restored.

use anyhow::ensure;
use serde_json::json;

use crate::backend::Plan;
use crate::fixture::Fixture;
use watchdog_test_support::history::timeline::Fact;
use watchdog_test_support::real::COUNTS;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture
        .healthy_shoot(Plan::nodes(4).default_grace().counted())
        .await?;
    let roll =
        |revision: &str| json!({"spec": {"template": {"metadata": {"annotations": {"checksum": revision}}}}});
    shoot.last_operation("Reconcile", "Processing").await?;
    for (name, _) in COUNTS {
        shoot.change_dependant(name, roll("1")).await?;
    }
    shoot.cut_all().await;
    for (name, _) in COUNTS {
        shoot.change_dependant(name, roll("2")).await?;
    }
    shoot.wait_down().await?;
    for (name, _) in COUNTS {
        shoot.change_dependant(name, roll("3")).await?;
    }
    shoot.last_operation("Reconcile", "Succeeded").await?;
    shoot.no_node_turns_unknown(fixture.observation_window()).await?;
    shoot.reconnect().await;
    shoot.wait_restored().await?;
    for entry in shoot.seed().timeline().of(shoot.namespace()) {
        if let Fact::Dependant(seen) = entry.fact {
            ensure!(seen.held || seen.wanted > 0, "down and not marked: {seen:?}");
        }
    }
    Ok(())
}
