//! All nodes are cut off, then reconnected
//!
//! The network between five nodes and their API server breaks. cluster-autoscaler and machine-controller-manager go
//! down, then kube-controller-manager, before a node turns Unknown. For two grace periods no node turns Unknown and no
//! machine is replaced. When the network is back, kube-controller-manager comes up, then machine-controller-manager
//! with its two replicas, then cluster-autoscaler.

use watchdog_proto::probe::v1::Outcome;

use crate::backend::Plan;
use crate::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture
        .healthy_shoot(Plan::nodes(5).default_grace().with_twin())
        .await?;
    shoot.cut_all().await;
    shoot.wait_down().await?;
    // Three of five are enough; the next verdict names them all.
    let all =
        |evidence: &watchdog_proto::probe::v1::Evidence| (evidence.candidates, evidence.expired) == (5, 5);
    shoot
        .wait_verdict("all five leases are expired", |verdict| {
            verdict.outcome() == Outcome::LeasesExpired && verdict.evidence.as_ref().is_some_and(all)
        })
        .await?;
    shoot.no_node_turns_unknown(fixture.observation_window()).await?;
    shoot.reconnect().await;
    shoot.wait_restored().await?;
    shoot.no_node_turns_unknown(fixture.observation_window()).await
}
