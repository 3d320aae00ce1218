//! The requests to the programs.

pub(crate) mod printable;
pub(crate) mod status;

use std::collections::BTreeSet;
use std::mem::take;

use futures::future::try_join_all;
use prost::{Message, Name};
use tonic::Status;
use watchdog_client::consumer::{LeaseProbe, ScalingCoordinator, WeederClient};
use watchdog_client::follow::Received;
use watchdog_client::wire::{ItemPage, MAX_PAGE_SIZE};
use watchdog_proto::probe::v1::{
    GetVerdictRequest, ListVerdictsRequest, ListVerdictsResponse, Outcome, Verdict,
};
use watchdog_proto::scaling::v1::{
    Direction, GetScalingRequest, ListScalingRequest, ListScalingResponse, PlanScalingRequest,
    PlanScalingResponse, ShootScaling,
};
use watchdog_proto::stream::v1::Completeness;
use watchdog_proto::weeder::v1::{
    ListEndpointReadinessRequest, ListEndpointReadinessResponse, ListWeedersRequest, ListWeedersResponse,
};
use watchdog_proto::{probe::v1 as probe, scaling::v1 as scaling, weeder::v1 as weeder};

use crate::args::ServiceFilterArgs;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::program::Program;

/// Pages at most: a server that sends more than any seed can have is broken.
const MAX_PAGES: usize = 1_000;

/// The replicas whose items may be absent from what was read.
#[derive(Debug, Default)]
pub(crate) struct Missing(BTreeSet<String>);

impl Missing {
    pub(crate) fn add(&mut self, program: Program, completeness: Option<&Completeness>) {
        let Some(incomplete) = completeness.filter(|found| !found.complete) else {
            return;
        };
        if incomplete.missing_replicas.is_empty() {
            self.0
                .insert(format!("{program} (no leader, or replicas not listed yet)"));
        }
        self.0.extend(incomplete.missing_replicas.iter().cloned());
    }

    fn extend(&mut self, names: Vec<String>) {
        self.0.extend(names);
    }

    pub(crate) fn into_names(self) -> Vec<String> {
        self.0.into_iter().collect()
    }
}

/// The answer of a program, printable, or why there is none.
fn answer<M: Message + Name + Default>(
    program: Program,
    received: Result<Received<M>, Status>,
) -> Result<M, CommandError> {
    match received {
        Ok(received) => printable::message(received.value),
        Err(status) => Err(CommandError::of_status(program.as_str(), &status)),
    }
}

impl ProgramDialer {
    pub(crate) async fn lease_probe(&self) -> Result<LeaseProbe, CommandError> {
        Ok(LeaseProbe::new(self.channel(Program::LeaseProbe).await?))
    }

    pub(crate) async fn coordinator(&self) -> Result<ScalingCoordinator, CommandError> {
        let channel = self.channel(Program::ScalingCoordinator).await?;
        Ok(ScalingCoordinator::new(channel))
    }

    pub(crate) async fn weeder(&self) -> Result<WeederClient, CommandError> {
        Ok(WeederClient::new(self.channel(Program::Weeder).await?))
    }
}

/// All pages as one answer, which is the last of them with the items of all.
async fn all_pages<T, R: From<ItemPage<T>> + Into<ItemPage<T>>>(
    mut read: impl AsyncFnMut(String) -> Result<R, CommandError>,
) -> Result<R, CommandError> {
    let (mut items, mut pages, mut page_token) = (Vec::new(), 0, String::new());
    loop {
        let mut page: ItemPage<T> = read(page_token).await?.into();
        items.append(&mut page.items);
        page_token = take(&mut page.next_page_token);
        pages += 1;
        if page_token.is_empty() || pages == MAX_PAGES {
            return Ok(ItemPage { items, ..page }.into());
        }
    }
}

