//! Names of API servers. The C library resolves them and blocks a thread until the name server answers, also when the
//! caller has given up. So the threads are counted, or one slow name would take all that others need.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// After this time the addresses that were found last are used (RFC 8767). A server there proves by its certificate
/// that it is the API server.
const STALE_AFTER: Duration = Duration::from_secs(1);

/// Look-ups at a time: half of the threads that tokio has for what blocks.
const MAX_LOOKUPS: usize = 256;

static LOOKUPS: Semaphore = Semaphore::const_new(MAX_LOOKUPS);

/// The name of one API server, which is looked up once at a time.
#[derive(Debug)]
pub(super) struct HostLookup {
    pub(super) name: String,
    port: u16,
    turn: Arc<Semaphore>,
    /// Those that were found last.
    known: Arc<Mutex<Vec<SocketAddr>>>,
}

impl HostLookup {
    pub(super) fn new(name: &str, port: u16) -> Self {
        let address = name.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, port));
        Self {
            name: name.to_owned(),
            port,
            turn: Arc::new(Semaphore::new(1)),
            known: Arc::new(Mutex::new(address.into_iter().collect())),
        }
    }

    /// The addresses that were found last.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.known.lock().clone()
    }

    /// Looks the name up, for each connection anew, and takes `most` of its addresses.
    pub(super) async fn resolve(&self, most: usize) -> io::Result<()> {
        if self.name.parse::<IpAddr>().is_ok() {
            return Ok(());
        }
        let name = (self.name.clone(), self.port);
        self.resolve_with(move || Ok(name.to_socket_addrs()?.take(most).collect()))
            .await
    }

    async fn resolve_with(
        &self,
        blocking: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> io::Result<()> {
        let is_known = || !self.known.lock().is_empty();
        let stale = async {
            sleep(STALE_AFTER).await;
            if !is_known() {
                std::future::pending().await
            }
        };
        tokio::select! {
            result = self.look_up(blocking) => if is_known() { Ok(()) } else { result },
            () = stale => Ok(()),
        }
    }

    /// A look-up that its caller has given up goes on, and its result counts: each permit is given back by the thread.
    async fn look_up(
        &self,
        blocking: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> io::Result<()> {
        let turn = self.turn.clone().acquire_owned().await;
        let thread = LOOKUPS.acquire().await;
        let known = self.known.clone();
        let lookup = tokio::task::spawn_blocking(move || {
            let _held = (turn, thread);
            *known.lock() = blocking()?;
            Ok(())
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
        let (slow, other) = (HostLookup::new("slow.test", 1), HostLookup::new("other.test", 1));
        let (answer, name_server) = mpsc::channel::<()>();
        let waits = move || name_server.recv().map(|()| vec![]).map_err(io::Error::other);
        let mut first = Box::pin(slow.look_up(waits));
        assert!(poll!(&mut first).is_pending());
        drop(first);
        let mut second = Box::pin(slow.look_up(|| Ok(vec![])));
        assert!(poll!(&mut second).is_pending());
        other.look_up(|| Ok(vec![])).await.unwrap();
        assert!(
            poll!(&mut second).is_pending(),
            "the thread of the first still waits"
        );
        answer.send(()).unwrap();
        second.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_found_last_is_used_while_the_name_server_is_slow_or_fails() {
        let name = HostLookup::new("slow.test", 1);
        let [first, second]: [SocketAddr; 2] = ["192.0.2.1:1", "192.0.2.2:1"].map(|a| a.parse().unwrap());
        let failed = || Err(io::Error::other("no such name"));
        assert!(name.resolve_with(failed).await.is_err(), "nothing is known yet");
        name.resolve_with(move || Ok(vec![first])).await.unwrap();
        name.resolve_with(failed).await.unwrap();
        assert_eq!(name.addresses(), [first]);
        let (answer, name_server) = mpsc::channel::<()>();
        let slow = move || {
            name_server
                .recv()
                .map_err(io::Error::other)
                .map(|()| vec![second])
        };
        let mut slow = Box::pin(name.resolve_with(slow));
        assert!(poll!(&mut slow).is_pending());
        // A paused clock stands still while a thread is blocked.
        tokio::time::advance(STALE_AFTER).await;
        slow.await.unwrap();
        assert_eq!(name.addresses(), [first]);
        answer.send(()).unwrap();
        // The next one begins when the thread of the last one has ended.
        let _ = name.resolve_with(failed).await;
        assert_eq!(name.addresses(), [second], "the look-up that was given up counts");
    }

    #[tokio::test]
    async fn an_address_needs_no_look_up() {
        for (host, expected) in [
            ("192.0.2.1", "192.0.2.1:443"),
            ("2001:db8::1", "[2001:db8::1]:443"),
        ] {
            let name = HostLookup::new(host, 443);
            name.resolve(8).await.unwrap();
            assert_eq!(name.addresses(), [expected.parse().unwrap()]);
        }
    }
}
