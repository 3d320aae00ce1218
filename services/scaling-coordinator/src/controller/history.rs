//! Reports the end of an incident: as a log line, in a counter and in histograms.

use std::time::Duration;

use crate::domain::Direction;
use crate::domain::decision::ReportedOutcome;
use crate::domain::incident::Incident;
use crate::metrics::{INCIDENT_COMPARISONS, INCIDENT_LEADS, INCIDENT_STAGES, INCIDENTS, IncidentStage};

/// Counts an incident and its stages, and in mode observe compares it with what the other writers did.
pub(super) fn measure(incident: &Incident) {
    INCIDENTS.inc(());
    for (stage, took) in [
        (
            IncidentStage::LastRenewalToVerdict,
            incident.last_renewal_to_verdict,
        ),
        (IncidentStage::VerdictToFirstWrite, incident.until_first_write()),
        (IncidentStage::VerdictToLastWrite, incident.until_last_write()),
        (IncidentStage::HealthyToRestored, incident.healthy_to_restored()),
    ] {
        if let Some(took) = took {
            INCIDENT_STAGES.record(stage, took);
        }
    }
    for direction in [Direction::Down, Direction::Up] {
        let Some(compared) = incident.compare(direction) else {
            continue;
        };
        INCIDENT_COMPARISONS.inc((direction, compared.result));
        if let Some(micros) = compared.lead_micros {
            let lead = Duration::from_micros(micros.unsigned_abs());
            INCIDENT_LEADS.record((direction, compared.result), lead);
        }
    }
}

/// The durable record of an incident. docs/reference/monitoring.md describes the line; its fields are stable.
pub(super) fn log(shoot: &str, incident: &Incident) {
    let seconds = |duration: Duration| (duration.as_secs_f64() * 1_000.0).round() / 1_000.0;
    let zones = incident.peak.iter().flat_map(|peak| &peak.zones);
    let zones: Vec<String> = zones
        .map(|(zone, candidates, expired)| format!("{zone}={expired}/{candidates}"))
        .collect();
    let (down, up) = (incident.compare(Direction::Down), incident.compare(Direction::Up));
    tracing::info!(
        shoot,
        outcome = incident.outcome.map_or("unknown", ReportedOutcome::as_str),
        last_renewal_to_verdict_seconds = incident.last_renewal_to_verdict.map(seconds),
        verdict_to_first_write_seconds = incident.until_first_write().map(seconds),
        verdict_to_last_write_seconds = incident.until_last_write().map(seconds),
        verdict_to_healthy_seconds = incident.until(incident.healthy).map(seconds),
        verdict_to_restored_seconds = incident.until(incident.restored).map(seconds),
        scaled_down = incident.scaled(Direction::Down),
        scaled_up = incident.scaled(Direction::Up),
        failed_writes = incident.failed_writes,
        peak_expired_fraction = incident.peak_expired_share(),
        zones = zones.join(","),
        in_mode_observe = incident.in_mode_observe(),
        first_to_scale_down = down.map(|compared| compared.first),
        scale_down_lead_seconds = down.and_then(|compared| compared.lead_seconds()),
        first_to_scale_up = up.map(|compared| compared.first),
        scale_up_lead_seconds = up.and_then(|compared| compared.lead_seconds()),
        "an incident has ended"
    );
}

#[cfg(test)]
mod tests;