/// The items of these shoots as one answer, in the order of their names. A shoot that the seed does not have is an
/// error.
async fn of_shoots<T, R: From<ItemPage<T>>>(
    shoots: &[String],
    get: impl AsyncFn(&str) -> Result<(Option<T>, Option<Completeness>), CommandError>,
) -> Result<R, CommandError> {
    let mut shoots = shoots.to_vec();
    shoots.sort();
    let answers = try_join_all(shoots.iter().map(|shoot| get(shoot))).await?;
    let (mut items, mut completeness) = (Vec::new(), None);
    for (item, of_item) in answers {
        items.extend(item);
        completeness = worse(completeness, of_item);
    }
    let page = ItemPage {
        total_size: count(items.len()),
        items,
        next_page_token: String::new(),
        position: None,
        completeness,
    };
    Ok(page.into())
}

// === lease-probe ===

/// The verdicts in numbers.
async fn seed_summary(lease_probe: &LeaseProbe) -> Result<probe::GetSeedSummaryResponse, CommandError> {
    let request = probe::GetSeedSummaryRequest::default();
    answer(Program::LeaseProbe, lease_probe.get_seed_summary(request).await)
}

async fn verdict_page(
    lease_probe: &LeaseProbe,
    outcomes: &[Outcome],
    page_size: i32,
    page_token: String,
) -> Result<ListVerdictsResponse, CommandError> {
    let request = ListVerdictsRequest {
        page_size,
        page_token,
        outcomes: outcomes.iter().map(|outcome| (*outcome).into()).collect(),
        ..ListVerdictsRequest::default()
    };
    let received = lease_probe.list_verdicts(request).await;
    answer(Program::LeaseProbe, received)
}

/// All verdicts with these outcomes, or all.
pub(crate) async fn verdicts(
    lease_probe: &LeaseProbe,
    outcomes: &[Outcome],
) -> Result<ListVerdictsResponse, CommandError> {
    all_pages(async |token| verdict_page(lease_probe, outcomes, MAX_PAGE_SIZE, token).await).await
}

/// The verdicts on these shoots.
pub(crate) async fn verdicts_on(
    lease_probe: &LeaseProbe,
    shoots: &[String],
) -> Result<ListVerdictsResponse, CommandError> {
    of_shoots(shoots, async |shoot| verdict(lease_probe, shoot).await).await
}

pub(crate) async fn verdict(
    lease_probe: &LeaseProbe,
    shoot: &str,
) -> Result<(Option<Verdict>, Option<Completeness>), CommandError> {
    let request = GetVerdictRequest {
        shoot: shoot.to_owned(),
    };
    let received = lease_probe.get_verdict(request).await;
    let answer = answer(Program::LeaseProbe, received)?;
    Ok((answer.verdict, answer.completeness))
}

// === scaling-coordinator ===

async fn scaling_page(
    coordinator: &ScalingCoordinator,
    request: ListScalingRequest,
) -> Result<ListScalingResponse, CommandError> {
    let received = coordinator.list_scaling(request).await;
    answer(Program::ScalingCoordinator, received)
}

/// All states with these directions, or all.
pub(crate) async fn scalings(
    coordinator: &ScalingCoordinator,
    directions: &[Direction],
) -> Result<ListScalingResponse, CommandError> {
    all_pages(async |page_token| {
        let request = ListScalingRequest {
            page_size: MAX_PAGE_SIZE,
            page_token,
            directions: directions.iter().map(|direction| (*direction).into()).collect(),
            ..ListScalingRequest::default()
        };
        scaling_page(coordinator, request).await
    })
    .await
}

/// The states of all shoots that are held down, whatever their direction and verdict.
pub(crate) async fn held_down(coordinator: &ScalingCoordinator) -> Result<Vec<ShootScaling>, CommandError> {
    let all: ListScalingResponse = all_pages(async |page_token| {
        let request = ListScalingRequest {
            page_size: MAX_PAGE_SIZE,
            page_token,
            meltdown_protection_active: Some(true),
            ..ListScalingRequest::default()
        };
        scaling_page(coordinator, request).await
    })
    .await?;
    Ok(all.scalings)
}

