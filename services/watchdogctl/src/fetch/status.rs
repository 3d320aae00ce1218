//! Reads what the screen of a seed shows.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use jiff::Timestamp;
use prost::{Message, Name};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use watchdog_client::consumer::{CALL_TIMEOUT, LeaseProbe, ScalingCoordinator};
use watchdog_client::follow::{Received, Update};
use watchdog_client::wire::MAX_SHOOTS;
use watchdog_proto::probe::v1::{
    GetSeedSummaryResponse, ListVerdictsResponse, Outcome, WatchVerdictsRequest,
};
use watchdog_proto::scaling::v1::{
    Direction, FlowState, ListScalingRequest, ListScalingResponse, Mode, ShootScaling, WatchScalingRequest,
};

use super::{Missing, count, held_down, missing_of, printable, scaling_page, seed_summary, verdict_page};
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::program::Program;
use crate::render::check::Severity;
use crate::render::pods;
use crate::render::status::{SeedStatus, StatusRow};
use crate::render::text::OUTCOMES;

/// The answers of the coordinator for the screen.
struct ScalingPages {
    held_down: Vec<ShootScaling>,
    moving: ListScalingResponse,
    down: ListScalingResponse,
    unprotected: ListScalingResponse,
}

/// The answers of lease-probe for the screen.
struct VerdictPages {
    summary: GetSeedSummaryResponse,
    /// One page of each outcome that needs attention.
    urgent: Vec<ListVerdictsResponse>,
}

/// The screen of a seed: every shoot that is held down, one page of each outcome, and the shoots whose dependants are
/// on their way. Of a program that does not answer, it has the reason.
pub(crate) async fn status(dialer: &ProgramDialer, limit: u16) -> SeedStatus {
    let most = i32::from(limit);
    let (verdicts, scalings, weeder, pods) = tokio::join!(
        Box::pin(async {
            let lease_probe = dialer.lease_probe().await?;
            let pages = verdict_pages(&lease_probe, most).await?;
            Ok::<_, CommandError>((lease_probe, pages))
        }),
        Box::pin(async {
            let coordinator = dialer.coordinator().await?;
            let pages = Box::pin(scaling_pages(&coordinator, most)).await?;
            Ok::<_, CommandError>((coordinator, pages))
        }),
        // It says nothing about shoots, but a dead one must not stand beside good news.
        Box::pin(async {
            match dialer.programs().any(|program| program == Program::Weeder) {
                true => missing_of(dialer, Program::Weeder).await,
                false => Ok(Vec::new()),
            }
        }),
        Box::pin(dialer.pods()),
    );
    let (mut status, mut missing) = (SeedStatus::default(), Missing::default());
    let mut rows: BTreeMap<String, StatusRow> = BTreeMap::new();
    match pods {
        Ok(pods) => {
            let findings = pods::findings(&pods.unwrap_or_default(), Timestamp::now());
            let wrong = findings
                .into_iter()
                .filter(|finding| finding.severity == Severity::Wrong);
            status.replicas.extend(wrong);
        }
        Err(error) => status.unanswered.push(("the Pods", error)),
    }
    let mut unanswered = |program: Program, error| status.unanswered.push((program.as_str(), error));
    let lease_probe = match verdicts {
        Ok((lease_probe, pages)) => {
            missing.add(Program::LeaseProbe, pages.summary.completeness.as_ref());
            status.counts = { OUTCOMES.iter() }
                .map(|outcome| (*outcome, shoots_with(&pages.summary, *outcome)))
                .collect();
            for page in pages.urgent {
                missing.add(Program::LeaseProbe, page.completeness.as_ref());
                status.not_read += page.total_size - count(page.verdicts.len());
                for verdict in page.verdicts {
                    row(&mut rows, &verdict.shoot).verdict = Some(verdict.clone());
                }
            }
            Some(lease_probe)
        }
        Err(error) => {
            unanswered(Program::LeaseProbe, error);
            None
        }
    };
    let coordinator = match scalings {
        Ok((coordinator, pages)) => {
            for page in [&pages.moving, &pages.down, &pages.unprotected] {
                missing.add(Program::ScalingCoordinator, page.completeness.as_ref());
            }
            let moving = pages.moving.scalings.into_iter().chain(pages.down.scalings);
            for scaling in moving.chain(pages.held_down) {
                row(&mut rows, &scaling.shoot).scaling = Some(scaling.clone());
            }
            status.unprotected_count = pages.unprotected.total_size;
            status.unprotected = pages.unprotected.scalings;
            Some(coordinator)
        }
        Err(error) => {
            unanswered(Program::ScalingCoordinator, error);
            None
        }
    };
    match weeder {
        Ok(replicas) => missing.extend(replicas),
        Err(error) => status.unanswered.push((Program::Weeder.as_str(), error)),
    }
    for (program, error) in complete_rows(lease_probe.as_ref(), coordinator.as_ref(), &mut rows).await {
        status.unanswered.push((program.as_str(), error));
    }
    status.rows = rows.into_values().collect();
    crate::render::status::sort(&mut status.rows);
    // All that is held down stays, however many.
    let most = usize::from(limit).max(status.held_down());
    status.not_read += count(status.rows.len().saturating_sub(most));
    status.rows.truncate(most);
    status.missing = missing.into_names();
    status
}

