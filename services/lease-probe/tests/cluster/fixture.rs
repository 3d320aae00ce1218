//! Clients of lease-probe, and their kubeconfigs.

use std::sync::Arc;
use std::time::Duration;

use lease_probe::cluster::http::HttpConnector;
use lease_probe::cluster::kubeconfig::{Access, access};
use lease_probe::cluster::limits::SharedLimits;
use lease_probe::cluster::shoot_client::ShootClient;
use lease_probe::cluster::transport::Budget;
use tracing::subscriber::DefaultGuard;
use watchdog_runtime::clock::Clock;
use watchdog_test_support::in_process::CapturedOutput;

pub(crate) const LOCAL: HttpConnector = HttpConnector {
    allow_local_addresses: true,
};

/// A seed that nobody asks.
pub(crate) fn nowhere() -> kube::Client {
    let seed = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
    kube::Client::try_from(seed).unwrap()
}

pub(crate) fn access_to(kubeconfig: &str) -> Access {
    access(Ok(Some(kubeconfig.as_bytes())))
}

/// A kubeconfig with this server and a token.
pub(crate) fn kubeconfig(server: &str) -> String {
    format!(
        "{{clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}], users: [{{name: u, user: {{token: t}}}}], \
         contexts: [{{name: x, context: {{cluster: c, user: u}}}}]}}"
    )
}

pub(crate) fn client(connector: HttpConnector, limits: &Arc<SharedLimits>) -> ShootClient<HttpConnector> {
    ShootClient::new(
        "shoot".into(),
        nowhere(),
        Clock::start(),
        connector,
        limits.clone(),
    )
}

pub(crate) fn budget(limit: Duration) -> Budget {
    Budget::starting_now(limit)
}

/// The log of this thread on its most verbose level, while the guard exists.
pub(crate) fn captured_log() -> (CapturedOutput, DefaultGuard) {
    let log = CapturedOutput::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone());
    (log, tracing::subscriber::set_default(subscriber.finish()))
}
