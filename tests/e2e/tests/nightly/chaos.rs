//! Services killed at random times, over seeds of a random schedule.
//!
//! `CHAOS_SEEDS=20` plays 20 seeds, new ones each time; `CHAOS_SEED=7` plays one again.

use futures::stream::{self, StreamExt};
use watchdog_e2e::acceptance::chaos;

/// Seeds in `make test`.
const SEEDS: usize = 2;

/// Worlds at once: five services each.
const AT_ONCE: usize = 4;

fn number<T: std::str::FromStr>(variable: &str) -> Option<T> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_times() {
    let count = number("CHAOS_SEEDS").unwrap_or(SEEDS);
    let seeds: Vec<u64> = match number("CHAOS_SEED") {
        Some(seed) => vec![seed],
        None => (0..count).map(|_| u64::from(rand::random::<u32>())).collect(),
    };
    let failures: Vec<String> = stream::iter(seeds)
        .map(|seed| async move {
            let played = chaos::play(seed).await;
            played
                .err()
                .map(|error| format!("CHAOS_SEED={seed} fails: {error:#}"))
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(|failure| async { failure })
        .collect()
        .await;
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
