//! The last lease is deleted while the dependants are down
//!
//! The watchdog has scaled down a shoot with one node, whose lease is expired. Then the lease is deleted. Neither
//! restores anything. When the node is connected again, its kubelet creates the lease, and the dependants are restored
//! in order and to their counts.

use watchdog_proto::probe::v1::Outcome;

use super::held_down;
use crate::backend::Plan;
use crate::fixture::Fixture;
use watchdog_test_support::real::COUNTS;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture.shoot(Plan::nodes(1)).await?;
    shoot.cut_all().await;
    for (name, count) in COUNTS {
        shoot.change_dependant(name, held_down(count)).await?;
    }
    shoot.wait_down().await?;
    shoot.hand_over().await?;
    shoot.wait_outcome(Outcome::TooFewCandidates).await?;
    shoot.stays_untouched(fixture.observation_window()).await?;
    for node in shoot.nodes() {
        shoot.delete_lease(&node).await?;
    }
    shoot.stays_untouched(fixture.observation_window()).await?;
    shoot.reconnect().await;
    shoot.wait_counts("all are restored", &COUNTS).await?;
    shoot
        .wait_dependants("nothing is held down", |now| !now.held)
        .await
}
