//! etcd recovers with a bad member
//!
//! All three members of etcd were down, and two come back. etcd works again, and the member that is not ready does not
//! hide that: crashed pods are deleted.

use crate::acceptance::control_plane::ETCD;
use crate::acceptance::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let plane = fixture.control_plane(3).await?;
    let members = [ETCD, "etcd-main-1", "etcd-main-2"];
    for member in members {
        plane.down(member).await?;
    }
    for member in members.iter().skip(1) {
        plane.up(member).await?;
    }
    plane.wait_runs(fixture.times().bound).await
}
