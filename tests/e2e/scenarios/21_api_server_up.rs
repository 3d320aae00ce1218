//! The kube-apiserver is up again
//!
//! The pods that need it wait in CrashLoopBackOff. As soon as it is ready, these pods and no others are deleted, and
//! their successors run.

use anyhow::ensure;

use crate::acceptance::control_plane::API_SERVER;
use crate::acceptance::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let plane = fixture.control_plane(1).await?;
    plane.down(API_SERVER).await?;
    let mut crashed = plane.crashed().await;
    plane.up(API_SERVER).await?;
    plane.wait_runs(fixture.times().bound).await?;
    let mut weeded = plane.deleted_components().await;
    crashed.sort_unstable();
    weeded.sort_unstable();
    ensure!(
        weeded == crashed,
        "{weeded:?} were weeded, {crashed:?} had crashed"
    );
    Ok(())
}
