//! A coordinator is killed while each of its flows stands at another point: before each write, and after each write
//! whose answer it has not seen. Another replica takes all of them over and brings them to their end.

use crate::support::{BOUND, COUNTS, ReplicaProcess, ScriptedShoots};
use watchdog_sandbox::{Fault, FaultAction};
use watchdog_test_support::coordinator::Outcome;
use watchdog_test_support::wait;

/// Of these, each of two replicas has enough for every point of a flow.
const SHOOTS: usize = 40;

/// Every point: which resource, after how many writes to it, and whether the next one is applied before its answer is
/// lost. A resource is scaled down in one write; it is restored in one and cleaned up in another.
fn points(to: Outcome) -> Vec<(&'static str, u32, FaultAction)> {
    let writes = if to == Outcome::Healthy { 2 } else { 1 };
    let mut points = Vec::new();
    for (name, _) in COUNTS {
        for before in 0..writes {
            for action in [FaultAction::Hang, FaultAction::ApplyAndHang] {
                points.push((*name, before, action));
            }
        }
    }
    points
}

/// Waits until the two share the shoots, and names those of the first: enough for every point.
async fn share(
    fleet: &ScriptedShoots,
    victim: &ReplicaProcess,
    successor: &ReplicaProcess,
    enough: usize,
) -> anyhow::Result<Vec<String>> {
    wait::until("the two share the shoots", BOUND, || async {
        let (mine, others) = tokio::try_join!(victim.owns(&fleet.shoots), successor.owns(&fleet.shoots))?;
        let (mine_len, others_len) = (mine.len(), others.len());
        // As long as the second has not joined, all are the first's.
        let shared = others_len > 0 && mine_len + others_len == SHOOTS;
        anyhow::ensure!(
            shared && mine_len >= enough,
            "they have {mine_len} and {others_len}"
        );
        Ok(Some(mine))
    })
    .await
}

/// Lets the flows of `victim` run against a wall, each at another point, kills it there, and waits until `successor`
/// has brought all shoots to their end.
async fn interrupted(name: &str, from: Outcome, to: Outcome) -> anyhow::Result<()> {
    let fleet = ScriptedShoots::start(name, SHOOTS).await?;
    let [victim, successor]: [ReplicaProcess; 2] = fleet
        .replicas(&["victim", "successor"])
        .await?
        .try_into()
        .ok()
        .unwrap();
    let points = points(to);
    let mine = share(&fleet, &victim, &successor, points.len()).await?;
    let settled = |outcome| {
        let up = outcome == Outcome::Healthy;
        move |wanted: i64, held: bool| (wanted > 0) == up && held != up
    };
    fleet.say_all(from);
    fleet
        .until_all("the shoots are where they begin", settled(from))
        .await?;

    let api = fleet.fixture.sandbox.seed();
    let walls: Vec<_> = mine
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

    fleet.say_all(Outcome::Healthy);
    fleet.until_restored().await?;
    let report = fleet.report();
    eprintln!("{report}");
    report.check()?;
    anyhow::ensure!(report.handovers.expired > 0, "{report}");
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