/// Of the shoots that need no attention, only the number is read.
async fn verdict_pages(lease_probe: &LeaseProbe, limit: i32) -> Result<VerdictPages, CommandError> {
    let summary = seed_summary(lease_probe).await?;
    let is_calm = |outcome: &Outcome| matches!(outcome, Outcome::Healthy | Outcome::Skipped);
    let urgent = OUTCOMES
        .iter()
        .filter(|outcome| !is_calm(outcome) && shoots_with(&summary, **outcome) > 0)
        .map(|outcome| verdict_page(lease_probe, std::slice::from_ref(outcome), limit, String::new()));
    let urgent = try_join_all(urgent).await?;
    Ok(VerdictPages { summary, urgent })
}

fn shoots_with(summary: &GetSeedSummaryResponse, outcome: Outcome) -> i32 {
    let mut counts = { summary.summary.iter() }.flat_map(|summary| &summary.outcomes);
    let found = counts.find(|count| count.outcome() == outcome);
    found.map_or(0, |count| i32::try_from(count.shoots).unwrap_or(i32::MAX))
}

async fn scaling_pages(coordinator: &ScalingCoordinator, limit: i32) -> Result<ScalingPages, CommandError> {
    let moving = ListScalingRequest {
        page_size: limit,
        states: vec![FlowState::Running.into(), FlowState::Failed.into()],
        ..ListScalingRequest::default()
    };
    let down = ListScalingRequest {
        page_size: limit,
        directions: vec![Direction::Down.into()],
        ..ListScalingRequest::default()
    };
    let (held_down, moving, down, unprotected) = futures::try_join!(
        held_down(coordinator),
        scaling_page(coordinator, moving),
        scaling_page(coordinator, down),
        unprotected_page(coordinator, limit),
    )?;
    Ok(ScalingPages {
        held_down,
        moving,
        down,
        unprotected,
    })
}

/// One page of the shoots that are not in mode protect.
async fn unprotected_page(
    coordinator: &ScalingCoordinator,
    page_size: i32,
) -> Result<ListScalingResponse, CommandError> {
    let request = ListScalingRequest {
        page_size,
        modes: vec![Mode::Observe.into(), Mode::Off.into()],
        ..ListScalingRequest::default()
    };
    let mut page = scaling_page(coordinator, request).await?;
    // An older coordinator knows no modes, and lists all shoots.
    if page
        .scalings
        .iter()
        .any(|scaling| scaling.mode() == Mode::Unspecified)
    {
        (page.scalings, page.total_size) = (Vec::new(), 0);
    }
    Ok(page)
}

