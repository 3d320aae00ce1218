//! When verdicts count and when they do not.

use std::time::Duration;

use watchdog_proto::scaling::v1::{Direction, FlowState, ResourceState};
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};

use crate::coordinator::{Coordinator, one_shoot};
use crate::seed::Seed;
use crate::{KCM, MCM, SHOOT};

#[tokio::test]
async fn an_expired_verdict_holds_in_the_middle_of_a_flow() {
    let (seed, probe, coordinator) = one_shoot(1, false).await;
    seed.freeze(SHOOT, MCM);
    // Not valid at all.
    probe.say_for(SHOOT, Outcome::LeasesExpired, Duration::ZERO);
    coordinator.until_holding(SHOOT, "is no longer valid").await;
    until_counted(&coordinator, "expired").await;
    assert_eq!(seed.writes(SHOOT), [""; 0]);
    // Valid for long enough to begin, but not to end: mcm never becomes unready in that time.
    probe.say_for(SHOOT, Outcome::LeasesExpired, Duration::from_secs(2));
    coordinator.until_state(SHOOT, MCM, ResourceState::Waiting).await;
    let holding = coordinator.until_holding(SHOOT, "is no longer valid").await;
    assert_eq!(holding.state(), FlowState::Holding);
    seed.thaw(SHOOT, MCM);
    coordinator
        .until(SHOOT, "mcm is unready", |s| {
            s.resources[1].ready_replicas == Some(0)
        })
        .await;
    assert_eq!(
        seed.replicas(SHOOT, KCM),
        1,
        "nothing begins after the validity has ended"
    );
    // Renewed: it goes on where it stopped.
    coordinator.lose(&probe, SHOOT).await;
}

/// Why shoots are held, as the metrics tell.
async fn until_counted(coordinator: &Coordinator, held: &str) {
    let line = format!("watchdog_scaling_shoots{{direction=\"hold\",state=\"holding\",held=\"{held}\"}} 1");
    crate::eventually_async(&format!("{line} is shown"), async || {
        coordinator.metrics().await.contains(&line)
    })
    .await;
}

#[tokio::test]
async fn what_holds_is_counted_by_its_reason() {
    let (seed, one, mut two) = (
        Seed::new().await,
        FakeProbe::start_as("one").await.unwrap(),
        FakeProbe::start_as("two").await.unwrap(),
    );
    seed.shoot(SHOOT, 1, false).await;
    let coordinator = Coordinator::start(&seed, &[&one, &two]).await;
    until_counted(&coordinator, "unreported").await;
    one.say([SHOOT], Outcome::Inconclusive);
    until_counted(&coordinator, "verdict").await;
    two.say([SHOOT], Outcome::LeasesExpired);
    // Both have looked since the other one came to its result.
    one.say([SHOOT], Outcome::Healthy);
    two.say([SHOOT], Outcome::LeasesExpired);
    until_counted(&coordinator, "disagreement").await;
    coordinator
        .until_holding(SHOOT, "The lease-probe replicas disagree")
        .await;
    one.take_back(SHOOT);
    coordinator.until_settled(SHOOT, Direction::Down).await;
    // Its verdict would be valid for minutes; but nobody is there to take it back.
    two.kill();
    until_counted(&coordinator, "unreported").await;
    seed.hibernate(SHOOT);
    until_counted(&coordinator, "cluster").await;
    assert_eq!(seed.all(SHOOT), [0, 0, -1]);
}
