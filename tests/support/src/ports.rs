//! Ports for servers that cannot tell which one they bound (etcd, kube-apiserver).

use std::future::Future;
use std::net::{Ipv4Addr, TcpListener};

use anyhow::bail;

/// Below Linux's ephemeral range (32768 and up): no outgoing connection takes such a port while its server is
/// stopped for a moment.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// Enough that even a machine with most of the range in use finds one.
const ATTEMPTS: usize = 200;

/// How often a server is started, each time on other ports.
const STARTS: usize = 3;

/// A loopback port that nobody listens on now. Somebody may before it is used: see [`start_on_free_ports`].
pub fn free_port() -> anyhow::Result<u16> {
    for _ in 0..ATTEMPTS {
        let port = rand::random_range(RANGE);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("found no free port in {RANGE:?}")
}

/// Starts a server on ports that `start` takes from [`free_port`], again should somebody have taken one meanwhile.
pub async fn start_on_free_ports<T, R>(mut start: impl FnMut() -> R) -> anyhow::Result<T>
where
    R: Future<Output = anyhow::Result<T>>,
{
    for _ in 1..STARTS {
        match start().await {
            // As servers in Go say it in their log.
            Err(error) if format!("{error:#}").contains("address already in use") => {}
            started => return started,
        }
    }
    start().await
}
