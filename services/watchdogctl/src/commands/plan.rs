//! `plan`

use watchdog_proto::scaling::v1::Direction;

use crate::error::CommandError;
use crate::fetch::{self, Clients};
use crate::render::{self, Frame, text};

pub(crate) async fn run(
    clients: &Clients<'_>,
    shoot: &str,
    direction: Direction,
    frame: &Frame,
) -> Result<String, CommandError> {
    let plan = fetch::plan(&clients.coordinator().await?, shoot, direction).await?;
    let shown = render::plan::render(&text::direction(direction), &plan, frame);
    Ok(format!("{shoot} {shown}"))
}
