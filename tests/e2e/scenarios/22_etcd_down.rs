//! etcd is down
//!
//! Without etcd the kube-apiserver crashes, and with it everything that needs it. Nothing is weeded.

use anyhow::ensure;

use super::nothing_is_weeded;
use crate::acceptance::planes::ETCD;
use crate::acceptance::stage::Stage;

pub(super) async fn play(stage: &Stage) -> anyhow::Result<()> {
    let plane = stage.plane(1).await?;
    plane.down(ETCD).await?;
    ensure!(
        plane.crashed().await.len() == 4,
        "the kube-apiserver and what needs it"
    );
    nothing_is_weeded(stage, &plane).await
}
