//! `status`

use std::process::ExitCode;
use std::time::Duration;

use watchdog_client::consumer::{LeaseProbe, ScalingCoordinator};

use crate::args::StatusArgs;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::output::{LiveScreen, Output};
use crate::render::status;

/// Between two updates.
const INTERVAL: Duration = Duration::from_secs(2);

pub(crate) async fn run(
    dialer: &ProgramDialer,
    args: &StatusArgs,
    output: &Output,
) -> Result<ExitCode, CommandError> {
    let lease_probe = dialer.lease_probe().await?;
    let coordinator = dialer.coordinator().await?;
    let first = fetch::status::status(&lease_probe, &coordinator, args.limit).await?;
    if !args.watch {
        output.print(&status::render(&first, None, &output.frame()));
        return Ok(ExitCode::SUCCESS);
    }
    let watch = watch(&lease_probe, &coordinator, args.limit, output);
    tokio::select! {
        () = watch => Ok(ExitCode::SUCCESS),
        // The usual way to end it. A process that cannot be interrupted is killed.
        _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
    }
}

/// Shows the status again and again. A program that cannot be reached is waited for.
async fn watch(lease_probe: &LeaseProbe, coordinator: &ScalingCoordinator, limit: u16, output: &Output) {
    let screen = LiveScreen::open(output);
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = String::new();
    loop {
        ticks.tick().await;
        let shown = match fetch::status::status(lease_probe, coordinator, limit).await {
            Ok(found) => {
                last = status::render(&found, output.rows(), &output.frame());
                last.clone()
            }
            Err(error) => format!("{error}\n\nThe last answer:\n{last}"),
        };
        match &screen {
            Some(screen) => screen.draw(&shown),
            None => output.print(&shown),
        }
    }
}
