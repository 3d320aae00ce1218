//! The requests to the programs.

use std::mem::take;

use futures::future::try_join_all;
use prost::{Message, Name};
use tonic::Status;
use watchdog_api::text::printable;
use watchdog_client::consumer::{LeaseProbe, ScalingCoordinator, WeederClient};
use watchdog_client::follow::Received;
use watchdog_client::wire::{ItemPage, MAX_PAGE_SIZE};
use watchdog_proto::probe::v1::{
    self as probe, GetVerdictRequest, GetVerdictResponse, ListVerdictsRequest, ListVerdictsResponse, Outcome,
};
use watchdog_proto::scaling::v1::{
    GetScalingRequest, GetScalingResponse, ListScalingRequest, ListScalingResponse,
};
use watchdog_proto::stream::v1::Completeness;

use crate::api_message::ApiMessage;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::program::Program;

/// Pages at most: a server that sends more than any seed can have is broken.
const MAX_PAGES: usize = 1_000;

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

/// The answer of a program, printable, or why there is none.
pub(crate) async fn ask<M: Message + Name + Default>(
    program: Program,
    call: impl Future<Output = Result<Received<M>, Status>>,
) -> Result<M, CommandError> {
    match call.await {
        Ok(received) => ApiMessage::printable(&received.value).map(|message| message.0),
        Err(status) => Err(CommandError::of_status(program.as_str(), &status)),
    }
}

/// All pages as one answer, which is the last of them with the items of all.
pub(crate) async fn all_pages<T, R: From<ItemPage<T>> + Into<ItemPage<T>>>(
    mut read: impl AsyncFnMut(i32, String) -> Result<R, CommandError>,
) -> Result<R, CommandError> {
    let (mut items, mut pages, mut page_token) = (Vec::new(), 0, String::new());
    loop {
        let mut page: ItemPage<T> = read(MAX_PAGE_SIZE, page_token).await?.into();
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
pub(crate) async fn of_shoots<T, R: From<ItemPage<T>>>(
    shoots: &[String],
    get: impl AsyncFn(&str) -> Result<(Option<T>, Option<Completeness>), CommandError>,
) -> Result<R, CommandError> {
    let mut shoots = shoots.to_vec();
    shoots.sort();
    let answers = try_join_all(shoots.iter().map(|shoot| get(shoot))).await?;
    let (items, completeness): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
    let items: Vec<T> = items.into_iter().flatten().collect();
    // An answer that lacks something stands for all.
    let completeness = completeness.into_iter().flatten().min_by_key(|one| one.complete);
    let page = ItemPage {
        total_size: i32::try_from(items.len()).unwrap_or(i32::MAX),
        items,
        next_page_token: String::new(),
        position: None,
        completeness,
    };
    Ok(page.into())
}

/// The verdict on a shoot.
pub(crate) async fn verdict(
    lease_probe: &LeaseProbe,
    shoot: &str,
) -> Result<GetVerdictResponse, CommandError> {
    let request = GetVerdictRequest {
        shoot: shoot.to_owned(),
    };
    ask(Program::LeaseProbe, lease_probe.get_verdict(request)).await
}

/// The verdicts with these outcomes; all without any.
pub(crate) async fn verdicts(
    lease_probe: &LeaseProbe,
    outcomes: &[Outcome],
) -> Result<ListVerdictsResponse, CommandError> {
    let outcomes: Vec<i32> = outcomes.iter().map(|outcome| (*outcome).into()).collect();
    all_pages(async |page_size, page_token| {
        let request = ListVerdictsRequest {
            page_size,
            page_token,
            outcomes: outcomes.clone(),
            ..ListVerdictsRequest::default()
        };
        ask(Program::LeaseProbe, lease_probe.list_verdicts(request)).await
    })
    .await
}

/// The scaling of a shoot.
pub(crate) async fn scaling(
    coordinator: &ScalingCoordinator,
    shoot: &str,
) -> Result<GetScalingResponse, CommandError> {
    let request = GetScalingRequest {
        shoot: shoot.to_owned(),
    };
    ask(Program::ScalingCoordinator, coordinator.get_scaling(request)).await
}

/// The scaling of all shoots that a filter lets through.
pub(crate) async fn scalings(
    coordinator: &ScalingCoordinator,
    filter: ListScalingRequest,
) -> Result<ListScalingResponse, CommandError> {
    all_pages(async |page_size, page_token| {
        let request = ListScalingRequest {
            page_size,
            page_token,
            ..filter.clone()
        };
        ask(Program::ScalingCoordinator, coordinator.list_scaling(request)).await
    })
    .await
}

/// The replicas whose items may be absent from an answer.
pub(crate) fn missing(program: Program, completeness: Option<&Completeness>) -> Vec<String> {
    match completeness.filter(|found| !found.complete) {
        None => Vec::new(),
        Some(incomplete) if incomplete.missing_replicas.is_empty() => {
            vec![format!("{program} (no leader, or replicas not listed yet)")]
        }
        Some(incomplete) => {
            let replicas = incomplete.missing_replicas.iter();
            replicas.map(|replica| printable(replica)).collect()
        }
    }
}

/// A program in numbers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProgramSummary {
    /// The shoots or services of the seed.
    pub(crate) items: u32,
    /// The replica that acts; none for lease-probe, whose replicas share the shoots.
    pub(crate) leader: Option<String>,
    /// Shoots by outcome, of lease-probe.
    pub(crate) outcomes: Vec<probe::OutcomeCount>,
    /// The replicas that a program misses when it answers for the whole seed.
    pub(crate) missing: Vec<String>,
}

/// A program in numbers.
pub(crate) async fn summary(
    dialer: &ProgramDialer,
    program: Program,
) -> Result<ProgramSummary, CommandError> {
    let (items, leader, outcomes, completeness) = match program {
        Program::LeaseProbe => {
            let client = dialer.lease_probe().await?;
            let answer = ask(program, client.get_seed_summary(Default::default())).await?;
            let summary = answer.summary.unwrap_or_default();
            (summary.shoots, None, summary.outcomes, answer.completeness)
        }
        Program::ScalingCoordinator => {
            let client = dialer.coordinator().await?;
            let answer = ask(program, client.get_seed_summary(Default::default())).await?;
            let summary = answer.summary.unwrap_or_default();
            let leader = Some(summary.leader);
            (summary.shoots, leader, Vec::new(), answer.completeness)
        }
        Program::Weeder => {
            let client = dialer.weeder().await?;
            let answer = ask(program, client.get_seed_summary(Default::default())).await?;
            let summary = answer.summary.unwrap_or_default();
            let leader = Some(summary.leader);
            (summary.services, leader, Vec::new(), answer.completeness)
        }
    };
    Ok(ProgramSummary {
        items,
        leader,
        outcomes,
        missing: missing(program, completeness.as_ref()),
    })
}
