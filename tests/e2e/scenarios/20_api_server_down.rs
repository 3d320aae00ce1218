//! The kube-apiserver of a control plane is down
//!
//! The pods that need it crash in a loop. Deleting them would not help: none is deleted.

use anyhow::ensure;

use super::nothing_is_weeded;
use crate::acceptance::control_plane::API_SERVER;
use crate::acceptance::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let plane = fixture.control_plane(1).await?;
    plane.down(API_SERVER).await?;
    ensure!(plane.crashed().await.len() == 3, "three components need it");
    nothing_is_weeded(fixture, &plane).await
}
