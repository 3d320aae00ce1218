//! `shoot`

use serde_json::{Value, json};
use watchdog_client::consumer::ScalingCoordinator;
use watchdog_proto::scaling::v1::{Direction, PlanScalingResponse, ShootScaling};

use super::{CommandAnswer, Shape};
use crate::connect::ProgramDialer;
use crate::error::{CommandError, UNREACHABLE};
use crate::fetch::{self, Missing};
use crate::program::Program;
use crate::render::message::{self, field};
use crate::render::shoot::{self, ShootExplanation};

pub(crate) async fn run(
    dialer: &ProgramDialer,
    name: &str,
    shape: Shape,
) -> Result<CommandAnswer, CommandError> {
    let found = read(dialer, name).await?;
    let value = || {
        let mut value = json!({"shoot": found.name, "missingReplicas": found.missing});
        field(&mut value, "verdict", "probe.v1.Verdict", found.verdict.as_ref())?;
        field(
            &mut value,
            "scaling",
            "scaling.v1.ShootScaling",
            found.scaling.as_ref(),
        )?;
        field(
            &mut value,
            "plan",
            "scaling.v1.PlanScalingResponse",
            found.plan.as_ref(),
        )?;
        let unanswered = found.unanswered.iter();
        let unanswered =
            unanswered.map(|(program, error)| json!({"program": program, "error": error.what()}));
        message::set(&mut value, "unanswered", unanswered.collect::<Value>());
        Ok(value)
    };
    let answer = shape.answer(value, |frame| shoot::render(&found, frame))?;
    Ok(answer.with_code(found.unanswered.first().map_or(0, |(_, error)| error.code)))
}

/// All that is known of a shoot, also if one of the programs does not answer.
async fn read(dialer: &ProgramDialer, name: &str) -> Result<ShootExplanation, CommandError> {
    let (verdict, scaling) = tokio::join!(
        async { fetch::verdict(&dialer.lease_probe().await?, name).await },
        async {
            let coordinator = dialer.coordinator().await?;
            let (scaling, completeness) = fetch::scaling(&coordinator, name).await?;
            let plan = plan(&coordinator, name, scaling.as_ref()).await?;
            Ok::<_, CommandError>((scaling, plan, completeness))
        },
    );
    let mut found = ShootExplanation {
        name: name.to_owned(),
        ..ShootExplanation::default()
    };
    let mut missing = Missing::default();
    match verdict {
        Ok((verdict, completeness)) => {
            missing.add(Program::LeaseProbe, completeness.as_ref());
            found.verdict = verdict;
        }
        Err(error) => found.unanswered.push((Program::LeaseProbe.as_str(), error)),
    }
    match scaling {
        Ok((scaling, plan, completeness)) => {
            missing.add(Program::ScalingCoordinator, completeness.as_ref());
            (found.scaling, found.plan) = (scaling, plan);
        }
        Err(error) => {
            let program = Program::ScalingCoordinator.as_str();
            found.unanswered.push((program, error));
        }
    }
    found.missing = missing.into_names();
    // A shoot that a program does not know is an error, and so are options that are wrong. A program that is away
    // hides nothing of the other one.
    let is_away = |(_, error): &(&str, CommandError)| error.code == UNREACHABLE;
    if found.unanswered.len() == 2 || !found.unanswered.iter().all(is_away) {
        let at = found
            .unanswered
            .iter()
            .position(|error| !is_away(error))
            .unwrap_or(0);
        return Err(found.unanswered.swap_remove(at).1);
    }
    Ok(found)
}

/// The plan of the present direction; none while the shoot is held.
async fn plan(
    coordinator: &ScalingCoordinator,
    name: &str,
    scaling: Option<&ShootScaling>,
) -> Result<Option<PlanScalingResponse>, CommandError> {
    match scaling.map(ShootScaling::direction) {
        Some(direction @ (Direction::Down | Direction::Up)) => {
            fetch::plan(coordinator, name, direction).await.map(Some)
        }
        _ => Ok(None),
    }
}
