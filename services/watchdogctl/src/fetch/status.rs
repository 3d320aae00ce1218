//! Reads what the screen of a seed shows.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use tokio_util::sync::CancellationToken;
use watchdog_client::consumer::{LeaseProbe, ScalingCoordinator};
use watchdog_client::follow::{Received, Update};
use watchdog_client::wire::MAX_SHOOTS;
use watchdog_proto::probe::v1::{Outcome, WatchVerdictsRequest};
use watchdog_proto::scaling::v1::{
    Direction, FlowState, ListScalingRequest, ListScalingResponse, Mode, WatchScalingRequest,
};

use super::{Missing, count, printable, scaling_page, verdict_page};
use crate::error::CommandError;
use crate::program::Program;
use crate::render::status::{SeedStatus, StatusRow};
use crate::render::text::OUTCOMES;

/// The screen of a seed: one page of each outcome, and the shoots whose dependants are on their way.
pub(crate) async fn status(
    lease_probe: &LeaseProbe,
    coordinator: &ScalingCoordinator,
    limit: u16,
) -> Result<SeedStatus, CommandError> {
    let limit = i32::from(limit);
    let verdict_pages = OUTCOMES.iter().map(async |outcome| {
        // Of the shoots that need no attention, only the number.
        let is_calm = matches!(outcome, Outcome::Healthy | Outcome::Skipped);
        let size = if is_calm { 1 } else { limit };
        let page = verdict_page(lease_probe, &[*outcome], size, String::new()).await?;
        Ok::<_, CommandError>((*outcome, is_calm, page))
    });
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
    let (pages, unprotected, moving, down) = futures::try_join!(
        try_join_all(verdict_pages),
        unprotected_page(coordinator, limit),
        scaling_page(coordinator, moving),
        scaling_page(coordinator, down),
    )?;
    let (mut status, mut missing) = (SeedStatus::default(), Missing::default());
    let mut rows: BTreeMap<String, StatusRow> = BTreeMap::new();
    for (outcome, is_calm, page) in pages {
        missing.add(Program::LeaseProbe, page.completeness.as_ref());
        status.counts.push((outcome, page.total_size));
        if !is_calm {
            status.not_read += page.total_size - count(page.verdicts.len());
            for verdict in page.verdicts {
                row(&mut rows, &verdict.shoot).verdict = Some(verdict.clone());
            }
        }
    }
    for page in [moving, down] {
        missing.add(Program::ScalingCoordinator, page.completeness.as_ref());
        for scaling in page.scalings {
            row(&mut rows, &scaling.shoot).scaling = Some(scaling.clone());
        }
    }
    missing.add(Program::ScalingCoordinator, unprotected.completeness.as_ref());
    (status.unprotected, status.unprotected_count) = (unprotected.scalings, unprotected.total_size);
    complete_rows(lease_probe, coordinator, &mut rows).await?;
    status.rows = rows.into_values().collect();
    crate::render::status::sort(&mut status.rows);
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    status.not_read += count(status.rows.len().saturating_sub(most));
    status.rows.truncate(most);
    status.missing = missing.into_names();
    Ok(status)
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

/// Reads what is absent of each row: the states of shoots with a verdict, and the verdicts on shoots that are on their
/// way back.
async fn complete_rows(
    lease_probe: &LeaseProbe,
    coordinator: &ScalingCoordinator,
    rows: &mut BTreeMap<String, StatusRow>,
) -> Result<(), CommandError> {
    let without = |absent: fn(&StatusRow) -> bool| -> Vec<String> {
        let rows = rows.values().filter(|row| absent(row));
        rows.map(|row| row.shoot.clone()).take(MAX_SHOOTS).collect()
    };
    let (shoots, others) = (
        without(|row| row.scaling.is_none()),
        without(|row| row.verdict.is_none()),
    );
    let scalings = first_snapshot(Program::ScalingCoordinator, async |stop, on_update| {
        if !shoots.is_empty() {
            let request = WatchScalingRequest {
                shoots,
                ..WatchScalingRequest::default()
            };
            coordinator.follow(request, stop, on_update).await;
        }
    });
    let verdicts = first_snapshot(Program::LeaseProbe, async |stop, on_update| {
        if !others.is_empty() {
            let request = WatchVerdictsRequest {
                shoots: others,
                ..WatchVerdictsRequest::default()
            };
            lease_probe.follow(request, stop, on_update).await;
        }
    });
    let (scalings, verdicts) = tokio::join!(scalings, verdicts);
    for (shoot, scaling) in scalings? {
        row(rows, &shoot).scaling = Some(printable::message(scaling.value)?);
    }
    for (shoot, verdict) in verdicts? {
        row(rows, &shoot).verdict = Some(printable::message(verdict.value)?);
    }
    Ok(())
}

/// The first snapshot of the stream that `follow` opens; empty if it opens none.
async fn first_snapshot<V>(
    program: Program,
    follow: impl AsyncFnOnce(&CancellationToken, &mut dyn FnMut(Update<String, V>)),
) -> Result<BTreeMap<String, Received<V>>, CommandError> {
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
    follow(&stop, &mut on_update).await;
    let found = found.unwrap_or_else(|| Ok(BTreeMap::new()));
    found.map_err(|failure| CommandError::of_failure(program.as_str(), &failure))
}
