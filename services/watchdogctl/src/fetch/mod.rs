//! The requests to the programs.

pub(crate) mod status;

use std::collections::BTreeSet;
use std::mem::take;

use futures::future::try_join_all;
use tonic::{Code, Status};
use watchdog_client::consumer::{LeaseProbe, ScalingCoordinator, WeederClient};
use watchdog_proto::feed::v1::Completeness;
use watchdog_proto::probe::v1::{
    GetVerdictRequest, ListVerdictsRequest, ListVerdictsResponse, Outcome, Verdict,
};
use watchdog_proto::scaling::v1::{
    Direction, FlowState, GetScalingRequest, ListScalingRequest, ListScalingResponse, ListShootEventsRequest,
    PlanScalingRequest, PlanScalingResponse, ShootEvent, ShootScaling,
};
use watchdog_proto::weeder::v1::{
    EndpointReadiness, ListEndpointReadinessRequest, ListWeedersRequest, Weeder,
};

use crate::args::ServiceFilterArgs;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::program::Program;

/// Items of a page where all are read.
const PAGE: i32 = 1_000;

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

    pub(crate) fn into_names(self) -> Vec<String> {
        self.0.into_iter().collect()
    }
}

fn failed(program: Program) -> impl Fn(Status) -> CommandError {
    move |status| CommandError::of_status(program.as_str(), &status)
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

/// The items of all pages. `read` takes the token of a page, and gives its items and the token of the next one.
async fn all_pages<T>(
    mut read: impl AsyncFnMut(String) -> Result<(Vec<T>, String), CommandError>,
) -> Result<Vec<T>, CommandError> {
    let (mut all, mut token) = (Vec::new(), String::new());
    for _ in 0..MAX_PAGES {
        let (items, next) = read(token).await?;
        all.extend(items);
        if next.is_empty() {
            break;
        }
        token = next;
    }
    Ok(all)
}

// === lease-probe ===

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
    let answer = lease_probe.list_verdicts(request).await;
    Ok(answer.map_err(failed(Program::LeaseProbe))?.value)
}

/// All verdicts with these outcomes, or all; as one answer.
pub(crate) async fn verdicts(
    lease_probe: &LeaseProbe,
    outcomes: &[Outcome],
) -> Result<ListVerdictsResponse, CommandError> {
    let mut last = ListVerdictsResponse::default();
    let verdicts = all_pages(async |token| {
        last = verdict_page(lease_probe, outcomes, PAGE, token).await?;
        Ok((take(&mut last.verdicts), take(&mut last.next_page_token)))
    });
    let verdicts = verdicts.await?;
    Ok(ListVerdictsResponse { verdicts, ..last })
}

/// The verdicts on these shoots, in the order of their names. A shoot that the seed does not have is an error.
pub(crate) async fn verdicts_on(
    lease_probe: &LeaseProbe,
    shoots: &[String],
) -> Result<ListVerdictsResponse, CommandError> {
    let get = async |shoot: &String| verdict(lease_probe, shoot).await;
    let answers = try_join_all(shoots.iter().map(get)).await?;
    let mut all = ListVerdictsResponse::default();
    for (verdict, completeness) in answers {
        all.verdicts.extend(verdict);
        all.completeness = worse(all.completeness, completeness);
    }
    all.verdicts.sort_by(|a, b| a.shoot.cmp(&b.shoot));
    all.total_size = count(all.verdicts.len());
    Ok(all)
}

pub(crate) async fn verdict(
    lease_probe: &LeaseProbe,
    shoot: &str,
) -> Result<(Option<Verdict>, Option<Completeness>), CommandError> {
    let request = GetVerdictRequest {
        shoot: shoot.to_owned(),
    };
    let answer = lease_probe.get_verdict(request).await;
    let answer = answer.map_err(failed(Program::LeaseProbe))?.value;
    Ok((answer.verdict, answer.completeness))
}

// === scaling-coordinator ===

/// One page of states with these directions and states, or all.
async fn scaling_page(
    coordinator: &ScalingCoordinator,
    directions: &[Direction],
    states: &[FlowState],
    page_size: i32,
    page_token: String,
) -> Result<ListScalingResponse, CommandError> {
    let request = ListScalingRequest {
        page_size,
        page_token,
        directions: directions.iter().map(|direction| (*direction).into()).collect(),
        states: states.iter().map(|state| (*state).into()).collect(),
        ..ListScalingRequest::default()
    };
    let answer = coordinator.list_scaling(request).await;
    Ok(answer.map_err(failed(Program::ScalingCoordinator))?.value)
}

/// All states with these directions, or all; as one answer.
pub(crate) async fn scalings(
    coordinator: &ScalingCoordinator,
    directions: &[Direction],
) -> Result<ListScalingResponse, CommandError> {
    let mut last = ListScalingResponse::default();
    let scalings = all_pages(async |token| {
        last = scaling_page(coordinator, directions, &[], PAGE, token).await?;
        Ok((take(&mut last.scalings), take(&mut last.next_page_token)))
    });
    let scalings = scalings.await?;
    Ok(ListScalingResponse { scalings, ..last })
}

