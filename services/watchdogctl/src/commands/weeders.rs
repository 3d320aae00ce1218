//! `weeders` and `services`

use crate::args::ServiceFilterArgs;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch::{self, Missing};
use crate::render::{self, Frame};

pub(crate) async fn weeders(
    dialer: &ProgramDialer,
    filter: &ServiceFilterArgs,
    frame: &Frame,
) -> Result<String, CommandError> {
    let mut missing = Missing::default();
    let weeders = fetch::weeders(&dialer.weeder().await?, filter, &mut missing).await?;
    let shown = render::weeders::weeders(&weeders, frame);
    Ok(render::missing(&missing.into_names(), frame) + &shown)
}

pub(crate) async fn services(
    dialer: &ProgramDialer,
    filter: &ServiceFilterArgs,
    frame: &Frame,
) -> Result<String, CommandError> {
    let mut missing = Missing::default();
    let services = fetch::services(&dialer.weeder().await?, filter, &mut missing).await?;
    let shown = render::weeders::services(&services, frame);
    Ok(render::missing(&missing.into_names(), frame) + &shown)
}
