//! The API of lease-probe, for the fuzz targets in `fuzz/`.

use tokio_util::sync::CancellationToken;
use watchdog_proto::probe::v1::lease_probe_service_server::LeaseProbeService;
use watchdog_watch_stream::merged::MergedView;
use watchdog_watch_stream::stream::Streams;

use crate::grpc::service::LeaseProbeApi;

/// The API of a replica without items.
#[must_use]
pub fn api() -> impl LeaseProbeService {
    LeaseProbeApi {
        verdicts: MergedView::new("fuzz".into()),
        is_unknown: Box::new(|_| false),
        streams: Streams::new(CancellationToken::new()),
    }
}
