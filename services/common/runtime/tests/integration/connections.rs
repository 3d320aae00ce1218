//! Connections on which nobody speaks, floods of them, and those whose certificate is not accepted any more.

use std::net::SocketAddr;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic::service::RoutesBuilder;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use watchdog_runtime::allowed_clients::AllowedClients;
use watchdog_runtime::grpc_client::Dialer;
use watchdog_runtime::grpc_server::{self, Api};
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::tls::{CertificateSource, Tls, TlsCredentials};

use crate::certs::Authority;
use crate::{PATIENCE, until};

const SERVER: &str = "server.test";
const CLIENT: &str = "client.test";

async fn serve(tls: Option<Tls>) -> (SocketAddr, CancellationToken) {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let stop = CancellationToken::new();
    let api = Api {
        routes: RoutesBuilder::default(),
        service_names: &[],
        descriptors: &[],
    };
    tokio::spawn(grpc_server::serve(
        listener,
        tls,
        AllowedClients::named(&[], &[CLIENT.to_owned()]),
        api,
        "replica-0".into(),
        Readiness::default(),
        stop.clone(),
    ));
    (([127, 0, 0, 1], port).into(), stop)
}

/// The metrics of this thread, on which all of a test's tasks run.
fn recorded() -> (PrometheusHandle, metrics::LocalRecorderGuard<'static>) {
    let recorder: &'static _ = Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
    (recorder.handle(), metrics::set_default_local_recorder(recorder))
}

fn refused(metrics: &PrometheusHandle, reason: &str) -> u64 {
    let series = format!("watchdog_grpc_connections_refused_total{{reason=\"{reason}\"}} ");
    let text = metrics.render();
    let count = text.lines().find_map(|line| line.strip_prefix(&series));
    count.map(|count| count.parse().unwrap()).unwrap_or_default()
}

fn channel(address: SocketAddr, tls: &Tls) -> Channel {
    let dialer = Dialer {
        tls: Some(tls.client()),
        server_name: SERVER.to_owned(),
    };
    dialer.channel(&address.to_string()).unwrap()
}

async fn connect_from(last: u8, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, last], 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

async fn until_closed(caller: &mut TcpStream) {
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, caller.read_to_end(&mut rest))
        .await
        .expect("the server hangs up");
}

#[tokio::test]
async fn a_caller_that_does_not_begin_to_speak_is_let_go() {
    for (tls, sent, reason) in [
        (None, "PRI * HTT", "silent"),
        (None, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "silent"),
        (Some(Authority::new("ours").tls(SERVER)), "", "timeout"),
    ] {
        let (metrics, _guard) = recorded();
        let (address, stop) = serve(tls).await;
        let mut caller = TcpStream::connect(address).await.unwrap();
        caller.write_all(sent.as_bytes()).await.unwrap();
        tokio::time::pause();
        until_closed(&mut caller).await;
        assert_eq!(refused(&metrics, reason), 1, "{}", metrics.render());
        tokio::time::resume();
        stop.cancel();
    }
}

#[tokio::test]
async fn a_known_caller_gets_in_while_two_addresses_attack() {
    let (metrics, _guard) = recorded();
    let authority = Authority::new("ours");
    let (address, _stop) = serve(Some(authority.tls(SERVER))).await;
    let client = authority.tls(CLIENT);
    let mut silent = Vec::new();
    for _ in 0..10 {
        for _ in 0..30 {
            silent.push(connect_from(2, address).await);
            silent.push(connect_from(3, address).await);
        }
        let mut health = HealthClient::new(channel(address, &client));
        let check = health.check(HealthCheckRequest::default());
        tokio::time::timeout(PATIENCE, check).await.unwrap().unwrap();
    }
    assert!(refused(&metrics, "evicted") >= 500, "{}", metrics.render());
    assert_eq!(refused(&metrics, "limit"), 0);
    until_closed(&mut silent[0]).await;
}

#[tokio::test]
async fn a_caller_has_8_connections() {
    let (metrics, _guard) = recorded();
    let authority = Authority::new("ours");
    let (address, _stop) = serve(Some(authority.tls(SERVER))).await;
    let client = authority.tls(CLIENT);
    let mut streams = Vec::new();
    let mut full = None;
    for _ in 0..8 {
        for _ in 0..5 {
            let mut health = HealthClient::new(channel(address, &client));
            match health.watch(HealthCheckRequest::default()).await {
                Ok(stream) => streams.push(stream),
                Err(status) => full = Some(status),
            }
        }
    }
    assert_eq!(streams.len(), 8, "each has a connection of its own");
    assert!(full.is_some());
    assert!(refused(&metrics, "limit") > 0, "{}", metrics.render());
    drop(streams);
    until("there is a place again", async || {
        HealthClient::new(channel(address, &client))
            .check(HealthCheckRequest::default())
            .await
            .is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_caller_has_32_calls_and_streams_whatever_its_connections() {
    let authority = Authority::new("ours");
    let (address, _stop) = serve(Some(authority.tls(SERVER))).await;
    let client = authority.tls(CLIENT);
    let health = HealthClient::new(channel(address, &client));
    let other = HealthClient::new(channel(address, &client));
    let (mut streams, mut full) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        for mut client in [health.clone(), other.clone()] {
            match client.watch(HealthCheckRequest::default()).await {
                Ok(stream) => streams.push(stream),
                Err(status) => full.push(status),
            }
        }
    }
    assert_eq!((streams.len(), full.len()), (32, 8));
    for status in full {
        assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status}");
    }
}

#[tokio::test]
async fn an_open_connection_ends_when_its_authority_is_not_trusted_any_more() {
    let (metrics, _guard) = recorded();
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let tls = old.tls(SERVER);
    let (address, _stop) = serve(Some(tls.clone())).await;
    let channel = channel(address, &old.tls(CLIENT));
    let watch = HealthClient::new(channel)
        .watch(HealthCheckRequest::default())
        .await;
    let mut watch = watch.unwrap().into_inner();
    watch.message().await.unwrap().unwrap();

    let credentials = |trusted: &[&Authority]| TlsCredentials {
        authorities: trusted.iter().map(|authority| authority.der()).collect(),
        ..new.credentials(SERVER, CertificateSource::Files)
    };
    tls.replace(credentials(&[&new, &old])).unwrap();
    tokio::task::yield_now().await;
    assert_eq!(refused(&metrics, "distrusted"), 0, "both are trusted");
    tls.replace(credentials(&[&new])).unwrap();
    let ended = async { while let Ok(Some(_)) = watch.message().await {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("it ends");
    assert_eq!(refused(&metrics, "distrusted"), 1, "{}", metrics.render());
}
