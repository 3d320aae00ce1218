//! Callers who never prove who they are. That they lock nobody out is tested in `watchdog-runtime`.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::Service;

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
pub(crate) async fn the_log_does_not_repeat_what_strangers_send(service: &Service) {
    let log = || std::fs::metadata(service.process.log_path()).unwrap().len();
    let before = log();
    // No name of a host.
    let hello = client_hello(&[0x1b; 15_000]);
    for _ in 0..200 {
        let mut stranger = TcpStream::connect(&service.grpc).await.unwrap();
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
