//! `plan`

use watchdog_proto::scaling::v1::Direction;

use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::render::{self, Frame, text};

pub(crate) async fn run(
    dialer: &ProgramDialer,
    shoot: &str,
    direction: Direction,
    frame: &Frame,
) -> Result<String, CommandError> {
    let plan = fetch::plan(&dialer.coordinator().await?, shoot, direction).await?;
    let shown = render::plan::render(&text::direction(direction), &plan, frame);
    Ok(format!("{shoot} {shown}"))
}
