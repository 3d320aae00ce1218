//! Services killed at random times, over seeds of a random schedule.
//!
//! `CHAOS_SEEDS=10` plays 10 seeds, new ones each time; `CHAOS_SEED=7` plays one again.

use watchdog_e2e::acceptance::chaos;

/// Seeds in `make test`.
const SEEDS: usize = 2;

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
    let mut failures = Vec::new();
    for seed in seeds {
        if let Err(error) = chaos::play(seed).await {
            failures.push(format!("CHAOS_SEED={seed} fails: {error:#}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
