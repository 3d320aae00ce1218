//! Connections on which nobody speaks, floods of them, and those whose certificate is not accepted any more.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_stream::StreamExt as _;
use tonic::Status;
use tonic::body::Body;
use tonic_health::pb::HealthCheckRequest;
use tower::{Service as _, ServiceExt};
use watchdog_runtime::tls::{CertificateSource, TlsCredentials};

use crate::certs::Authority;
use crate::server::{CLIENT, SERVER, Server, channel, recorded, refused};
use crate::{PATIENCE, until};

async fn connect_from(last: u8, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, last], 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

async fn until_closed(caller: &mut (impl AsyncRead + Unpin)) {
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
        let server = Server::start(tls).await;
        let mut caller = TcpStream::connect(server.address).await.unwrap();
        caller.write_all(sent.as_bytes()).await.unwrap();
        tokio::time::pause();
        until_closed(&mut caller).await;
        assert_eq!(refused(&metrics, reason), 1, "{}", metrics.render());
        tokio::time::resume();
        server.stop.cancel();
    }
}

/// As `watchdogctl check` does, which looks at the certificate.
#[tokio::test]
async fn a_known_caller_that_hangs_up_without_a_word_is_not_refused() {
    let (metrics, _guard) = recorded();
    let authority = Authority::new("ours");
    let server = Server::start(Some(authority.tls(SERVER))).await;
    for (name, reason) in [(CLIENT, None), ("other.test", Some("silent"))] {
        let connector = TlsConnector::from(authority.tls(name).client().current().await);
        let tcp = TcpStream::connect(server.address).await.unwrap();
        let mut caller = connector.connect(SERVER.try_into().unwrap(), tcp).await.unwrap();
        caller.shutdown().await.unwrap();
        until_closed(&mut caller).await;
        for counted in ["handshake", "silent", "identity"] {
            let expected = u64::from(reason == Some(counted));
            assert_eq!(
                refused(&metrics, counted),
                expected,
                "{name}: {}",
                metrics.render()
            );
        }
    }
}

#[tokio::test]
async fn a_known_caller_gets_in_while_two_addresses_attack() {
    let (metrics, _guard) = recorded();
    let authority = Authority::new("ours");
    let server = Server::start(Some(authority.tls(SERVER))).await;
    let client = authority.tls(CLIENT);
    let mut silent = Vec::new();
    for _ in 0..10 {
        for _ in 0..30 {
            silent.push(connect_from(2, server.address).await);
            silent.push(connect_from(3, server.address).await);
        }
        server.ask(Some(&client)).await.unwrap();
    }
    assert!(refused(&metrics, "evicted") >= 500, "{}", metrics.render());
    assert_eq!(refused(&metrics, "limit"), 0);
    until_closed(&mut silent[0]).await;
}

#[tokio::test]
async fn a_caller_has_8_connections() {
    let (metrics, _guard) = recorded();
    let authority = Authority::new("ours");
    let server = Server::start(Some(authority.tls(SERVER))).await;
    let client = authority.tls(CLIENT);
    let (mut streams, mut full) = (Vec::new(), Vec::new());
    for _ in 0..12 {
        let mut connection = server.client(Some(&client));
        match connection.watch(HealthCheckRequest::default()).await {
            Ok(stream) => streams.push(stream),
            Err(status) => full.push(status),
        }
    }
    assert_eq!(streams.len(), 8, "each has a connection of its own");
    for status in full {
        assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status}");
        assert!(
            status.message().contains("you already have 8 connections"),
            "{status}"
        );
    }
    assert_eq!(refused(&metrics, "limit"), 4, "{}", metrics.render());
    drop(streams);
    until("there is a place again", async || {
        server.ask(Some(&client)).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_caller_has_32_calls_and_streams_whatever_its_connections() {
    let authority = Authority::new("ours");
    let server = Server::start(Some(authority.tls(SERVER))).await;
    let client = authority.tls(CLIENT);
    let connections = [server.client(Some(&client)), server.client(Some(&client))];
    let (mut streams, mut full) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        for mut connection in connections.clone() {
            match connection.watch(HealthCheckRequest::default()).await {
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

/// The bounds of requests are those of the server, whatever service they are for.
#[tokio::test]
async fn a_request_has_128_kib_and_10_seconds() {
    let server = Server::start(None).await;
    let service = |length| HealthCheckRequest {
        service: "x".repeat(length),
    };
    let ask = async |length| server.client(None).check(service(length)).await.unwrap_err();
    assert_eq!(ask(120 << 10).await.code(), tonic::Code::NotFound);
    let too_large = ask(200 << 10).await;
    assert_eq!(too_large.code(), tonic::Code::OutOfRange, "{too_large}");

    let mut channel = channel(server.address, None, SERVER);
    ServiceExt::ready(&mut channel).await.unwrap();
    let incomplete = StreamBody::new(tokio_stream::pending::<Result<_, Status>>());
    let request = Request::post("/grpc.health.v1.Health/Check").body(Body::new(incomplete));
    let mut call = pin!(channel.call(request.unwrap()));
    let sent = tokio::time::timeout(Duration::from_secs(1), call.as_mut()).await;
    assert!(sent.is_err(), "{sent:?}");
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    let late = Status::from_header_map(call.await.unwrap().headers()).unwrap();
    assert_eq!(late.code(), tonic::Code::DeadlineExceeded, "{late}");
    assert!(
        began.elapsed() <= Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
}

/// A stream of requests is not read before its handler.
#[tokio::test]
async fn a_request_on_a_stream_has_128_kib() {
    let server = Server::start(None).await;
    let mut channel = channel(server.address, None, SERVER);
    ServiceExt::ready(&mut channel).await.unwrap();
    let head = [&[0][..], &u32::to_be_bytes(200 << 10)].concat();
    let frames = tokio_stream::iter([Ok::<_, Status>(Frame::data(head.into()))]);
    let incomplete = StreamBody::new(frames.chain(tokio_stream::pending()));
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let request = Request::post(path).body(Body::new(incomplete)).unwrap();
    let answer = channel.call(request).await.unwrap().into_body().collect();
    let ended = tokio::time::timeout(PATIENCE, answer).await;
    ended.expect("it ends").unwrap();
}

#[tokio::test]
async fn an_open_connection_ends_when_its_authority_is_not_trusted_any_more() {
    let (metrics, _guard) = recorded();
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let tls = old.tls(SERVER);
    let server = Server::start(Some(tls.clone())).await;
    let mut client = server.client(Some(&old.tls(CLIENT)));
    let watch = client.watch(HealthCheckRequest::default()).await;
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
