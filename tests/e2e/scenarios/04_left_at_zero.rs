//! Dependants were left at zero
//!
//! An earlier watchdog scaled kube-controller-manager and machine-controller-manager down and never came back. The
//! leases are healthy. Both are restored in order, machine-controller-manager to its two replicas.

use crate::backend::Plan;
use crate::fixture::Fixture;
use watchdog_test_support::fixtures::{KCM, MCM};

use super::held_down;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture.shoot(Plan::nodes(2)).await?;
    for (name, count) in [(KCM, 1), (MCM, 2)] {
        shoot.change_dependant(name, held_down(count)).await?;
    }
    shoot
        .wait_counts("both are at zero", &[(KCM, 0), (MCM, 0)])
        .await?;
    shoot.hand_over().await?;
    shoot.wait_restored().await
}
