//! `shoot`

use watchdog_client::consumer::ScalingCoordinator;
use watchdog_proto::scaling::v1::{Direction, PlanScalingResponse, ShootScaling};

use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch::{self, Missing};
use crate::program::Program;
use crate::render::Frame;
use crate::render::shoot::{self, ShootExplanation};

pub(crate) async fn run(dialer: &ProgramDialer, name: &str, frame: &Frame) -> Result<String, CommandError> {
    let lease_probe = dialer.lease_probe().await?;
    let coordinator = dialer.coordinator().await?;
    let ((verdict, of_verdict), (scaling, of_scaling)) = futures::try_join!(
        fetch::verdict(&lease_probe, name),
        fetch::scaling(&coordinator, name)
    )?;
    let plan = plan(&coordinator, name, scaling.as_ref()).await?;
    let mut missing = Missing::default();
    missing.add(Program::LeaseProbe, of_verdict.as_ref());
    missing.add(Program::ScalingCoordinator, of_scaling.as_ref());
    let report = ShootExplanation {
        name: name.to_owned(),
        verdict,
        scaling,
        plan,
        missing: missing.into_names(),
    };
    Ok(shoot::render(&report, frame))
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
