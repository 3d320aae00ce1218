//! A TCP proxy that can lose its connection to the other side: what a network partition looks like from both ends.

use std::net::SocketAddr;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// Connections of one test at most; more wait in the listen queue.
const MAX_CONNECTIONS: usize = 512;

/// Passes connections on to one address. Everything ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    /// How often the connection was cut and healed: odd while it is cut.
    cuts: watch::Sender<u64>,
    _task: AbortOnDropHandle<()>,
}

// === impl Proxy ===

impl Proxy {
    /// Listens on loopback and passes on to `target`.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start(target: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("bind a proxy")?;
        let address = listener.local_addr()?;
        let cuts = watch::Sender::new(0);
        let task = tokio::spawn(accept(listener, target, cuts.subscribe()));
        Ok(Self {
            address,
            cuts,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Swallows everything from now on, in both directions and without a sign: connections stay open, new ones are
    /// accepted and lead nowhere.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts |= 1);
    }

    /// Heals: connections that lived through the cut break now, with all that was swallowed, and new ones pass.
    pub fn heal(&self) {
        self.cuts.send_modify(|cuts| *cuts += *cuts & 1);
    }
}

/// Replaces the server in a kubeconfig: everything else, the authority and the credentials, stays.
#[must_use]
pub fn kubeconfig_through(kubeconfig: &str, server: SocketAddr, proxy: &Proxy) -> String {
    kubeconfig.replace(
        &format!("https://{server}"),
        &format!("https://{}", proxy.address()),
    )
}

async fn accept(listener: TcpListener, target: SocketAddr, cuts: watch::Receiver<u64>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                if let Ok((client, _)) = accepted {
                    connections.spawn(connection(client, target, cuts.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Lives until one side ends it, or until a cut is healed.
async fn connection(client: TcpStream, target: SocketAddr, mut cuts: watch::Receiver<u64>) {
    let begin = *cuts.borrow_and_update();
    let flow = cuts.clone();
    let pass = async {
        // Accepted during a cut: it leads nowhere.
        open(&flow).await;
        let Ok(server) = TcpStream::connect(target).await else {
            return;
        };
        for socket in [&client, &server] {
            let _ = socket.set_nodelay(true);
        }
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            () = pump(from_client, to_server, &flow) => {}
            () = pump(from_server, to_client, &flow) => {}
        }
    };
    let healed = async {
        // Open at the beginning: it breaks when a cut ends, two changes later. Cut at the beginning: one.
        let _ = cuts.wait_for(|now| *now % 2 == 0 && *now > begin).await;
    };
    tokio::select! {
        biased;
        () = healed => {}
        () = pass => {}
    }
}

/// Waits until nothing is cut.
async fn open(flow: &watch::Receiver<u64>) {
    let _ = flow.clone().wait_for(|cuts| cuts % 2 == 0).await;
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, flow: &watch::Receiver<u64>) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        if *flow.borrow() % 2 == 1 {
            // Swallowed. What heals the cut also ends the connection.
            return std::future::pending().await;
        }
        let Some(bytes) = buffer.get(..read) else { return };
        if to.write_all(bytes).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wait;

    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = socket.into_split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        });
        address
    }

    async fn ping(socket: &mut TcpStream) -> anyhow::Result<()> {
        socket.write_all(b"x").await?;
        let mut answer = [0];
        tokio::time::timeout(Duration::from_secs(1), socket.read_exact(&mut answer)).await??;
        Ok(())
    }

    #[tokio::test]
    async fn a_cut_swallows_and_its_end_breaks_what_was_open() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut before = TcpStream::connect(proxy.address()).await.unwrap();
        ping(&mut before).await.unwrap();
        proxy.cut();
        proxy.cut();
        assert!(ping(&mut before).await.is_err());
        let mut during = TcpStream::connect(proxy.address()).await.unwrap();
        assert!(ping(&mut during).await.is_err());
        proxy.heal();
        proxy.heal();
        for socket in [&mut before, &mut during] {
            let mut rest = Vec::new();
            let ended = tokio::time::timeout(Duration::from_secs(10), socket.read_to_end(&mut rest)).await;
            assert!(
                ended.is_ok() && rest.is_empty(),
                "it ends, and nothing comes late"
            );
        }
        wait::until_true("new connections pass", Duration::from_secs(10), || async {
            let mut after = TcpStream::connect(proxy.address()).await?;
            ping(&mut after).await?;
            Ok(true)
        })
        .await
        .unwrap();
    }
}
