//! `verdicts`

use super::machine_readable;
use crate::args::{Format, VerdictsArgs};
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::program::Program;
use crate::render::{self, Frame};

pub(crate) async fn run(
    dialer: &ProgramDialer,
    args: &VerdictsArgs,
    frame: &Frame,
) -> Result<String, CommandError> {
    let lease_probe = dialer.lease_probe().await?;
    let answer = if args.shoots.is_empty() {
        fetch::verdicts(&lease_probe, &args.outcome).await?
    } else {
        fetch::verdicts_on(&lease_probe, &args.shoots).await?
    };
    let format = args.format.output;
    if let Some(text) = machine_readable(format, "probe.v1.ListVerdictsResponse", &answer) {
        return text;
    }
    let missing = fetch::missing(Program::LeaseProbe, answer.completeness.as_ref());
    let table = render::verdicts::render(&answer.verdicts, format == Format::Wide, frame);
    Ok(render::missing(&missing, frame) + &table)
}
