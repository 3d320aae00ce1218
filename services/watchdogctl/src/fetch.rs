//! The requests to the programs.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::mem::take;
use std::time::Duration;

use futures::future::try_join_all;
use prost::{Message, Name};
use tokio::time::{Instant, timeout_at};
use tonic::Code;
use watchdog_client::consumer::{ListRequest, UnaryRequest, call};
use watchdog_client::failure::{Failure, Reason};
use watchdog_client::wire::{ItemPage, MAX_PAGE_SIZE};
use watchdog_proto::probe::v1::{self as probe, GetVerdictRequest, GetVerdictResponse};
use watchdog_proto::scaling::v1::{self as scaling, GetScalingRequest, GetScalingResponse};
use watchdog_proto::stream::v1::Completeness;
use watchdog_proto::weeder::v1 as weeder;

use crate::api_message::ApiMessage;
use crate::connect::{OpenChannel, ProgramDialer};
use crate::error::{CommandError, CommandResult};
use crate::program::Program;
use crate::render::text::missing_replicas;

/// Pages at most: a server that sends more than any seed can have is broken.
const MAX_PAGES: usize = 1_000;

/// All pages of a list arrive within this time: three calls that all take as long as they may.
const LIST_TIMEOUT: Duration = Duration::from_secs(45);

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
    /// The answer of a program, printable, or why there is none. A replica is passed over if it cannot be reached,
    /// drains or has just started, or refuses another connection of the certificate, which people share.
    pub(crate) async fn ask<R>(&self, program: Program, request: R) -> CommandResult<R::Answer>
    where
        R: UnaryRequest<Answer: Message + Name + Default> + Clone,
    {
        let mut failed = BTreeMap::new();
        loop {
            let OpenChannel { replica, channel } = self.channel(program).await?;
            if let Some(error) = failed.remove(&replica) {
                return Err(error);
            }
            let status = match call(channel, request.clone()).await {
                Ok(received) => return ApiMessage::printable(&received.value).map(|message| message.0),
                Err(status) => status,
            };
            let error = CommandError::of_status(program.as_str(), &status);
            // Only a connection that fails has a source, whatever its code.
            let another_may_answer = matches!(status.code(), Code::ResourceExhausted | Code::Unavailable);
            if status.source().is_none() && !another_may_answer {
                return Err(error);
            }
            self.pass_over(program, &replica);
            failed.insert(replica, error);
        }
    }

    /// All pages as one answer.
    pub(crate) async fn all_pages<R>(&self, program: Program, request: R) -> CommandResult<R::Answer>
    where
        R: ListRequest<Answer: Message + Name + Default>,
    {
        joined_pages(program, request, async |request| self.ask(program, request).await).await
    }

    /// The verdict on a shoot.
    pub(crate) async fn verdict(&self, shoot: &str) -> CommandResult<GetVerdictResponse> {
        let shoot = shoot.to_owned();
        self.ask(Program::LeaseProbe, GetVerdictRequest { shoot }).await
    }

    /// The scaling of a shoot.
    pub(crate) async fn scaling(&self, shoot: &str) -> CommandResult<GetScalingResponse> {
        let shoot = shoot.to_owned();
        self.ask(Program::ScalingCoordinator, GetScalingRequest { shoot })
            .await
    }

    /// A program in numbers.
    pub(crate) async fn summary(&self, program: Program) -> CommandResult<ProgramSummary> {
        let mut found = ProgramSummary::default();
        let completeness = match program {
            Program::LeaseProbe => {
                let answer = self.ask(program, probe::GetSeedSummaryRequest::default()).await?;
                let summary = answer.summary.unwrap_or_default();
                (found.items, found.outcomes) = (summary.shoots, summary.outcomes);
                answer.completeness
            }
            Program::ScalingCoordinator => {
                let answer = self
                    .ask(program, scaling::GetSeedSummaryRequest::default())
                    .await?;
                let summary = answer.summary.unwrap_or_default();
                (found.items, found.leader) = (summary.shoots, Some(summary.leader));
                answer.completeness
            }
            Program::Weeder => {
                let answer = self
                    .ask(program, weeder::GetSeedSummaryRequest::default())
                    .await?;
                let summary = answer.summary.unwrap_or_default();
                (found.items, found.leader) = (summary.services, Some(summary.leader));
                answer.completeness
            }
        };
        found.missing = missing_replicas(program, completeness.as_ref());
        Ok(found)
    }

    /// The items of these shoots as one answer, in the order of their names; without a shoot, all that the request asks
    /// for. A shoot that the seed does not have is an error.
    pub(crate) async fn items<R>(
        &self,
        program: Program,
        shoots: &[String],
        request: R,
        get: impl AsyncFn(&str) -> CommandResult<(Option<R::Item>, Option<Completeness>)>,
    ) -> CommandResult<R::Answer>
    where
        R: ListRequest<Answer: Message + Name + Default>,
    {
        if shoots.is_empty() {
            return self.all_pages(program, request).await;
        }
        let mut shoots = shoots.to_vec();
        shoots.sort();
        let answers = try_join_all(shoots.iter().map(|shoot| get(shoot))).await?;
        let (items, completeness): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
        let items: Vec<R::Item> = items.into_iter().flatten().collect();
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
}

