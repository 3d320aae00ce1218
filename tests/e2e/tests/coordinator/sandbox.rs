//! The scenarios of the coordinator on the API server in memory: the same as on a real one (real_coordinator.rs).

use crate::world::{Seed, scenarios};

#[tokio::test(flavor = "multi_thread")]
async fn all_scenarios() {
    let seed = Seed::sandbox().await.unwrap();
    scenarios::play_all("coordinator-scenarios", seed).await.unwrap();
}
