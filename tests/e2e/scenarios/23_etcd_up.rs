//! etcd is up again
//!
//! etcd is ready, so the pod of kube-apiserver is deleted. Its successor is ready, so the pods that need it are
//! deleted. A pod that needs neither is left alone.

use anyhow::ensure;

use crate::acceptance::control_plane::{API_SERVER, ETCD};
use crate::acceptance::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let plane = fixture.control_plane(1).await?;
    plane.down(ETCD).await?;
    plane.up(ETCD).await?;
    plane.wait_runs(fixture.times().bound).await?;
    let weeded = plane.deleted_components().await;
    ensure!(
        weeded.len() == 4 && weeded.first() == Some(&API_SERVER),
        "the kube-apiserver first, then three others: {weeded:?}"
    );
    Ok(())
}
