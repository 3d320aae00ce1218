//! Reads what the screen of a seed shows.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use tokio_util::sync::CancellationToken;
use watchdog_client::consumer::{LeaseProbe, ScalingCoordinator};
use watchdog_client::failure::Failure;
use watchdog_client::follow::{Received, Update};
use watchdog_proto::probe::v1::{Outcome, WatchVerdictsRequest};
use watchdog_proto::scaling::v1::{
    Direction, FlowState, ListScalingRequest, ListScalingResponse, Mode, WatchScalingRequest,
};

use super::{Missing, count, failed, scaling_page, verdict_page};
use crate::error::CommandError;
use crate::program::Program;
use crate::render::status::{SeedStatus, StatusRow};
use crate::render::text::OUTCOMES;

/// Shoots that one request may name.
const MAX_NAMES: usize = 1_000;

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
    let moving = [FlowState::Running, FlowState::Failed];
    let (pages, unprotected, moving, down) = futures::try_join!(
        try_join_all(verdict_pages),
        unprotected_page(coordinator, limit),
        scaling_page(coordinator, &[], &moving, limit, String::new()),
        scaling_page(coordinator, &[Direction::Down], &[], limit, String::new()),
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
    let answer = coordinator.list_scaling(request).await;
    let mut page = answer.map_err(failed(Program::ScalingCoordinator))?.value;
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
        rows.map(|row| row.shoot.clone()).take(MAX_NAMES).collect()
    };
    let shoots = without(|row| row.scaling.is_none());
    let request = WatchScalingRequest {
        shoots: shoots.clone(),
        ..WatchScalingRequest::default()
    };
    let stop = CancellationToken::new();
    let mut scalings = FirstSnapshot::new(&stop);
    let others = without(|row| row.verdict.is_none());
    let verdict_request = WatchVerdictsRequest {
        shoots: others.clone(),
        ..WatchVerdictsRequest::default()
    };
    let verdict_stop = CancellationToken::new();
    let mut verdicts = FirstSnapshot::new(&verdict_stop);
    tokio::join!(
        async {
            if !shoots.is_empty() {
                coordinator
                    .follow(request, &stop, |update| scalings.apply(update))
                    .await;
            }
        },
        async {
            if !others.is_empty() {
                let on_update = |update| verdicts.apply(update);
                lease_probe
                    .follow(verdict_request, &verdict_stop, on_update)
                    .await;
            }
        },
    );
    for (shoot, scaling) in scalings.into_items(Program::ScalingCoordinator)? {
        row(rows, &shoot).scaling = Some(scaling.value);
    }
    for (shoot, verdict) in verdicts.into_items(Program::LeaseProbe)? {
        row(rows, &shoot).verdict = Some(verdict.value);
    }
    Ok(())
}

/// The first snapshot of a stream, or why it did not come.
struct FirstSnapshot<'a, V> {
    found: Option<Result<BTreeMap<String, Received<V>>, Failure>>,
    stop: &'a CancellationToken,
}

impl<'a, V> FirstSnapshot<'a, V> {
    fn new(stop: &'a CancellationToken) -> Self {
        Self { found: None, stop }
    }

    fn apply(&mut self, update: Update<String, V>) {
        if self.found.is_none() {
            self.found = match update {
                Update::Snapshot(items, _) => Some(Ok(items)),
                Update::Lost(failure) => Some(Err(failure)),
                Update::Upsert(..) | Update::Removed(_) | Update::Completeness(_) => None,
            };
            self.stop.cancel();
        }
    }

    fn into_items(self, program: Program) -> Result<BTreeMap<String, Received<V>>, CommandError> {
        let found = self.found.unwrap_or_else(|| Ok(BTreeMap::new()));
        found.map_err(|failure| CommandError::of_failure(program.as_str(), &failure))
    }
}
