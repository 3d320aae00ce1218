//! `verdicts`

use super::{CommandAnswer, Shape};
use crate::args::VerdictsArgs;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::program::Program;
use crate::render::{self, message};

pub(crate) async fn run(
    dialer: &ProgramDialer,
    args: &VerdictsArgs,
    shape: Shape,
) -> Result<CommandAnswer, CommandError> {
    let lease_probe = dialer.lease_probe().await?;
    let answer = if args.shoots.is_empty() {
        fetch::verdicts(&lease_probe, &args.outcome).await?
    } else {
        fetch::verdicts_on(&lease_probe, &args.shoots).await?
    };
    let missing = fetch::missing(Program::LeaseProbe, answer.completeness.as_ref());
    let shown = shape.answer(
        || message::value("probe.v1.ListVerdictsResponse", &answer),
        |frame| {
            let table = render::verdicts::render(&answer.verdicts, shape.is_wide(), frame);
            render::missing(&missing, frame) + &table
        },
    )?;
    Ok(shown.with_headline(format!("{} verdicts", answer.total_size)))
}
