//! The leases stop while the API server throttles
//!
//! An API server answers 429 to the watchdog while all nodes are cut off for longer than their leases last. The verdict
//! says so. Nothing is scaled, neither then nor when the server answers again after the nodes are back.
//! kube-controller-manager is not throttled and marks the nodes.

use watchdog_proto::probe::v1::Outcome;

use crate::backend::Plan;
use crate::fixture::Fixture;
use watchdog_test_support::fault_proxy::Behaviour;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture
        .healthy_shoot(Plan::nodes(3).behind_proxy().counted())
        .await?;
    shoot.proxy()?.set(Behaviour::Throttle(1));
    shoot.wait_outcome(Outcome::Throttled).await?;
    shoot.cut_all().await;
    shoot.stays_untouched(fixture.times().outage()).await?;
    shoot.wait_outcome(Outcome::Throttled).await?;
    shoot.reconnect().await;
    shoot.wait_restored().await?;
    shoot.proxy()?.set(Behaviour::Pass);
    shoot.wait_outcome(Outcome::Healthy).await?;
    shoot.stays_untouched(fixture.observation_window()).await
}