/// The states of these shoots.
pub(crate) async fn scalings_of(
    coordinator: &ScalingCoordinator,
    shoots: &[String],
) -> Result<ListScalingResponse, CommandError> {
    of_shoots(shoots, async |shoot| scaling(coordinator, shoot).await).await
}

pub(crate) async fn scaling(
    coordinator: &ScalingCoordinator,
    shoot: &str,
) -> Result<(Option<ShootScaling>, Option<Completeness>), CommandError> {
    let request = GetScalingRequest {
        shoot: shoot.to_owned(),
    };
    let received = coordinator.get_scaling(request).await;
    let answer = answer(Program::ScalingCoordinator, received)?;
    Ok((answer.scaling, answer.completeness))
}

pub(crate) async fn plan(
    coordinator: &ScalingCoordinator,
    shoot: &str,
    direction: Direction,
) -> Result<PlanScalingResponse, CommandError> {
    let request = PlanScalingRequest {
        shoot: shoot.to_owned(),
        direction: direction.into(),
    };
    let received = coordinator.plan_scaling(request).await;
    answer(Program::ScalingCoordinator, received)
}

// === weeder ===

pub(crate) async fn weeders(
    weeder: &WeederClient,
    filter: &ServiceFilterArgs,
) -> Result<ListWeedersResponse, CommandError> {
    all_pages(async |page_token| {
        let request = ListWeedersRequest {
            page_size: MAX_PAGE_SIZE,
            page_token,
            namespace: filter.shoot.clone().unwrap_or_default(),
            service: filter.service.clone().unwrap_or_default(),
            ..ListWeedersRequest::default()
        };
        answer(Program::Weeder, weeder.list_weeders(request).await)
    })
    .await
}

pub(crate) async fn services(
    weeder: &WeederClient,
    filter: &ServiceFilterArgs,
) -> Result<ListEndpointReadinessResponse, CommandError> {
    all_pages(async |page_token| {
        let request = ListEndpointReadinessRequest {
            page_size: MAX_PAGE_SIZE,
            page_token,
            namespace: filter.shoot.clone().unwrap_or_default(),
            service: filter.service.clone().unwrap_or_default(),
            ..ListEndpointReadinessRequest::default()
        };
        answer(Program::Weeder, weeder.list_endpoint_readiness(request).await)
    })
    .await
}

fn count(items: usize) -> i32 {
    i32::try_from(items).unwrap_or(i32::MAX)
}

/// Both answers as one: complete only if both are.
fn worse(a: Option<Completeness>, b: Option<Completeness>) -> Option<Completeness> {
    let (Some(mut a), Some(b)) = (a.clone(), b.clone()) else {
        return a.or(b);
    };
    a.complete &= b.complete;
    a.missing_replicas.extend(b.missing_replicas);
    a.missing_replicas.sort();
    a.missing_replicas.dedup();
    Some(a)
}

/// The replicas that an answer misses.
pub(crate) fn missing(program: Program, completeness: Option<&Completeness>) -> Vec<String> {
    let mut missing = Missing::default();
    missing.add(program, completeness);
    missing.into_names()
}

/// The replicas that a program misses when it answers for the whole seed.
pub(crate) async fn missing_of(
    dialer: &ProgramDialer,
    program: Program,
) -> Result<Vec<String>, CommandError> {
    let completeness = match program {
        Program::LeaseProbe => seed_summary(&dialer.lease_probe().await?).await?.completeness,
        Program::ScalingCoordinator => {
            let request = scaling::GetSeedSummaryRequest::default();
            let received = dialer.coordinator().await?.get_seed_summary(request).await;
            answer(program, received)?.completeness
        }
        Program::Weeder => {
            let request = weeder::GetSeedSummaryRequest::default();
            let received = dialer.weeder().await?.get_seed_summary(request).await;
            answer(program, received)?.completeness
        }
    };
    Ok(missing(program, completeness.as_ref()))
}
