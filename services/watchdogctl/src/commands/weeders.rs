//! `weeders`

use crate::args::ServiceFilterArgs;
use crate::error::CommandError;
use crate::fetch::{self, Clients, Missing};
use crate::render::{self, Frame};

pub(crate) async fn run(
    clients: &Clients<'_>,
    filter: &ServiceFilterArgs,
    frame: &Frame,
) -> Result<String, CommandError> {
    let mut missing = Missing::default();
    let weeders = fetch::weeders(&clients.weeder().await?, filter, &mut missing).await?;
    let shown = render::weeders::weeders(&weeders, frame);
    Ok(render::missing(&missing.into_names(), frame) + &shown)
}
