//! Where does the seed say which endpoints are ready?

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use watchdog_kube::client::request;
use watchdog_runtime::backoff::Backoff;
use watchdog_runtime::readiness::{Blocker, Readiness};

/// The kind of object that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndpointsApi {
    /// `discovery.k8s.io/v1` `EndpointSlice`.
    EndpointSlices,
    /// `v1` Endpoints.
    Endpoints,
}

impl EndpointsApi {
    /// Name of its watch in logs, metrics and readiness.
    pub(crate) const fn watch_name(self) -> &'static str {
        match self {
            Self::EndpointSlices => "endpointslices",
            Self::Endpoints => "endpoints",
        }
    }
}

/// Asks the API server until it answers; `blocker` says why it does not. None when `stop` is cancelled before.
pub(crate) async fn discover(
    client: &kube::Client,
    readiness: &Readiness,
    blocker: &Blocker,
    stop: &CancellationToken,
) -> Option<EndpointsApi> {
    let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));
    loop {
        let failure = match request(client.list_api_group_resources("discovery.k8s.io/v1")).await {
            Ok(served) => {
                let mut served = served.resources.iter();
                let slices = served.any(|resource| resource.name == "endpointslices");
                return Some(found(slices, readiness));
            }
            Err(error) if error.is_not_found() => return Some(found(false, readiness)),
            Err(error) => error.failure(),
        };
        let reason = failure.reason.as_str();
        tracing::warn!(reason, error = %failure, "cannot discover the APIs of the seed; trying again");
        blocker.because("cannot ask the seed which APIs it serves");
        readiness.failing("discovery", failure);
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(backoff.next_delay()) => {}
        }
    }
}

fn found(slices: bool, readiness: &Readiness) -> EndpointsApi {
    let (served, why) = if slices {
        (EndpointsApi::EndpointSlices, "discovery.k8s.io/v1 is served")
    } else {
        (EndpointsApi::Endpoints, "discovery.k8s.io/v1 is not served")
    };
    let source = served.watch_name();
    tracing::info!(source, why, "source of the readiness of services chosen");
    readiness.recovered("discovery");
    served
}
