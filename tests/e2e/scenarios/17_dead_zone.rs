//! One of three zones is dead
//!
//! Of six nodes in three zones, those of one zone are cut off. The others reach the API server, so the zone is dead and
//! not the connection: nothing is scaled, its machines are replaced, and the verdict names the zone.

use anyhow::ensure;
use watchdog_proto::probe::v1::{Outcome, Verdict};

use crate::backend::Plan;
use crate::fixture::Fixture;

const DEAD: &str = "zone-1";

fn names_the_zone(verdict: &Verdict) -> bool {
    let zones = verdict.evidence.iter().flat_map(|evidence| &evidence.zones);
    zones
        .filter(|zone| zone.expired > 0)
        .all(|zone| zone.zone == DEAD && zone.expired == zone.candidates)
        && verdict.message.contains(DEAD)
}

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture.healthy_shoot(Plan::nodes(6).zones(3).with_twin()).await?;
    shoot.cut_zone(DEAD).await;
    let verdict = shoot
        .wait_verdict("it names the dead zone", names_the_zone)
        .await?;
    ensure!(verdict.outcome() == Outcome::Healthy, "{}", verdict.message);
    shoot.stays_untouched(fixture.times().outage()).await?;
    shoot.reconnect().await;
    shoot.wait_restored().await
}
