//! Two addresses that open connections and never prove who they are.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{self, BOUND};

use crate::subscriber::list;

/// Connections that the two hold at the same time.
const STRANGERS: usize = 256;

/// From the summary of refusals to the next one.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(60);

async fn connect(last: u8, to: &str) -> TcpStream {
    let to: SocketAddr = to.parse().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    let source = IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
    socket.bind((source, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_addresses_do_not_lock_a_caller_out_and_make_few_lines() {
    let fixture = SandboxFixture::start("strangers", &["one"]).await.unwrap();
    let service = fixture.lease_probe().await.unwrap();
    let began = Instant::now();
    let mut strangers = Vec::new();
    for _ in 0..5 {
        strangers.clear();
        for _ in 0..STRANGERS / 2 {
            for last in [2, 3] {
                strangers.push(connect(last, &service.grpc).await);
            }
        }
        // A connection of its own, which begins as one of a stranger.
        let channel = fixture.setup.channel(&service).unwrap();
        let called = timeout(Duration::from_secs(10), list(channel)).await;
        assert_eq!(called.unwrap().unwrap(), 1);
    }
    let evicted = "watchdog_grpc_connections_refused_total{reason=\"evicted\"}";
    let evicted = service.metric(evicted).await.unwrap();
    assert!(evicted.is_some_and(|count| count >= 500.0), "{evicted:?}");
    let mut lines: HashMap<String, u64> = HashMap::new();
    service
        .process
        .log_reader()
        .unwrap()
        .find(|line| {
            if line.is_message("gRPC connections refused") {
                *lines.entry(line.field("reason")?).or_default() += 1;
            }
            None::<()>
        })
        .unwrap();
    let most = 1 + began.elapsed().as_secs() / SUMMARY_INTERVAL.as_secs();
    assert!(lines.contains_key("evicted"), "{lines:?}");
    assert!(lines.values().all(|count| *count <= most), "{lines:?}");
}

/// A TLS `ClientHello` that asks for a server of this name.
fn client_hello(name: &[u8]) -> Vec<u8> {
    let length = |length: usize| u16::try_from(length).unwrap().to_be_bytes();
    let extension = |kind: u16, body: Vec<u8>| [&kind.to_be_bytes()[..], &length(body.len()), &body].concat();
    let entry = [&[0][..], &length(name.len()), name].concat();
    let extensions = [
        extension(0, [&length(entry.len())[..], &entry].concat()),
        // TLS 1.3 and 1.2, and one signature scheme and group.
        extension(43, vec![4, 3, 4, 3, 3]),
        extension(13, vec![0, 2, 4, 3]),
        extension(10, vec![0, 2, 0, 23]),
    ]
    .concat();
    let body = [
        &[3, 3][..],
        &[7; 32],
        // No session, two cipher suites, no compression.
        &[0, 0, 4, 0x13, 1, 0xc0, 0x2b, 1, 0],
        &length(extensions.len()),
        &extensions,
    ]
    .concat();
    let [_, of_body @ ..] = u32::try_from(body.len()).unwrap().to_be_bytes();
    let message = [&[1][..], &of_body, &body].concat();
    [&[22, 3, 1][..], &length(message.len()), &message].concat()
}

/// A stranger chooses what it sends, and how often.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_does_not_repeat_what_strangers_send() {
    let fixture = SandboxFixture::start("strangers-log", &["one"]).await.unwrap();
    let service = fixture.lease_probe().await.unwrap();
    let log = || std::fs::metadata(service.process.log_path()).unwrap().len();
    let before = log();
    // No name of a host.
    let hello = client_hello(&[0x1b; 15_000]);
    for _ in 0..200 {
        let mut stranger = connect(2, &service.grpc).await;
        stranger.write_all(&hello).await.unwrap();
        // The server answers, or hangs up.
        let _ = timeout(BOUND, stranger.read(&mut [0; 1])).await.unwrap();
    }
    let refused = "watchdog_grpc_connections_refused_total{reason=\"handshake\"}";
    wait::until_true("they are counted", BOUND, || async {
        Ok(service.metric(refused).await?.is_some_and(|count| count >= 200.0))
    })
    .await
    .unwrap();
    let written = log() - before;
    assert!(written < 16_384, "{written} bytes");
}
