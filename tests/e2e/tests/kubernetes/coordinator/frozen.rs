//! The leader is frozen between two levels of a scale-down, and the nodes come back meanwhile. Whatever it had decided,
//! it scales nothing down once another replica may lead, and everything is restored.
//!
//! No write is under way when it is frozen: what is on its way to the API server then goes out when it thaws, and only
//! the precondition on the resource version is left to refuse it.

use std::cell::Cell;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use watchdog_test_support::fake_probe::Outcome;
use watchdog_test_support::fixtures;
use watchdog_test_support::history::Write;
use watchdog_test_support::wait::{self, BOUND};

use super::ScriptedSeed;
use super::replicas::{Replica, by_name};

const REPLICAS: [&str; 2] = ["a", "b"];

const SHOOTS: usize = 8;

/// The leader acts for less time than this after the last renewal of its Lease: 4 s, and a tenth for its clock.
const LEASE_VALIDITY: Duration = Duration::from_millis(4_500);

/// Shorter than its Lease; longer than that, and than others wait for it, also where a slow API server has made it last
/// 20 s; so long that the connections to it are given up.
const PERIODS: [Duration; 3] = [
    Duration::from_secs(2),
    Duration::from_secs(30),
    Duration::from_secs(40),
];

/// The writes by which a replica has scaled something down since then.
fn scale_downs(seed: &ScriptedSeed, replica: &str, since: Timestamp) -> anyhow::Result<Vec<Write>> {
    let scales_down = |write: &Write| {
        let replicas = write.body.pointer("/spec/replicas").and_then(Value::as_i64);
        write.author == replica && write.at >= since && replicas == Some(0)
    };
    let writes = seed.server.audit()?.into_iter();
    Ok(writes.filter(scales_down).collect())
}

async fn frozen_half_way(
    seed: &ScriptedSeed,
    replicas: &mut [Replica],
    period: Duration,
) -> anyhow::Result<()> {
    let (leader, _) = seed.leader().await?;
    let successor = if leader == REPLICAS[0] {
        REPLICAS[1]
    } else {
        REPLICAS[0]
    };
    let process = &by_name(replicas, &leader)?.coordinator.service.process;
    let (begin, acted) = (Timestamp::now(), seed.actions_of(successor)?);
    seed.say(Outcome::LeasesExpired);
    let first_level = 2 * SHOOTS;
    wait::until_true("the first level is written", BOUND, || async {
        Ok(scale_downs(seed, &leader, begin)?.len() >= first_level)
    })
    .await?;
    process.sigstop()?;
    let are_back = Cell::new(false);
    wait::holds("it is frozen", period, || async {
        // Where it may lead, the successor goes on with the flow first.
        let may_return = period < LEASE_VALIDITY || seed.actions_of(successor)? > acted;
        if may_return && !are_back.replace(true) {
            seed.say(Outcome::Healthy);
        }
        Ok(true)
    })
    .await?;
    anyhow::ensure!(are_back.get(), "nobody went on for {period:?}");
    let thawed_at = Timestamp::now();
    process.sigcont()?;
    seed.until_restored().await?;
    seed.until_following(&*replicas).await?;
    if period > LEASE_VALIDITY {
        let late = scale_downs(seed, &leader, thawed_at)?;
        anyhow::ensure!(late.is_empty(), "scaled down after its time: {late:?}");
    }
    seed.end().await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_is_frozen_for_less_and_for_longer_than_its_lease() {
    let config = fixtures::prober("probeInterval: 5s", "100ms");
    let between_levels = "scaleDown: {level: 1, initialDelay: 3s}";
    let config = config.replace("scaleDown: {level: 1}", between_levels);
    let seed = ScriptedSeed::start_for("replicas-frozen", &config, SHOOTS, &REPLICAS).await;
    let seed = seed.unwrap();
    let mut replicas = seed.replicas(&REPLICAS).await.unwrap();
    for period in PERIODS {
        frozen_half_way(&seed, &mut replicas, period).await.unwrap();
    }
}
