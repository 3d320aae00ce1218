//! A gRPC server with nothing but health, and its callers.

use std::net::SocketAddr;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use watchdog_runtime::allowed_clients::AllowedClients;
use watchdog_runtime::grpc_client::Dialer;
use watchdog_runtime::grpc_server;
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::rpc_metrics::Measured;
use watchdog_runtime::tls::Tls;

use crate::PATIENCE;
use crate::process::api;

/// The name in the server's certificate, and in those of its own kind.
pub const SERVER: &str = "server.test";

/// The name of another caller that is allowed.
pub const CLIENT: &str = "client.test";

pub const SERVICE: &str = "test.Service";

pub struct Server {
    pub address: SocketAddr,
    pub readiness: Readiness,
    pub stop: CancellationToken,
    pub served: JoinHandle<anyhow::Result<()>>,
}

impl Server {
    pub async fn start(tls: Option<Tls>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (readiness, stop) = (Readiness::default(), CancellationToken::new());
        let allowed = AllowedClients::named(&[SERVER.to_owned()], &[CLIENT.to_owned()]);
        let served = grpc_server::serve(
            listener,
            tls.map(|tls| tls.allowing(allowed)),
            api(),
            "replica-0".into(),
            readiness.clone(),
            stop.clone(),
        );
        Self {
            address,
            readiness,
            stop,
            served: tokio::spawn(served),
        }
    }

    /// A client with a connection of its own.
    pub fn client(&self, tls: Option<&Tls>) -> HealthClient<Measured<Channel>> {
        HealthClient::new(Measured::client(channel(self.address, tls, SERVER)))
    }

    /// Asks for its health with a connection of its own.
    pub async fn ask(&self, tls: Option<&Tls>) -> Result<ServingStatus, Status> {
        ask(self.address, tls, SERVER).await
    }
}

pub fn channel(address: SocketAddr, tls: Option<&Tls>, server_name: &str) -> Channel {
    let dialer = Dialer {
        tls: tls.map(Tls::client),
        server_name: server_name.to_owned(),
    };
    dialer.channel(&address.to_string()).unwrap()
}

/// Asks a server for its health, as a caller that expects this name.
pub async fn ask(address: SocketAddr, tls: Option<&Tls>, server_name: &str) -> Result<ServingStatus, Status> {
    let request = HealthCheckRequest {
        service: SERVICE.to_owned(),
    };
    let mut client = HealthClient::new(Measured::client(channel(address, tls, server_name)));
    let answer = tokio::time::timeout(PATIENCE, client.check(request)).await;
    Ok(answer.expect("an answer")?.into_inner().status())
}

/// The metrics of this thread, on which all of a test's tasks run.
pub fn recorded() -> (PrometheusHandle, metrics::LocalRecorderGuard<'static>) {
    let recorder: &'static _ = Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
    (recorder.handle(), metrics::set_default_local_recorder(recorder))
}

/// The value of a series; 0 if it is not there.
pub fn value(metrics: &PrometheusHandle, series: &str) -> u64 {
    let text = metrics.render();
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map(|value| value.parse().unwrap()).unwrap_or_default()
}

/// The connections that were refused for this reason.
pub fn refused(metrics: &PrometheusHandle, reason: &str) -> u64 {
    value(
        metrics,
        &format!("watchdog_grpc_connections_refused_total{{reason=\"{reason}\"}}"),
    )
}
