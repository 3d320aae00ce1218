//! The API of scaling-coordinator, for the fuzz targets in `fuzz/`.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use watchdog_proto::scaling::v1::scaling_service_server::ScalingService;
use watchdog_watch_stream::merged::MergedView;
use watchdog_watch_stream::stream::Streams;

use crate::domain::Direction;
use crate::domain::overview::{Overview, ShootPlan};
use crate::grpc::service::ScalingApi;

struct NoShoots;

impl Overview for NoShoots {
    fn is_unknown(&self, _: &str) -> bool {
        false
    }

    fn owner(&self, _: &str) -> Option<Arc<str>> {
        None
    }

    fn plan(&self, _: &str, _: Direction) -> Option<ShootPlan> {
        None
    }
}

/// The API of a replica without items.
#[must_use]
pub fn api() -> impl ScalingService {
    ScalingApi {
        scaling: MergedView::new("fuzz".into()),
        events: MergedView::new("fuzz".into()),
        overview: Arc::new(NoShoots),
        streams: Streams::new(CancellationToken::new()),
    }
}
