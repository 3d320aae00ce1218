//! The decoders and the API of the weeder, for the fuzz targets in `fuzz/`.

use std::collections::BTreeMap;

use tokio_util::sync::CancellationToken;
use watchdog_proto::weeder::v1::weeder_service_server::WeederService;
use watchdog_watch_stream::merged::MergedView;
use watchdog_watch_stream::stream::Streams;

use crate::cluster::{EndpointsObject, PodObject, SliceObject};
use crate::domain::pods::CrashLoop;
use crate::domain::readiness::Slice;
use crate::grpc::service::WeederApi;

/// The parts of a pod by which it is judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// True if it is being deleted.
    pub deleting: bool,
    /// Its containers in a crash loop.
    pub crashes: Vec<CrashLoop>,
}

/// Reads an `EndpointSlice`; none if it has no name.
///
/// # Errors
/// When it is no JSON object.
pub fn slice(bytes: &[u8]) -> serde_json::Result<Option<Slice>> {
    serde_json::from_slice::<SliceObject>(bytes).map(SliceObject::into_slice)
}

/// Reads an Endpoints; none if it has no name.
///
/// # Errors
/// When it is no JSON object.
pub fn endpoints(bytes: &[u8]) -> serde_json::Result<Option<Slice>> {
    serde_json::from_slice::<EndpointsObject>(bytes).map(EndpointsObject::into_slice)
}

/// Reads a Pod; none if it has no name or UID.
///
/// # Errors
/// When it is no JSON object.
pub fn pod(bytes: &[u8]) -> serde_json::Result<Option<PodFacts>> {
    let pod = serde_json::from_slice::<PodObject>(bytes)?.into_pod();
    Ok(pod.map(|pod| PodFacts {
        labels: pod.labels,
        deleting: pod.deleting,
        crashes: pod.crashes,
    }))
}

/// The API of a replica without items.
#[must_use]
pub fn api() -> impl WeederService {
    WeederApi {
        readiness: MergedView::new("fuzz".into()),
        weeders: MergedView::new("fuzz".into()),
        streams: Streams::new(CancellationToken::new()),
    }
}
