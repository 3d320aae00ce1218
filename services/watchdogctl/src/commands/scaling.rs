//! `scaling`

use super::machine_readable;
use crate::args::{Format, ScalingArgs};
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::program::Program;
use crate::render::{self, Frame};

pub(crate) async fn run(
    dialer: &ProgramDialer,
    args: &ScalingArgs,
    frame: &Frame,
) -> Result<String, CommandError> {
    let coordinator = dialer.coordinator().await?;
    let answer = if args.shoots.is_empty() {
        fetch::scalings(&coordinator, &args.direction).await?
    } else {
        fetch::scalings_of(&coordinator, &args.shoots).await?
    };
    let format = args.format.output;
    if let Some(text) = machine_readable(format, "scaling.v1.ListScalingResponse", &answer) {
        return text;
    }
    let missing = fetch::missing(Program::ScalingCoordinator, answer.completeness.as_ref());
    let table = render::scaling::render(&answer.scalings, format == Format::Wide, frame);
    Ok(render::missing(&missing, frame) + &table)
}
