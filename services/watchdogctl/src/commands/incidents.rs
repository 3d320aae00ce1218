//! `incidents`

use super::seeds::ask_each;
use super::{CommandAnswer, Shape};
use crate::args::ConnectArgs;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::program::Program;
use crate::render::incidents::{self, SeedIncidents};

pub(crate) async fn run(connect: &ConnectArgs, shape: Shape) -> Result<CommandAnswer, CommandError> {
    let answers = ask_each(connect, async |dialer| of_seed(&dialer).await).await?;
    let codes = answers.iter().filter_map(|answer| answer.result.as_ref().err());
    let code = codes.map(|error| error.code).max().unwrap_or_default();
    let answer = shape.answer(
        || incidents::value(&answers, &shape.frame),
        |frame| incidents::render(&answers, frame),
    )?;
    Ok(answer.with_code(code))
}

async fn of_seed(dialer: &ProgramDialer) -> Result<SeedIncidents, CommandError> {
    let answer = fetch::scalings(&dialer.coordinator().await?, &[]).await?;
    let missing = fetch::missing(Program::ScalingCoordinator, answer.completeness.as_ref());
    let mut shoots = answer.scalings;
    shoots.retain(|scaling| scaling.incident.is_some() || scaling.last_incident.is_some());
    Ok(SeedIncidents { shoots, missing })
}
