//! Two hundred control planes recover together
//!
//! Two hundred kube-apiservers come back at the same time, as when a seed loses a node pool. Every crashed pod is
//! deleted, and nothing else.

use anyhow::ensure;

use crate::acceptance::control_plane::{API_SERVER, at_once};
use crate::acceptance::fixture::Fixture;

/// As many as a large seed has.
const PLANES: usize = 200;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let control_planes = fixture.many_control_planes(PLANES).await?;
    at_once(control_planes.iter().map(|plane| plane.down(API_SERVER))).await?;
    at_once(control_planes.iter().map(|plane| plane.up(API_SERVER))).await?;
    for plane in &control_planes {
        plane.wait_runs(fixture.times().bound * 2).await?;
        let weeded = plane.deleted_components().await.len();
        ensure!(weeded == 3, "{weeded} pods were weeded in {}", plane.namespace());
    }
    Ok(())
}
