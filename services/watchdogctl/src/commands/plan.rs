//! `plan`

use watchdog_proto::scaling::v1::Direction;

use super::{CommandAnswer, Shape};
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::render::{self, message, text};

pub(crate) async fn run(
    dialer: &ProgramDialer,
    shoot: &str,
    direction: Direction,
    shape: Shape,
) -> Result<CommandAnswer, CommandError> {
    let plan = fetch::plan(&dialer.coordinator().await?, shoot, direction).await?;
    shape.answer(
        || message::value("scaling.v1.PlanScalingResponse", &plan),
        |frame| {
            let shown = render::plan::render(&text::direction(direction), &plan, frame);
            format!("{shoot} {shown}")
        },
    )
}
