//! One dependant is ignored
//!
//! machine-controller-manager carries the annotation ignore-scaling, and all nodes lose their API server. The other
//! dependants go down and come up again. machine-controller-manager is never touched.

use anyhow::ensure;
use serde_json::json;
use watchdog_proto::probe::v1::Outcome;

use crate::backend::Plan;
use crate::fixture::Fixture;
use watchdog_test_support::fixtures::{CA, KCM, MCM};

const IGNORE: &str = "dependency-watchdog.gardener.cloud/ignore-scaling";

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture
        .healthy_shoot(Plan::nodes(3).default_grace().counted())
        .await?;
    let ignored = json!({"metadata": {"annotations": {IGNORE: "true"}}});
    shoot.change_dependant(MCM, ignored).await?;
    let before = shoot.dependant(MCM);
    shoot.cut_all().await;
    shoot
        .wait_counts("the others are down", &[(KCM, 0), (MCM, 2), (CA, 0)])
        .await?;
    shoot.wait_outcome(Outcome::LeasesExpired).await?;
    shoot.no_node_turns_unknown(fixture.observation_window()).await?;
    let now = shoot.dependant(MCM);
    ensure!(
        (now.wanted, &now.recorded, now.held) == (2, &before.recorded, false),
        "it was touched: {now:?}"
    );
    shoot.reconnect().await;
    shoot.wait_restored().await
}
