//! `report`

use serde_json::{Value, json};

use super::{CommandAnswer, Shape};
use crate::args::Format;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch::{self, Missing};
use crate::program::Program;
use crate::render::incident::prevention;
use crate::render::message::{self, field};
use crate::render::report::{self, IncidentReport};

pub(crate) async fn run(
    dialer: &ProgramDialer,
    shoot: &str,
    shape: Shape,
) -> Result<CommandAnswer, CommandError> {
    let report = read(dialer, shoot).await?;
    let code = report.verdict_error.as_ref().map_or(0, |error| error.code);
    if shape.format == Format::Markdown {
        let text = report::markdown(&report, &shape.frame);
        return Ok(CommandAnswer::of_text(text).with_code(code));
    }
    let value = || {
        let mut value = json!({"shoot": report.name, "missingReplicas": report.missing});
        field(&mut value, "verdict", "probe.v1.Verdict", report.verdict.as_ref())?;
        field(
            &mut value,
            "scaling",
            "scaling.v1.ShootScaling",
            Some(&report.scaling),
        )?;
        if let Some(error) = &report.verdict_error {
            message::set(&mut value, "verdictError", error.what());
        }
        let incidents = [
            ("incident", &report.scaling.incident),
            ("lastIncident", &report.scaling.last_incident),
        ];
        let prevented = incidents.into_iter().filter_map(|(name, incident)| {
            let prevented = prevention(incident.as_ref()?, shape.frame.now);
            Some((name, json!({"nodes": prevented.nodes, "text": prevented.text})))
        });
        message::set(&mut value, "prevented", prevented.collect::<Value>());
        Ok(value)
    };
    let answer = shape.answer(value, |frame| report::render(&report, frame))?;
    Ok(answer.with_code(code))
}

/// The incidents are those of the coordinator. Without lease-probe, only the verdict of now is missing.
async fn read(dialer: &ProgramDialer, shoot: &str) -> Result<IncidentReport, CommandError> {
    let (verdict, scaling) = tokio::join!(
        async { fetch::verdict(&dialer.lease_probe().await?, shoot).await },
        async { fetch::scaling(&dialer.coordinator().await?, shoot).await },
    );
    let (scaling, of_scaling) = scaling?;
    let mut missing = Missing::default();
    missing.add(Program::ScalingCoordinator, of_scaling.as_ref());
    let (verdict, verdict_error) = match verdict {
        Ok((verdict, of_verdict)) => {
            missing.add(Program::LeaseProbe, of_verdict.as_ref());
            (verdict, None)
        }
        Err(error) => (None, Some(error)),
    };
    Ok(IncidentReport {
        name: shoot.to_owned(),
        scaling: scaling.unwrap_or_default(),
        verdict,
        verdict_error,
        missing: missing.into_names(),
    })
}
