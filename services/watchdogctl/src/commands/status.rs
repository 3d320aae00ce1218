//! `status`

use std::time::Duration;

use super::{CommandAnswer, Shape};
use crate::args::StatusArgs;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::output::{LiveScreen, Output};
use crate::render::{Frame, status};

/// Between two updates.
const INTERVAL: Duration = Duration::from_secs(2);

pub(crate) async fn run(
    dialer: &ProgramDialer,
    args: &StatusArgs,
    shape: Shape,
) -> Result<CommandAnswer, CommandError> {
    let found = fetch::status::status(dialer, args.limit).await;
    let answer = shape.answer(
        || status::value(&found, &shape.frame),
        |frame| status::render(&found, None, frame),
    )?;
    let plain = Frame {
        color: false,
        ..shape.frame
    };
    let headline = status::headline(&found, &plain);
    Ok(answer.with_headline(headline).with_code(found.code()))
}

/// Shows the status again and again, until it is interrupted. A program that cannot be reached is waited for.
pub(crate) async fn watch(dialer: &ProgramDialer, args: &StatusArgs, output: &Output) {
    let watch = redraw(dialer, args.limit, output);
    tokio::select! {
        () = watch => {}
        // The usual way to end it. A process that cannot be interrupted is killed.
        _ = tokio::signal::ctrl_c() => {}
    }
}

async fn redraw(dialer: &ProgramDialer, limit: u16, output: &Output) {
    let screen = LiveScreen::open(output);
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = String::new();
    loop {
        ticks.tick().await;
        let found = fetch::status::status(dialer, limit).await;
        let mut shown = status::render(&found, output.rows(), &output.frame());
        if found.is_unknown() {
            shown.push_str(&format!("\nThe last answer:\n{last}"));
        } else {
            last.clone_from(&shown);
        }
        match &screen {
            Some(screen) => screen.draw(&shown),
            None => output.print(&shown),
        }
    }
}
