//! `history`

use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::render::{self, Frame};

pub(crate) async fn run(dialer: &ProgramDialer, shoot: &str, frame: &Frame) -> Result<String, CommandError> {
    let coordinator = dialer.coordinator().await?;
    let (scaling, _) = fetch::scaling(&coordinator, shoot).await?;
    Ok(render::history::render(&scaling.unwrap_or_default(), frame))
}
