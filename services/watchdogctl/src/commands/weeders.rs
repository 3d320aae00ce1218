//! `weeders` and `services`

use watchdog_proto::weeder::v1::{ListEndpointReadinessResponse, ListWeedersResponse};

use super::{CommandAnswer, Shape};
use crate::args::ServiceFilterArgs;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::program::Program;
use crate::render::{self, message};

pub(crate) async fn weeders(
    dialer: &ProgramDialer,
    filter: &ServiceFilterArgs,
    shape: Shape,
) -> Result<CommandAnswer, CommandError> {
    let answer: ListWeedersResponse = fetch::weeders(&dialer.weeder().await?, filter).await?;
    let missing = fetch::missing(Program::Weeder, answer.completeness.as_ref());
    shape.answer(
        || message::value("weeder.v1.ListWeedersResponse", &answer),
        |frame| render::missing(&missing, frame) + &render::weeders::weeders(&answer.weeders, frame),
    )
}

pub(crate) async fn services(
    dialer: &ProgramDialer,
    filter: &ServiceFilterArgs,
    shape: Shape,
) -> Result<CommandAnswer, CommandError> {
    let answer: ListEndpointReadinessResponse = fetch::services(&dialer.weeder().await?, filter).await?;
    let missing = fetch::missing(Program::Weeder, answer.completeness.as_ref());
    shape.answer(
        || message::value("weeder.v1.ListEndpointReadinessResponse", &answer),
        |frame| render::missing(&missing, frame) + &render::weeders::services(&answer.services, frame),
    )
}
