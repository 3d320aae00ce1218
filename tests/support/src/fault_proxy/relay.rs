//! Passing bytes on, at a pace.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::server::TlsStream;

use super::Shared;

/// Read at once: about the largest TLS record.
const PIECE: usize = 16 * 1024;

/// How fast bytes are passed on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    Fast,
    /// Each piece later by this time, in both directions.
    Later(Duration),
    /// Answers only; requests go at once.
    ByteByByte(Duration),
}

/// Until one side ends.
pub(super) async fn run(client: TlsStream<TcpStream>, shared: &Shared, pace: Pace) {
    let protocol = client.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
    let server = shared.identity.connect(shared.upstream, protocol.as_deref());
    let Some(server) = server.await else { return };
    let (from_client, to_client) = tokio::io::split(client);
    let (from_server, to_server) = tokio::io::split(server);
    let requests = match pace {
        Pace::ByteByByte(_) => Pace::Fast,
        pace => pace,
    };
    tokio::select! {
        () = pump(from_client, to_server, requests) => {}
        () = pump(from_server, to_client, pace) => {}
    }
}

async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, pace: Pace) {
    let mut buffer = vec![0; PIECE];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        let Some(bytes) = buffer.get(..read) else { return };
        let (pieces, pause) = match pace {
            Pace::Fast => (read, Duration::ZERO),
            Pace::Later(pause) => (read, pause),
            Pace::ByteByByte(pause) => (1, pause),
        };
        for piece in bytes.chunks(pieces) {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            if to.write_all(piece).await.is_err() || to.flush().await.is_err() {
                return;
            }
        }
    }
}
