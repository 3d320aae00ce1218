//! `gardener.watchdog.probe.v1.LeaseProbeService`.

use std::collections::BTreeMap;

use tonic::{Request, Response, Status};
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_server::LeaseProbeService;
use watchdog_runtime::request::{self, PageRequest};
use watchdog_runtime::rpc_error::{ErrorReason, error};
use watchdog_watch_stream::seed_view::{SeedView, scope};
use watchdog_watch_stream::stream::Responses;

use super::convert;

/// Returns true if it is certain that the seed has no Cluster of a name.
pub(crate) type IsUnknown = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// The gRPC service of a replica.
pub struct LeaseProbeApi {
    /// The verdicts on all shoots of the seed.
    pub verdicts: SeedView<pb::Verdict>,
    /// Distinguishes a shoot that does not exist from one without a verdict.
    pub is_unknown: IsUnknown,
}

impl LeaseProbeApi {
    /// The answer for a shoot on which there is no verdict.
    fn without_verdict(&self, shoot: &str) -> Status {
        if (self.is_unknown)(shoot) {
            return request::unknown_shoot(shoot);
        }
        let message = format!("there is no verdict on {shoot} yet: try again in 1 s");
        error(ErrorReason::NotReported, message)
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
        let stream = self.verdicts.watch(scope, matches)?;
        Ok(Response::new(stream))
    }

    async fn get_verdict(
        &self,
        request: Request<pb::GetVerdictRequest>,
    ) -> Result<Response<pb::GetVerdictResponse>, Status> {
        let shoot = request.into_inner().shoot;
        request::shoot("shoot", &shoot)?;
        if (self.is_unknown)(&shoot) {
            return Err(request::unknown_shoot(&shoot));
        }
        let answer = self.verdicts.get(&shoot).await;
        let verdict = answer.item.ok_or_else(|| self.without_verdict(&shoot))?;
        Ok(Response::new(pb::GetVerdictResponse {
            verdict: Some(verdict),
            position: answer.position,
            completeness: answer.completeness,
        }))
    }

    async fn list_verdicts(
        &self,
        request: Request<pb::ListVerdictsRequest>,
    ) -> Result<Response<pb::ListVerdictsResponse>, Status> {
        let request = request.into_inner();
        let scope = scope(request.scope)?;
        let outcomes = request::enum_values::<pb::Outcome>("outcomes", &request.outcomes)?;
        let filter = ["ListVerdicts", scope.as_str_name(), &format!("{outcomes:?}")];
        let page = PageRequest::read(request.page_size, &request.page_token, &filter)?;
        let asked =
            |_: &String, verdict: &pb::Verdict| outcomes.is_empty() || outcomes.contains(&verdict.outcome);
        let page = self.verdicts.list(scope, &page, asked).await?;
        Ok(Response::new(page.into()))
    }

    async fn get_seed_summary(
        &self,
        request: Request<pb::GetSeedSummaryRequest>,
    ) -> Result<Response<pb::GetSeedSummaryResponse>, Status> {
        let scope = scope(request.into_inner().scope)?;
        let mut shoots = 0;
        // By the numbers of the enums.
        let (mut outcomes, mut skip_reasons) = (BTreeMap::new(), BTreeMap::new());
        let count = |verdict: &pb::Verdict| {
            shoots += 1;
            *outcomes.entry(verdict.outcome).or_default() += 1;
            if verdict.outcome() == pb::Outcome::Skipped {
                *skip_reasons.entry(verdict.skip_reason).or_default() += 1;
            }
        };
        let (position, completeness) = self.verdicts.visit(scope, count).await;
        let replicas = self.verdicts.known_replicas().len();
        let summary = pb::SeedSummary {
            shoots,
            outcomes: { outcomes.into_iter() }
                .map(|(outcome, shoots)| pb::OutcomeCount { outcome, shoots })
                .collect(),
            skip_reasons: { skip_reasons.into_iter() }
                .map(|(skip_reason, shoots)| pb::SkipReasonCount { skip_reason, shoots })
                .collect(),
            replicas: u32::try_from(replicas).unwrap_or(u32::MAX),
        };
        Ok(Response::new(pb::GetSeedSummaryResponse {
            summary: Some(summary),
            position: Some(position),
            completeness: Some(completeness),
        }))
    }

    async fn list_replicas(
        &self,
        request: Request<pb::ListReplicasRequest>,
    ) -> Result<Response<pb::ListReplicasResponse>, Status> {
        let request = request.into_inner();
        let page = PageRequest::read(request.page_size, &request.page_token, &["ListReplicas"])?;
        let known = self.verdicts.known_replicas();
        let (position, completeness) = self.verdicts.standing();
        let total_size = i32::try_from(known.len()).unwrap_or(i32::MAX);
        let is_next = |name: &str| page.after.as_deref().is_none_or(|after| name > after);
        let rest = known.into_iter().filter(|(name, _)| is_next(name));
        let mut replicas: Vec<pb::Replica> = rest
            .map(|(name, (state, shoots))| convert::replica(&name, state, shoots))
            .collect();
        let has_more = replicas.len() > page.size;
        replicas.truncate(page.size);
        let last = replicas.last().filter(|_| has_more);
        Ok(Response::new(pb::ListReplicasResponse {
            next_page_token: last.map(|last| page.token_after(&last.name)).unwrap_or_default(),
            replicas,
            total_size,
            position: Some(position),
            completeness: Some(completeness),
        }))
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;
    use tonic::Code;

    use super::*;

    /// Clients take NOT_FOUND for an answer and UNAVAILABLE for a reason to ask again.
    #[tokio::test(start_paused = true)]
    async fn a_shoot_is_not_found_only_when_it_is_certain_that_there_is_none() {
        let service = LeaseProbeApi {
            is_unknown: Box::new(|shoot| shoot == "none"),
            verdicts: SeedView::new("a".into(), CancellationToken::new()),
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