fn row<'a>(rows: &'a mut BTreeMap<String, StatusRow>, shoot: &str) -> &'a mut StatusRow {
    let row = rows.entry(shoot.to_owned()).or_default();
    shoot.clone_into(&mut row.shoot);
    row
}

/// Reads what is absent of each row: the states of shoots with a verdict, and the verdicts on shoots that are held down
/// or on their way back. Returns the programs that did not answer.
async fn complete_rows(
    lease_probe: Option<&LeaseProbe>,
    coordinator: Option<&ScalingCoordinator>,
    rows: &mut BTreeMap<String, StatusRow>,
) -> Vec<(Program, CommandError)> {
    let without = |absent: fn(&StatusRow) -> bool| -> Vec<String> {
        let rows = rows.values().filter(|row| absent(row));
        rows.map(|row| row.shoot.clone()).take(MAX_SHOOTS).collect()
    };
    let (shoots, others) = (
        without(|row| row.scaling.is_none()),
        without(|row| row.verdict.is_none()),
    );
    let scalings = first_snapshot(Program::ScalingCoordinator, async |stop, on_update| {
        if let Some(coordinator) = coordinator.filter(|_| !shoots.is_empty()) {
            let request = WatchScalingRequest {
                shoots,
                ..WatchScalingRequest::default()
            };
            coordinator.follow(request, stop, on_update).await;
        }
    });
    let verdicts = first_snapshot(Program::LeaseProbe, async |stop, on_update| {
        if let Some(lease_probe) = lease_probe.filter(|_| !others.is_empty()) {
            let request = WatchVerdictsRequest {
                shoots: others,
                ..WatchVerdictsRequest::default()
            };
            lease_probe.follow(request, stop, on_update).await;
        }
    });
    let (scalings, verdicts) = tokio::join!(scalings, verdicts);
    let mut unanswered = Vec::new();
    match scalings {
        Ok(found) => {
            for (shoot, scaling) in found {
                row(rows, &shoot).scaling = Some(scaling);
            }
        }
        Err(error) => unanswered.push((Program::ScalingCoordinator, error)),
    }
    match verdicts {
        Ok(found) => {
            for (shoot, verdict) in found {
                row(rows, &shoot).verdict = Some(verdict);
            }
        }
        Err(error) => unanswered.push((Program::LeaseProbe, error)),
    }
    unanswered
}

/// The first snapshot of the stream that `follow` opens, printable; empty if it opens none.
async fn first_snapshot<V: Message + Name + Default>(
    program: Program,
    follow: impl AsyncFnOnce(&CancellationToken, &mut dyn FnMut(Update<String, V>)),
) -> Result<BTreeMap<String, V>, CommandError> {
    let (stop, mut found) = (CancellationToken::new(), None);
    let mut on_update = |update| {
        if found.is_none() {
            found = match update {
                Update::Snapshot(items, _) => Some(Ok(items)),
                Update::Lost(failure) => Some(Err(failure)),
                Update::Upsert(..) | Update::Removed(_) | Update::Completeness(_) | Update::Skipped(_) => {
                    None
                }
            };
        }
        if found.is_some() {
            stop.cancel();
        }
    };
    // A server that opens a stream and sends nothing is given up like one that does not answer a call.
    let ended = tokio::time::timeout(CALL_TIMEOUT, follow(&stop, &mut on_update)).await;
    if ended.is_err() {
        let status = Status::deadline_exceeded("no answer within 15 s");
        return Err(CommandError::of_status(program.as_str(), &status));
    }
    let found = found.unwrap_or_else(|| Ok(BTreeMap::new()));
    let found = found.map_err(|failure| CommandError::of_failure(program.as_str(), &failure))?;
    let printable = |(key, received): (String, Received<V>)| Ok((key, printable::message(received.value)?));
    found.into_iter().map(printable).collect()
}
