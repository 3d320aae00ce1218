//! Ports for servers that cannot tell which one they bound (etcd, kube-apiserver).

use std::net::{Ipv4Addr, TcpListener};

use anyhow::bail;

/// Below Linux's ephemeral range (32768 and up): no outgoing connection takes such a port while its server is
/// stopped for a moment.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// Enough that even a machine with most of the range in use finds one.
const ATTEMPTS: usize = 200;

/// A loopback port that nobody listens on now. Somebody may before it is used: callers start their server again on
/// another port then.
///
/// # Errors
/// When the range is full.
pub fn free_port() -> anyhow::Result<u16> {
    for _ in 0..ATTEMPTS {
        let port = rand::random_range(RANGE);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("found no free port in {RANGE:?}")
}
