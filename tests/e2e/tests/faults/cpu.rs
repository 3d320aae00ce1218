//! The programs get 5 % of a core.

use std::time::Duration;

use tokio::time::sleep;

use crate::fleet::{EXPIRY, Fleet, STALLED};

/// The programs run this long in every [`ROUND`].
const SLICE: Duration = Duration::from_millis(100);
const ROUND: Duration = Duration::from_secs(2);

/// Lets the programs run and stops them in turns.
async fn starve(fleet: &Fleet) -> anyhow::Result<()> {
    loop {
        for service in fleet.services() {
            service.process.sigcont()?;
        }
        sleep(SLICE).await;
        for service in fleet.services() {
            service.process.sigstop()?;
        }
        sleep(ROUND - SLICE).await;
    }
}

pub(crate) async fn play(fleet: &mut Fleet) {
    fleet.begin().await.unwrap();
    let looked = async {
        STALLED.until_shown(&fleet.services()).await?;
        fleet.no_false_alarm_for(EXPIRY * 3 / 2).await
    };
    tokio::select! {
        looked = looked => looked.unwrap(),
        failed = starve(fleet) => failed.unwrap(),
    }
    for service in fleet.services() {
        service.process.sigcont().unwrap();
    }
    fleet.check_still_protects().await.unwrap();
    STALLED.until_gone(&fleet.services()).await.unwrap();
}