/// The states of these shoots, in the order of their names. A shoot that the seed does not have is an error.
pub(crate) async fn scalings_of(
    coordinator: &ScalingCoordinator,
    shoots: &[String],
) -> Result<ListScalingResponse, CommandError> {
    let get = async |shoot: &String| scaling(coordinator, shoot).await;
    let answers = try_join_all(shoots.iter().map(get)).await?;
    let mut all = ListScalingResponse::default();
    for (scaling, completeness) in answers {
        all.scalings.extend(scaling);
        all.completeness = worse(all.completeness, completeness);
    }
    all.scalings.sort_by(|a, b| a.shoot.cmp(&b.shoot));
    all.total_size = count(all.scalings.len());
    Ok(all)
}

pub(crate) async fn scaling(
    coordinator: &ScalingCoordinator,
    shoot: &str,
) -> Result<(Option<ShootScaling>, Option<Completeness>), CommandError> {
    let request = GetScalingRequest {
        shoot: shoot.to_owned(),
    };
    let answer = coordinator.get_scaling(request).await;
    let answer = answer.map_err(failed(Program::ScalingCoordinator))?.value;
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
    let answer = coordinator.plan_scaling(request).await;
    Ok(answer.map_err(failed(Program::ScalingCoordinator))?.value)
}

/// The events of a shoot, oldest first.
pub(crate) async fn events(
    coordinator: &ScalingCoordinator,
    shoot: &str,
) -> Result<Vec<ShootEvent>, CommandError> {
    all_pages(async |page_token| {
        let request = ListShootEventsRequest {
            page_size: PAGE,
            page_token,
            shoot: shoot.to_owned(),
            ..ListShootEventsRequest::default()
        };
        let answer = coordinator.list_shoot_events(request).await;
        let answer = answer.map_err(failed(Program::ScalingCoordinator))?.value;
        Ok((answer.events, answer.next_page_token))
    })
    .await
}

// === weeder ===

pub(crate) async fn weeders(
    weeder: &WeederClient,
    filter: &ServiceFilterArgs,
    missing: &mut Missing,
) -> Result<Vec<Weeder>, CommandError> {
    all_pages(async |page_token| {
        let request = ListWeedersRequest {
            page_size: PAGE,
            page_token,
            namespace: filter.shoot.clone().unwrap_or_default(),
            service: filter.service.clone().unwrap_or_default(),
            ..ListWeedersRequest::default()
        };
        let answer = weeder.list_weeders(request).await;
        let answer = answer.map_err(failed(Program::Weeder))?.value;
        missing.add(Program::Weeder, answer.completeness.as_ref());
        Ok((answer.weeders, answer.next_page_token))
    })
    .await
}

pub(crate) async fn services(
    weeder: &WeederClient,
    filter: &ServiceFilterArgs,
    missing: &mut Missing,
) -> Result<Vec<EndpointReadiness>, CommandError> {
    all_pages(async |page_token| {
        let request = ListEndpointReadinessRequest {
            page_size: PAGE,
            page_token,
            namespace: filter.shoot.clone().unwrap_or_default(),
            service: filter.service.clone().unwrap_or_default(),
            ..ListEndpointReadinessRequest::default()
        };
        let answer = weeder.list_endpoint_readiness(request).await;
        let answer = answer.map_err(failed(Program::Weeder))?.value;
        missing.add(Program::Weeder, answer.completeness.as_ref());
        Ok((answer.services, answer.next_page_token))
    })
    .await
}

fn count(items: usize) -> i32 {
    i32::try_from(items).unwrap_or(i32::MAX)
}

/// True if the error says that the program does not have the method.
pub(crate) fn is_unimplemented(status: &Status) -> bool {
    status.code() == Code::Unimplemented
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

/// The replicas that a program misses when it answers for the whole seed; reads one item.
pub(crate) async fn missing_of(
    dialer: &ProgramDialer,
    program: Program,
) -> Result<Vec<String>, CommandError> {
    let completeness = match program {
        Program::LeaseProbe => {
            let page = verdict_page(&dialer.lease_probe().await?, &[], 1, String::new()).await?;
            page.completeness
        }
        Program::ScalingCoordinator => {
            let page = scaling_page(&dialer.coordinator().await?, &[], &[], 1, String::new()).await?;
            page.completeness
        }
        Program::Weeder => {
            let request = ListWeedersRequest {
                page_size: 1,
                ..ListWeedersRequest::default()
            };
            let answer = dialer.weeder().await?.list_weeders(request).await;
            answer.map_err(failed(program))?.value.completeness
        }
    };
    Ok(missing(program, completeness.as_ref()))
}
