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

/// A program in numbers.
#[derive(Debug, Clone, Default, PartialEq)]
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

    /// The verdict on a shoot.
    pub(crate) async fn verdict(&self, shoot: &str) -> Result<GetVerdictResponse, CommandError> {
        let shoot = shoot.to_owned();
        let call = self.lease_probe().await?;
        ask(Program::LeaseProbe, call.get_verdict(GetVerdictRequest { shoot })).await
    }

    /// The verdicts with these outcomes; all without any.
    pub(crate) async fn verdicts(&self, outcomes: &[Outcome]) -> Result<ListVerdictsResponse, CommandError> {
        let client = self.lease_probe().await?;
        let pages = all_pages(async |page_size, page_token| {
            let request = ListVerdictsRequest {
                page_size,
                page_token,
                outcomes: outcomes.iter().map(|outcome| (*outcome).into()).collect(),
                ..ListVerdictsRequest::default()
            };
            ask(Program::LeaseProbe, client.list_verdicts(request)).await
        });
        pages.await
    }

    /// The scaling of a shoot.
    pub(crate) async fn scaling(&self, shoot: &str) -> Result<GetScalingResponse, CommandError> {
        let shoot = shoot.to_owned();
        let call = self.coordinator().await?;
        ask(
            Program::ScalingCoordinator,
            call.get_scaling(GetScalingRequest { shoot }),
        )
        .await
    }

    /// The scaling of all shoots that a filter lets through.
    pub(crate) async fn scalings(
        &self,
        filter: ListScalingRequest,
    ) -> Result<ListScalingResponse, CommandError> {
        let client = self.coordinator().await?;
        let pages = all_pages(async |page_size, page_token| {
            let request = ListScalingRequest {
                page_size,
                page_token,
                ..filter.clone()
            };
            ask(Program::ScalingCoordinator, client.list_scaling(request)).await
        });
        pages.await
    }

    /// A program in numbers.
    pub(crate) async fn summary(&self, program: Program) -> Result<ProgramSummary, CommandError> {
        let mut found = ProgramSummary::default();
        let completeness = match program {
            Program::LeaseProbe => {
                let client = self.lease_probe().await?;
                let answer = ask(program, client.get_seed_summary(Default::default())).await?;
                let summary = answer.summary.unwrap_or_default();
                (found.items, found.outcomes) = (summary.shoots, summary.outcomes);
                answer.completeness
            }
            Program::ScalingCoordinator => {
                let client = self.coordinator().await?;
                let answer = ask(program, client.get_seed_summary(Default::default())).await?;
                let summary = answer.summary.unwrap_or_default();
                (found.items, found.leader) = (summary.shoots, Some(summary.leader));
                answer.completeness
            }
            Program::Weeder => {
                let client = self.weeder().await?;
                let answer = ask(program, client.get_seed_summary(Default::default())).await?;
                let summary = answer.summary.unwrap_or_default();
                (found.items, found.leader) = (summary.services, Some(summary.leader));
                answer.completeness
            }
        };
        found.missing = missing(program, completeness.as_ref());
        Ok(found)
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
