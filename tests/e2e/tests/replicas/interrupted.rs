//! The leader is killed while each of its flows stands at another point: before each write, and after each write whose
//! answer it has not seen. Another replica takes all of them over and brings them to their end.

use anyhow::Context;

use crate::support::{COUNTS, ScriptedShoots};
use watchdog_sandbox::{Fault, FaultAction};
use watchdog_test_support::coordinator::Outcome;
use watchdog_test_support::wait::{self, BOUND};

/// Enough for every point of a flow.
const SHOOTS: usize = 12;

/// Every point: which resource, after how many writes to it, and whether the next one is applied before its answer is
/// lost. A resource is scaled down in one write; it is restored in one and cleaned up in another.
fn points(to: Outcome) -> Vec<(&'static str, u32, FaultAction)> {
    let writes = if to == Outcome::Healthy { 2 } else { 1 };
    let mut points = Vec::new();
    for (name, _) in COUNTS {
        for before in 0..writes {
            for action in [FaultAction::Hang, FaultAction::ApplyAndHang] {
                points.push((name, before, action));
            }
        }
    }
    points
}

/// Lets the flows of `victim` run against a wall, each at another point, kills it there, and waits until `successor`
/// has brought all shoots to their end.
async fn interrupted(name: &str, from: Outcome, to: Outcome) -> anyhow::Result<()> {
    let fleet = ScriptedShoots::start(name, SHOOTS).await?;
    let [victim, successor] = fleet.replicas(["victim", "successor"]).await?;
    let points = points(to);
    anyhow::ensure!(SHOOTS >= points.len(), "more points than shoots");
    let settled = |outcome| {
        let up = outcome == Outcome::Healthy;
        move |wanted: i32, held: bool| (wanted > 0) == up && held != up
    };
    fleet.say_all(from);
    fleet
        .until_all("the shoots are where they begin", settled(from))
        .await?;

    let api = fleet.sandbox().context("a sandbox")?.sandbox.seed();
    let walls: Vec<_> = fleet
        .shoots
        .iter()
        .zip(points)
        .map(|(shoot, (name, before, action))| {
            let path = format!("/apis/apps/v1/namespaces/{shoot}/deployments/{name}");
            api.inject(
                Fault::always(action)
                    .verb("patch")
                    .skip(before)
                    .path(&path)
                    .user("victim")
                    .times(1),
            )
        })
        .collect();
    fleet.say_all(to);
    wait::until("every flow stands at its wall", BOUND, || async {
        let left = api.faults().iter().filter(|(id, _)| walls.contains(id)).count();
        anyhow::ensure!(left == 0, "{left} walls were not reached");
        Ok(Some(()))
    })
    .await?;
    victim.process.kill_9().await?;
    fleet
        .until_all("the successor has ended all flows", settled(to))
        .await?;

    let report = fleet.end().await?;
    anyhow::ensure!(report.handovers.expired > 0, "{report}");
    drop(successor);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_point_of_the_way_down() {
    interrupted("interrupted-down", Outcome::Healthy, Outcome::LeasesExpired)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_point_of_the_way_up() {
    interrupted("interrupted-up", Outcome::LeasesExpired, Outcome::Healthy)
        .await
        .unwrap();
}
