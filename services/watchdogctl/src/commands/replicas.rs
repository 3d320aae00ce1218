//! `replicas`

use std::collections::BTreeMap;

use super::{CommandAnswer, Shape};
use crate::args::ServiceFilterArgs;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::program::Program;
use crate::render::replicas::{self, Shares};

pub(crate) async fn run(dialer: &ProgramDialer, shape: Shape) -> Result<CommandAnswer, CommandError> {
    let mut programs = Vec::new();
    for program in dialer.programs() {
        programs.push(shares(dialer, program).await?);
    }
    shape.answer(
        || Ok(replicas::value(&programs)),
        |frame| replicas::render(&programs, frame),
    )
}

async fn shares(dialer: &ProgramDialer, program: Program) -> Result<Shares, CommandError> {
    let (replicas, items, missing): (Vec<String>, _, _) = match program {
        Program::LeaseProbe => {
            let answer = fetch::verdicts(&dialer.lease_probe().await?, &[]).await?;
            let missing = fetch::missing(program, answer.completeness.as_ref());
            let replicas = answer.verdicts.into_iter().map(|verdict| verdict.observer);
            (replicas.collect(), "shoots", missing)
        }
        Program::ScalingCoordinator => {
            let answer = fetch::scalings(&dialer.coordinator().await?, &[]).await?;
            let missing = fetch::missing(program, answer.completeness.as_ref());
            let replicas = answer.scalings.into_iter().map(|scaling| scaling.replica);
            (replicas.collect(), "shoots", missing)
        }
        Program::Weeder => {
            let filter = ServiceFilterArgs::default();
            let answer = fetch::services(&dialer.weeder().await?, &filter).await?;
            let missing = fetch::missing(program, answer.completeness.as_ref());
            let replicas = answer.services.into_iter().map(|service| service.observer);
            (replicas.collect(), "services", missing)
        }
    };
    let mut owned: BTreeMap<String, usize> = BTreeMap::new();
    for owner in replicas {
        *owned.entry(owner).or_default() += 1;
    }
    Ok(Shares {
        program: program.as_str(),
        items,
        owned,
        missing,
    })
}
