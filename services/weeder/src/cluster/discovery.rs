//! Where does the seed say which endpoints are ready?

use std::time::Duration;

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

/// Asks the API server until it answers; `blocker` says why it does not.
pub(crate) async fn discover(
    client: &kube::Client,
    readiness: &Readiness,
    blocker: &Blocker,
) -> EndpointsApi {
    let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));
    loop {
        let resources = match request(client.list_api_group_resources("discovery.k8s.io/v1")).await {
            Ok(served) => served.resources,
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => {
                let failure = error.failure();
                let reason = failure.reason.as_str();
                blocker.because("cannot discover the APIs of the seed");
                if readiness.failing("discovery", failure) {
                    tracing::warn!(reason, %error, "cannot discover the APIs of the seed; trying again");
                }
                tokio::time::sleep(backoff.next_delay()).await;
                continue;
            }
        };
        readiness.recovered("discovery");
        let served = match resources.iter().any(|resource| resource.name == "endpointslices") {
            true => EndpointsApi::EndpointSlices,
            false => EndpointsApi::Endpoints,
        };
        tracing::info!(
            source = served.watch_name(),
            "source of the readiness of services chosen"
        );
        return served;
    }
}
