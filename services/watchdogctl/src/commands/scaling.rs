//! `scaling`

use super::{CommandAnswer, Shape};
use crate::args::ScalingArgs;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::program::Program;
use crate::render::{self, message};

pub(crate) async fn run(
    dialer: &ProgramDialer,
    args: &ScalingArgs,
    shape: Shape,
) -> Result<CommandAnswer, CommandError> {
    let coordinator = dialer.coordinator().await?;
    let answer = if args.shoots.is_empty() {
        fetch::scalings(&coordinator, &args.direction).await?
    } else {
        fetch::scalings_of(&coordinator, &args.shoots).await?
    };
    let missing = fetch::missing(Program::ScalingCoordinator, answer.completeness.as_ref());
    let shown = shape.answer(
        || message::value("scaling.v1.ListScalingResponse", &answer),
        |frame| {
            let table = render::scaling::render(&answer.scalings, shape.is_wide(), frame);
            render::missing(&missing, frame) + &table
        },
    )?;
    Ok(shown.with_headline(format!("{} shoots", answer.total_size)))
}
