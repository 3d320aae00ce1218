//! A case of the coordinator on a real kube-apiserver, judged by its audit log.

use crate::coordinator::{REPLICAS, one_is_killed_and_another_frozen};
use crate::support::ScriptedShoots;

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_is_killed_and_another_frozen() {
    let fleet = ScriptedShoots::start_real("real-replicas", 9, &REPLICAS)
        .await
        .unwrap();
    one_is_killed_and_another_frozen(fleet).await.unwrap();
}
