//! Connections on which nobody speaks, on a clock that jumps to whatever is waited for.

use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;
use watchdog_runtime::accept::{Connection, accept};
use watchdog_runtime::allowed_clients::AllowedClients;

use crate::certs::Authority;

/// The first bytes of every HTTP/2 connection.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// An accepted connection and its other end.
async fn plain() -> (Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut accepted = accept(
        listener,
        None,
        AllowedClients::default(),
        CancellationToken::new(),
    );
    let caller = TcpStream::connect(address).await.unwrap();
    let connection = accepted.recv().await.unwrap().unwrap();
    (connection, caller)
}

#[tokio::test]
async fn who_does_not_begin_to_speak_is_let_go() {
    let (mut connection, mut caller) = plain().await;
    assert_eq!(connection.connect_info().address, caller.local_addr().unwrap());
    assert!(connection.connect_info().refused.is_none());
    // Half a word.
    caller.write_all(&PREFACE[..10]).await.unwrap();
    connection.read_exact(&mut [0; 10]).await.unwrap();
    tokio::time::pause();
    let error = connection.read(&mut [0; 10]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn who_has_begun_may_be_silent() {
    let (mut connection, mut caller) = plain().await;
    caller.write_all(PREFACE).await.unwrap();
    connection.read_exact(&mut [0; 24]).await.unwrap();
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(3_600)).await;
    caller.write_all(b"more").await.unwrap();
    let mut more = [0; 4];
    connection.read_exact(&mut more).await.unwrap();
    assert_eq!(&more, b"more");
    // And the other way.
    connection.write_all(b"answer").await.unwrap();
    connection.flush().await.unwrap();
    connection.shutdown().await.unwrap();
    let mut answer = String::new();
    caller.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "answer");
}

#[tokio::test]
async fn a_handshake_that_never_comes_keeps_no_place() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = Authority::new("ours").tls("server.test");
    let stop = CancellationToken::new();
    let mut accepted = accept(listener, Some(tls), AllowedClients::default(), stop.clone());
    let mut caller = TcpStream::connect(address).await.unwrap();
    tokio::time::pause();
    // The server hangs up: nothing more comes.
    assert_eq!(caller.read(&mut [0; 1]).await.unwrap(), 0);
    let counted = "watchdog_grpc_connections_refused_total{reason=\"timeout\"} 1";
    assert!(metrics.render().contains(counted), "{}", metrics.render());
    stop.cancel();
    assert!(
        accepted.recv().await.is_none(),
        "nothing was accepted, nothing will be"
    );
}