/// The last page with the items of all. If a page lacks something, so does the answer.
async fn joined_pages<R: ListRequest>(
    program: Program,
    mut request: R,
    ask: impl AsyncFn(R) -> CommandResult<R::Answer>,
) -> CommandResult<R::Answer> {
    let (mut items, mut page_token) = (Vec::new(), String::new());
    let mut incomplete: Option<Completeness> = None;
    let deadline = Instant::now() + LIST_TIMEOUT;
    for _ in 0..MAX_PAGES {
        request.set_page(MAX_PAGE_SIZE, page_token);
        let page = timeout_at(deadline, ask(request.clone())).await;
        let page = page.unwrap_or_else(|_| {
            let why = format!("the list was not complete after {} s", LIST_TIMEOUT.as_secs());
            let failure = Failure::new(Reason::Timeout, &why);
            Err(CommandError::of_failure(program.as_str(), &failure))
        });
        let mut page: ItemPage<R::Item> = page?.into();
        items.append(&mut page.items);
        page_token = take(&mut page.next_page_token);
        incomplete = incomplete.or_else(|| page.completeness.take_if(|one| !one.complete));
        page.completeness = incomplete.clone().or(page.completeness);
        if page_token.is_empty() {
            return Ok(ItemPage { items, ..page }.into());
        }
    }
    let what = format!("{program}: the list has more than {MAX_PAGES} pages");
    Err(CommandError::unexpected(&what))
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;
    use watchdog_client::consumer::CALL_TIMEOUT;
    use watchdog_proto::weeder::v1::{ListWeedersRequest, ListWeedersResponse};

    use super::*;
    use crate::error::{UNREACHABLE, WRONG};

    /// Asks for a list that has always one more page.
    async fn endless(page_takes: Duration) -> CommandError {
        let page = async |_| {
            sleep(page_takes).await;
            Ok(ListWeedersResponse {
                next_page_token: "more".to_owned(),
                ..ListWeedersResponse::default()
            })
        };
        let list = joined_pages(Program::Weeder, ListWeedersRequest::default(), page).await;
        list.unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_does_not_end_is_an_error_in_time() {
        let began = Instant::now();
        let slow = endless(CALL_TIMEOUT / 2).await;
        assert_eq!(slow.code, UNREACHABLE);
        assert_eq!(slow.what, "weeder: the list was not complete after 45 s");
        assert_eq!(began.elapsed().as_secs(), LIST_TIMEOUT.as_secs());
        let quick = endless(Duration::from_millis(1)).await;
        assert_eq!(quick.code, WRONG);
        assert_eq!(quick.what, "weeder: the list has more than 1000 pages");
    }
}
