//! `gardener.watchdog.scaling.v1.ScalingService`.

use std::pin::Pin;
use std::sync::Arc;

use tokio_stream::Stream;
use tonic::{Request, Response, Status};
use watchdog_proto::scaling::v1 as pb;
use watchdog_proto::scaling::v1::scaling_service_server::ScalingService;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::request;
use watchdog_watch_stream::server::StateStore;
use watchdog_watch_stream::stream::Streams;

use super::convert;
use crate::domain::overview::{Overview, ShootScaling};

pub(crate) struct Service {
    /// Of the shoots that this replica owns.
    pub(crate) shoots: StateStore<String, ShootScaling>,
    /// About all others, and plans.
    pub(crate) overview: Arc<dyn Overview>,
    pub(crate) streams: Streams,
    pub(crate) clock: Clock,
}

impl Service {
    /// The answer for a shoot about which nothing is known.
    fn unknown(&self, shoot: &str) -> Status {
        if self.overview.is_listed() {
            request::unknown_shoot(shoot)
        } else {
            Status::unavailable("the Clusters of the seed are not listed yet: try again in a moment")
        }
    }
}

#[tonic::async_trait]
impl ScalingService for Service {
    type WatchShootEventsStream =
        Pin<Box<dyn Stream<Item = Result<pb::WatchShootEventsResponse, Status>> + Send>>;

    async fn watch_shoot_events(
        &self,
        _request: Request<pb::WatchShootEventsRequest>,
    ) -> Result<Response<Self::WatchShootEventsStream>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    async fn list_shoot_events(
        &self,
        _request: Request<pb::ListShootEventsRequest>,
    ) -> Result<Response<pb::ListShootEventsResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    type WatchScalingStream = Pin<Box<dyn Stream<Item = Result<pb::WatchScalingResponse, Status>> + Send>>;

    async fn watch_scaling(
        &self,
        request: Request<pb::WatchScalingRequest>,
    ) -> Result<Response<Self::WatchScalingStream>, Status> {
        let shoots = request::shoots(request.into_inner().shoots)?;
        let matches = move |shoot: &String| shoots.is_empty() || shoots.contains(shoot);
        let clock = self.clock;
        let encode = move |message| convert::response(message, clock);
        let stream = self
            .streams
            .serve("WatchScaling", self.shoots.subscribe(matches), encode)?;
        Ok(Response::new(stream))
    }

    async fn get_scaling(
        &self,
        request: Request<pb::GetScalingRequest>,
    ) -> Result<Response<pb::GetScalingResponse>, Status> {
        let shoot = request.into_inner().shoot;
        request::shoot("shoot", &shoot)?;
        let scaling = match self.shoots.get(&shoot) {
            Some(ours) => convert::shoot_scaling(&shoot, &ours, self.clock),
            None => {
                let other = self
                    .overview
                    .scaling(&shoot)
                    .ok_or_else(|| self.unknown(&shoot))?;
                convert::shoot_scaling(&shoot, &other, self.clock)
            }
        };
        Ok(Response::new(pb::GetScalingResponse {
            scaling: Some(scaling),
            ..Default::default()
        }))
    }

    async fn list_scaling(
        &self,
        request: Request<pb::ListScalingRequest>,
    ) -> Result<Response<pb::ListScalingResponse>, Status> {
        let request = request.into_inner();
        let limit = request::page_size(request.page_size)?;
        let after = request::page_token(&request.page_token)?;
        let page = self.shoots.page(after.as_ref(), limit, |_, _| true);
        let last = page.items.last().filter(|_| page.more);
        let next_page_token = last
            .map(|(shoot, _)| request::next_page_token(shoot))
            .unwrap_or_default();
        let scalings = page
            .items
            .iter()
            .map(|(shoot, s)| convert::shoot_scaling(shoot, s, self.clock))
            .collect();
        let total_size = i32::try_from(page.total).unwrap_or(i32::MAX);
        Ok(Response::new(pb::ListScalingResponse {
            scalings,
            next_page_token,
            total_size,
            ..Default::default()
        }))
    }

    async fn plan_scaling(
        &self,
        request: Request<pb::PlanScalingRequest>,
    ) -> Result<Response<pb::PlanScalingResponse>, Status> {
        let request = request.into_inner();
        request::shoot("shoot", &request.shoot)?;
        let direction = convert::asked_direction(request.direction).ok_or_else(|| {
            Status::invalid_argument(
                "direction: must be DIRECTION_DOWN or DIRECTION_UP: those are the ones to plan",
            )
        })?;
        let plan = self
            .overview
            .plan(&request.shoot, direction)
            .ok_or_else(|| self.unknown(&request.shoot))?;
        Ok(Response::new(convert::plan(&plan)))
    }
}
