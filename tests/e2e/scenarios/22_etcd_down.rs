//! etcd is down
//!
//! The kube-apiserver crashes, and with it everything that needs it. Nothing is deleted.

use anyhow::ensure;

use super::nothing_is_weeded;
use crate::acceptance::control_plane::ETCD;
use crate::acceptance::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let plane = fixture.control_plane(1).await?;
    plane.down(ETCD).await?;
    ensure!(
        plane.crashed().await.len() == 4,
        "the kube-apiserver and what needs it"
    );
    nothing_is_weeded(fixture, &plane).await
}
