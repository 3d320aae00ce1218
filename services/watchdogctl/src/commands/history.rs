//! `history`

use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::render::{self, Frame};

pub(crate) async fn run(dialer: &ProgramDialer, shoot: &str, frame: &Frame) -> Result<String, CommandError> {
    let coordinator = dialer.coordinator().await?;
    // A shoot that the seed does not have is an error, and not one without a history.
    fetch::scaling(&coordinator, shoot).await?;
    let events = fetch::events(&coordinator, shoot).await?;
    Ok(render::history::render(&events, frame))
}
