//! `gardener.watchdog.scaling.v1.ScalingService`.

use std::collections::BTreeMap;

use tonic::{Request, Response, Status};
use watchdog_proto::scaling::v1 as pb;
use watchdog_proto::scaling::v1::scaling_service_server::ScalingService;
use watchdog_runtime::request::{self, PageRequest};
use watchdog_runtime::rpc_error::{ErrorReason, error, invalid_field};
use watchdog_watch_stream::seed_view::{SeedView, scope};
use watchdog_watch_stream::stream::Responses;

use super::convert;
use crate::domain::Direction;
use crate::domain::plan::ShootPlan;

/// The effect that a direction would have on a shoot; none when the seed has no such Cluster.
type PlanShoot = Box<dyn Fn(&str, Direction) -> Option<ShootPlan> + Send + Sync>;

/// The gRPC service of a replica.
pub struct ScalingApi {
    /// The states of all shoots of the seed.
    pub scaling: SeedView<pb::ShootScaling>,
    /// Says whether it is certain that the seed has no Cluster of this name.
    pub is_unknown: Box<dyn Fn(&str) -> bool + Send + Sync>,
    /// Plans for one shoot.
    pub plan: PlanShoot,
    /// The name of the leader; empty if this replica, which holds the Lease when it answers, must not act.
    pub leader: Box<dyn Fn() -> String + Send + Sync>,
}

impl ScalingApi {
    /// The answer for a shoot without a state.
    fn not_reported(&self, shoot: &str) -> Status {
        if (self.is_unknown)(shoot) {
            return request::unknown_shoot(shoot);
        }
        let message = format!("{shoot} has no state yet: try again in 1 s");
        error(ErrorReason::NotReported, message)
    }
}

#[tonic::async_trait]
impl ScalingService for ScalingApi {
    type WatchScalingStream = Responses<pb::WatchScalingResponse>;

    async fn watch_scaling(
        &self,
        request: Request<pb::WatchScalingRequest>,
    ) -> Result<Response<Self::WatchScalingStream>, Status> {
        let request = request.into_inner();
        let scope = scope(request.scope)?;
        let shoots = request::shoots(request.shoots)?;
        let matches = move |shoot: &String| shoots.is_empty() || shoots.contains(shoot);
        let stream = self.scaling.watch(scope, matches)?;
        Ok(Response::new(stream))
    }

    async fn get_scaling(
        &self,
        request: Request<pb::GetScalingRequest>,
    ) -> Result<Response<pb::GetScalingResponse>, Status> {
        let shoot = request.into_inner().shoot;
        request::shoot("shoot", &shoot)?;
        if (self.is_unknown)(&shoot) {
            return Err(request::unknown_shoot(&shoot));
        }
        let answer = self.scaling.get(&shoot).await;
        let scaling = answer.item.ok_or_else(|| self.not_reported(&shoot))?;
        Ok(Response::new(pb::GetScalingResponse {
            scaling: Some(scaling),
            position: answer.position,
            completeness: answer.completeness,
        }))
    }

    async fn list_scaling(
        &self,
        request: Request<pb::ListScalingRequest>,
    ) -> Result<Response<pb::ListScalingResponse>, Status> {
        let request = request.into_inner();
        let scope = scope(request.scope)?;
        let directions = request::enum_values::<pb::Direction>("directions", &request.directions)?;
        let states = request::enum_values::<pb::FlowState>("states", &request.states)?;
        let modes = request::enum_values::<pb::Mode>("modes", &request.modes)?;
        let active = request.meltdown_protection_active;
        let filter = format!("{directions:?} {states:?} {modes:?} {active:?}");
        let filter = ["ListScaling", scope.as_str_name(), &filter];
        let page = PageRequest::read(request.page_size, &request.page_token, &filter)?;
        let asked = |_: &String, scaling: &pb::ShootScaling| {
            (directions.is_empty() || directions.contains(&scaling.direction))
                && (states.is_empty() || states.contains(&scaling.state))
                && (modes.is_empty() || modes.contains(&scaling.mode))
                && active.is_none_or(|active| active == scaling.meltdown_protection_active)
        };
        let page = self.scaling.list(scope, &page, asked).await?;
        Ok(Response::new(page.into()))
    }

    async fn plan_scaling(
        &self,
        request: Request<pb::PlanScalingRequest>,
    ) -> Result<Response<pb::PlanScalingResponse>, Status> {
        let request = request.into_inner();
        request::shoot("shoot", &request.shoot)?;
        let direction = convert::asked_direction(request.direction).ok_or_else(|| {
            let why = "must be DIRECTION_DOWN or DIRECTION_UP";
            invalid_field("direction", why)
        })?;
        let plan = (self.plan)(&request.shoot, direction);
        let plan = plan.ok_or_else(|| self.not_reported(&request.shoot))?;
        Ok(Response::new(convert::plan(&plan)))
    }

    async fn get_seed_summary(
        &self,
        request: Request<pb::GetSeedSummaryRequest>,
    ) -> Result<Response<pb::GetSeedSummaryResponse>, Status> {
        let scope = scope(request.into_inner().scope)?;
        let mut summary = pb::SeedSummary {
            leader: (self.leader)(),
            ..pb::SeedSummary::default()
        };
        // By the numbers of the enums.
        let [mut directions, mut states, mut hold_reasons, mut modes] =
            [const { BTreeMap::<i32, u32>::new() }; 4];
        let counted = self.scaling.visit(scope, |scaling| {
            summary.shoots += 1;
            summary.meltdown_protection_active += u32::from(scaling.meltdown_protection_active);
            summary.incidents += u32::from(scaling.incident.is_some());
            *directions.entry(scaling.direction).or_default() += 1;
            *states.entry(scaling.state).or_default() += 1;
            *modes.entry(scaling.mode).or_default() += 1;
            if scaling.direction() == pb::Direction::Hold {
                *hold_reasons.entry(scaling.hold_reason).or_default() += 1;
            }
        });
        let (position, completeness) = counted.await;
        summary.directions = counts(directions, |direction, shoots| pb::DirectionCount {
            direction,
            shoots,
        });
        summary.states = counts(states, |state, shoots| pb::FlowStateCount { state, shoots });
        summary.hold_reasons = counts(hold_reasons, |hold_reason, shoots| pb::HoldReasonCount {
            hold_reason,
            shoots,
        });
        summary.modes = counts(modes, |mode, shoots| pb::ModeCount { mode, shoots });
        Ok(Response::new(pb::GetSeedSummaryResponse {
            summary: Some(summary),
            position: Some(position),
            completeness: Some(completeness),
        }))
    }
}

/// The shoots by the number of an enum, as messages.
fn counts<T>(by_number: BTreeMap<i32, u32>, message: impl Fn(i32, u32) -> T) -> Vec<T> {
    by_number
        .into_iter()
        .map(|(number, shoots)| message(number, shoots))
        .collect()
}
