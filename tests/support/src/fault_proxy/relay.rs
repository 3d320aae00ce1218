//! Passing bytes on, at a pace.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::ProxyRoute;

/// Read at once: about the largest TLS record.
const PIECE: usize = 16 * 1024;

/// How fast bytes are passed on.
#[derive(Clone, Copy, Debug)]
pub(super) enum RelayPace {
    Fast,
    /// Each piece later by this time, in both directions.
    Later(Duration),
    /// Answers only; requests go at once.
    ByteByByte(Duration),
}

/// Until one side ends.
pub(super) async fn run(client: TcpStream, route: &ProxyRoute, pace: RelayPace) {
    let Some(identity) = &route.identity else {
        if let Ok(server) = TcpStream::connect(route.upstream).await {
            let _ = server.set_nodelay(true);
            relay(client, server, pace).await;
        }
        return;
    };
    let Some(client) = identity.accept(client).await else {
        return;
    };
    let protocol = client.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
    let server = identity.connect(route.upstream, protocol.as_deref());
    if let Some(server) = server.await {
        relay(client, server, pace).await;
    }
}

async fn relay(client: impl AsyncRead + AsyncWrite, server: impl AsyncRead + AsyncWrite, pace: RelayPace) {
    let (from_client, to_client) = tokio::io::split(client);
    let (from_server, to_server) = tokio::io::split(server);
    let requests = match pace {
        RelayPace::ByteByByte(_) => RelayPace::Fast,
        pace => pace,
    };
    tokio::select! {
        () = pump(from_client, to_server, requests) => {}
        () = pump(from_server, to_client, pace) => {}
    }
}

async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, pace: RelayPace) {
    let mut buffer = vec![0; PIECE];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        let Some(bytes) = buffer.get(..read) else { return };
        let (pieces, pause) = match pace {
            RelayPace::Fast => (read, Duration::ZERO),
            RelayPace::Later(pause) => (read, pause),
            RelayPace::ByteByByte(pause) => (1, pause),
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
