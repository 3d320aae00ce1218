//! `gardener.watchdog.probe.v1.LeaseProbeService`.

use std::collections::BTreeSet;
use std::sync::Arc;

use tonic::{Request, Response, Status};
use watchdog_api::unix_time::UnixTime;
use watchdog_proto::feed::v1::Scope;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_server::LeaseProbeService;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::request;
use watchdog_watch_stream::server::{Page, StateStore};
use watchdog_watch_stream::stream::{Responses, Streams};

use super::convert;
use super::view::{MergedVerdicts, ReplicaVerdict};
use crate::domain::verdict::Verdict;

/// Returns true if it is certain that the seed has no Cluster of a name.
pub(crate) type IsUnknown = Box<dyn Fn(&str) -> bool + Send + Sync>;

pub(crate) struct LeaseProbeApi {
    /// The verdicts of this replica.
    pub(crate) local: StateStore<String, Verdict>,
    /// Those of all replicas.
    pub(crate) view: MergedVerdicts,
    /// Distinguishes a shoot that does not exist from one without a verdict.
    pub(crate) is_unknown: IsUnknown,
    pub(crate) streams: Streams,
    pub(crate) clock: Clock,
}

impl std::fmt::Debug for LeaseProbeApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl LeaseProbeApi {
    /// The answer for a shoot on which there is no verdict.
    fn without_verdict(&self, shoot: &str) -> Status {
        if (self.is_unknown)(shoot) {
            return request::unknown_shoot(shoot);
        }
        Status::unavailable(format!(
            "there is no verdict on {shoot} yet: ask again in a second"
        ))
    }

    fn now(&self) -> UnixTime {
        UnixTime(self.clock.now_micros())
    }
}

#[tonic::async_trait]
impl LeaseProbeService for LeaseProbeApi {
    type WatchVerdictsStream = Responses<pb::WatchVerdictsResponse>;

    async fn watch_verdicts(
        &self,
        request: Request<pb::WatchVerdictsRequest>,
    ) -> Result<Response<Self::WatchVerdictsStream>, Status> {
        let request = request.into_inner();
        let scope = scope(request.scope)?;
        let shoots = request::shoots(request.shoots)?;
        let matches = move |shoot: &String| shoots.is_empty() || shoots.contains(shoot);
        let clock = self.clock;
        let stream = match scope {
            Scope::Unspecified => {
                let encode = move |shoot: &str, seen: Arc<ReplicaVerdict>| {
                    seen.to_proto(shoot, UnixTime(clock.now_micros()))
                };
                let encode = move |message| convert::response(message, encode);
                self.streams
                    .serve("WatchVerdicts", self.view.merged.subscribe(matches), encode)?
            }
            Scope::Local => {
                let encode = move |shoot: &str, verdict: Arc<Verdict>| {
                    convert::verdict(shoot, &verdict, UnixTime(clock.now_micros()))
                };
                let encode = move |message| convert::response(message, encode);
                self.streams
                    .serve("WatchVerdicts", self.local.subscribe(matches), encode)?
            }
        };
        Ok(Response::new(stream))
    }

    async fn get_verdict(
        &self,
        request: Request<pb::GetVerdictRequest>,
    ) -> Result<Response<pb::GetVerdictResponse>, Status> {
        let shoot = request.into_inner().shoot;
        request::shoot("shoot", &shoot)?;
        let seen = self
            .view
            .merged
            .get(&shoot)
            .ok_or_else(|| self.without_verdict(&shoot))?;
        Ok(Response::new(pb::GetVerdictResponse {
            verdict: Some(seen.to_proto(&shoot, self.now())),
            ..Default::default()
        }))
    }

    async fn list_verdicts(
        &self,
        request: Request<pb::ListVerdictsRequest>,
    ) -> Result<Response<pb::ListVerdictsResponse>, Status> {
        let request = request.into_inner();
        let outcomes = outcomes(&request.outcomes)?;
        let asked = |outcome: pb::Outcome| outcomes.is_empty() || outcomes.contains(&outcome);
        let limit = request::page_size(request.page_size)?;
        let after = request::page_token(&request.page_token)?;
        let now = self.now();
        let response = match scope(request.scope)? {
            Scope::Unspecified => {
                let page = self
                    .view
                    .merged
                    .page(after.as_ref(), limit, |_, seen| match seen {
                        ReplicaVerdict::Local(verdict) => asked(convert::outcome(&verdict.outcome)),
                        ReplicaVerdict::Remote(verdict, _) => asked(verdict.outcome()),
                    });
                list_response(page, |shoot, seen| seen.to_proto(shoot, now))
            }
            Scope::Local => {
                let matches = |_: &String, verdict: &Verdict| asked(convert::outcome(&verdict.outcome));
                let page = self.local.page(after.as_ref(), limit, matches);
                list_response(page, |shoot, verdict| convert::verdict(shoot, verdict, now))
            }
        };
        Ok(Response::new(response))
    }
}

fn list_response<V>(
    page: Page<String, V>,
    to_proto: impl Fn(&str, &V) -> pb::Verdict,
) -> pb::ListVerdictsResponse {
    let last = page.items.last().map(|(shoot, _)| shoot.clone());
    pb::ListVerdictsResponse {
        verdicts: page
            .items
            .iter()
            .map(|(shoot, value)| to_proto(shoot, value))
            .collect(),
        next_page_token: last
            .filter(|_| page.more)
            .map(|shoot| request::next_page_token(&shoot))
            .unwrap_or_default(),
        total_size: i32::try_from(page.total).unwrap_or(i32::MAX),
        ..Default::default()
    }
}

/// Rejects unknown values: the generated accessor drops them, and an empty filter means all.
fn outcomes(asked: &[i32]) -> Result<BTreeSet<pb::Outcome>, Status> {
    let known = |(i, value): (usize, &i32)| match pb::Outcome::try_from(*value) {
        Ok(outcome) if outcome != pb::Outcome::Unspecified => Ok(outcome),
        _ => Err(Status::invalid_argument(format!(
            "outcomes[{i}]: {value} is no outcome: leave the field out for all outcomes"
        ))),
    };
    asked.iter().enumerate().map(known).collect()
}

fn scope(scope: i32) -> Result<Scope, Status> {
    Scope::try_from(scope).map_err(|_| {
        Status::invalid_argument(format!(
            "scope: {scope} is unknown: leave the field out for the whole seed, or use SCOPE_LOCAL"
        ))
    })
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;
    use tonic::Code;

    use super::*;

    /// Clients take NOT_FOUND for an answer and UNAVAILABLE for a reason to ask again.
    #[tokio::test]
    async fn a_shoot_is_not_found_only_when_it_is_certain_that_there_is_none() {
        let service = LeaseProbeApi {
            local: StateStore::new(),
            view: MergedVerdicts::default(),
            is_unknown: Box::new(|shoot| shoot == "none"),
            streams: Streams::new(CancellationToken::new()),
            clock: Clock::start(),
        };
        let get = async |shoot: &str| {
            let request = pb::GetVerdictRequest {
                shoot: shoot.to_owned(),
            };
            service.get_verdict(Request::new(request)).await.unwrap_err()
        };
        assert_eq!(get("none").await.code(), Code::NotFound);
        let not_yet = get("one").await;
        assert_eq!(not_yet.code(), Code::Unavailable);
        assert!(not_yet.message().contains("no verdict on one yet"), "{not_yet}");
    }
}
