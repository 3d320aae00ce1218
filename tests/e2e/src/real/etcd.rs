//! etcd on loopback, without fsync: its data is thrown away.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use tokio::net::TcpStream;

use super::Assets;
use crate::ports::free_port;
use crate::process::{Command, Process};
use crate::scratch::Scratch;
use crate::wait;

/// Below a second on an idle machine; the bound leaves room for a busy one.
const START_BOUND: Duration = Duration::from_secs(30);

/// Tries with another port each, should somebody take it between the choice and the start.
const ATTEMPTS: usize = 3;

#[derive(Debug)]
pub(super) struct Etcd {
    pub(super) url: String,
    /// Held for its end: dropping it kills etcd.
    _process: Process,
}

impl Etcd {
    pub(super) async fn start(assets: &Assets, scratch: &Arc<Scratch>) -> anyhow::Result<Self> {
        let mut attempt = 1;
        loop {
            let port = free_port()?;
            let url = format!("http://127.0.0.1:{port}");
            let process = command(assets, &url, scratch).spawn(scratch)?;
            let listening = wait::until_true("etcd listens", START_BOUND, || async {
                if let Some(status) = process.exit_status()? {
                    return Ok(status.success());
                }
                Ok(TcpStream::connect(("127.0.0.1", port)).await.is_ok())
            });
            match listening.await {
                Ok(()) => {
                    return Ok(Self {
                        url,
                        _process: process,
                    });
                }
                Err(_) if attempt < ATTEMPTS => attempt += 1,
                Err(error) => bail!("{error:#}; the log of etcd ends:\n{}", process.log_tail()),
            }
        }
    }
}

fn command(assets: &Assets, url: &str, scratch: &Scratch) -> Command {
    Command::new("etcd", &assets.etcd)
        .arg(format!("--data-dir={}", scratch.join("etcd").display()))
        .arg(format!("--listen-client-urls={url}"))
        .arg(format!("--advertise-client-urls={url}"))
        // A single member needs no peers, yet etcd insists on a listener.
        .arg("--listen-peer-urls=http://127.0.0.1:0")
        .args(["--unsafe-no-fsync", "--log-level=warn"])
}
