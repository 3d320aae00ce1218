//! Names of API servers. The C library resolves them and blocks a thread until the name server answers, also when the
//! caller has given up. So the threads are counted, or one slow name would take all that others need.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use tokio::sync::Semaphore;

/// Look-ups at a time: half of the threads that tokio has for what blocks.
const MAX_LOOKUPS: usize = 256;

static LOOKUPS: Semaphore = Semaphore::const_new(MAX_LOOKUPS);

/// The name of one API server, which is looked up once at a time.
#[derive(Debug)]
pub(super) struct ServerName {
    host: String,
    port: u16,
    turn: Arc<Semaphore>,
}

impl ServerName {
    pub(super) fn new(host: &str, port: u16) -> Self {
        Self {
            host: host.to_owned(),
            port,
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Its addresses, `most` of them.
    pub(super) async fn addresses(&self, most: usize) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let name = (self.host.clone(), self.port);
        self.look_up(move || Ok(name.to_socket_addrs()?.take(most).collect())).await
    }

    /// Each permit is given back by the thread, not by the caller.
    async fn look_up<T: Send + 'static>(
        &self,
        blocking: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let turn = self.turn.clone().acquire_owned().await.map_err(io::Error::other)?;
        let thread = LOOKUPS.acquire().await.map_err(io::Error::other)?;
        let lookup = tokio::task::spawn_blocking(move || {
            let _held = (turn, thread);
            blocking()
        });
        lookup.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn a_name_that_is_slow_holds_one_thread_whoever_gives_up() {
        let (slow, other) = (ServerName::new("slow.test", 1), ServerName::new("other.test", 1));
        let (answer, name_server) = mpsc::channel::<()>();
        let mut first = Box::pin(slow.look_up(move || name_server.recv().map_err(io::Error::other)));
        assert!(poll!(&mut first).is_pending());
        drop(first);
        let mut second = Box::pin(slow.look_up(|| Ok(2)));
        assert!(poll!(&mut second).is_pending());
        assert_eq!(other.look_up(|| Ok(3)).await.unwrap(), 3);
        assert!(poll!(&mut second).is_pending(), "the thread of the first still waits");
        answer.send(()).unwrap();
        assert_eq!(second.await.unwrap(), 2);
    }

    #[tokio::test]
    async fn an_address_needs_no_look_up() {
        for (host, expected) in [("192.0.2.1", "192.0.2.1:443"), ("2001:db8::1", "[2001:db8::1]:443")] {
            let found = ServerName::new(host, 443).addresses(8).await.unwrap();
            assert_eq!(found, [expected.parse().unwrap()]);
        }
    }
}
