//! Tasks that each serve one connection. Until its caller has proved who it is, a connection holds one of few places. A
//! new one is accepted all the same, and the oldest of the address that has most places is closed: a caller that is
//! served or proves itself quickly gets in, whatever others do.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::{AbortHandle, JoinSet};

/// Connections that end when this is dropped.
#[derive(Debug)]
pub struct ConnectionTasks {
    tasks: JoinSet<()>,
    strangers: VecDeque<Stranger>,
    total: usize,
    per_address: usize,
}

/// The place of a connection. It is given back when it is dropped, too.
#[derive(Debug)]
pub struct StrangerPlace {
    has_left: Arc<AtomicBool>,
}

/// A connection that holds a place.
#[derive(Debug)]
struct Stranger {
    address: IpAddr,
    has_left: Arc<AtomicBool>,
    task: AbortHandle,
}

impl ConnectionTasks {
    /// At most this many places at the same time, and of one address.
    #[must_use]
    pub fn new(total: usize, per_address: usize) -> Self {
        Self {
            tasks: JoinSet::new(),
            strangers: VecDeque::new(),
            total,
            per_address,
        }
    }

    /// Serves one more connection. It holds its place until it ends or gives it back. Returns the address of the one
    /// that gave way, if one did.
    pub fn spawn<F>(&mut self, address: IpAddr, serve: impl FnOnce(StrangerPlace) -> F) -> Option<IpAddr>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        while self.tasks.try_join_next().is_some() {}
        self.forget_known();
        let addresses = self.strangers.iter().map(|stranger| stranger.address);
        let evicted = gives_way(addresses, address, self.total, self.per_address);
        let evicted = evicted.and_then(|place| self.strangers.remove(place));
        let has_left = Arc::new(AtomicBool::new(false));
        let place = StrangerPlace {
            has_left: has_left.clone(),
        };
        self.strangers.push_back(Stranger {
            address,
            has_left,
            task: self.tasks.spawn(serve(place)),
        });
        evicted.filter(Stranger::close).map(|evicted| evicted.address)
    }

    /// Closes the connections that hold a place, and waits until the others have ended.
    pub async fn finish(mut self) {
        for stranger in &self.strangers {
            stranger.close();
        }
        while self.tasks.join_next().await.is_some() {}
    }

    /// Those that have given their place back are no strangers any more.
    fn forget_known(&mut self) {
        self.strangers
            .retain(|stranger| !stranger.has_left.load(Ordering::Acquire));
    }
}

impl StrangerPlace {
    /// Gives it back. False if that was done before, or the connection was just closed for a newcomer.
    #[must_use]
    pub fn give_back(&self) -> bool {
        !self.has_left.swap(true, Ordering::AcqRel)
    }
}

impl Drop for StrangerPlace {
    fn drop(&mut self) {
        self.has_left.store(true, Ordering::Release);
    }
}

impl Stranger {
    /// Closes the connection, unless it has just given its place back. True if it is closed.
    fn close(&self) -> bool {
        let held_its_place = !self.has_left.swap(true, Ordering::AcqRel);
        if held_its_place {
            self.task.abort();
        }
        held_its_place
    }
}

/// The place of the connection that gives way to one of `newcomer`: the oldest one of its own address if that has all
/// that it may have, else of the address that has most if there are too many in all.
fn gives_way(
    open: impl Iterator<Item = IpAddr> + Clone,
    newcomer: IpAddr,
    total: usize,
    per_address: usize,
) -> Option<usize> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for address in open.clone() {
        *counts.entry(address).or_default() += 1;
    }
    let count = |address: &IpAddr| counts.get(address).copied().unwrap_or_default();
    if count(&newcomer) >= per_address {
        return open.clone().position(|address| address == newcomer);
    }
    let most = counts.values().copied().max()?;
    let full = counts.values().sum::<usize>() >= total;
    full.then(|| open.clone().position(|address| count(&address) == most))
        .flatten()
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_connections_that_hold_no_place_and_closes_the_others() {
        let mut connections = ConnectionTasks::new(4, 4);
        let ended = Arc::new(AtomicUsize::new(0));
        let address = IpAddr::from([10, 0, 0, 1]);
        for _ in 0..2 {
            let ended = ended.clone();
            connections.spawn(address, |place| async move {
                drop(place);
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                ended.fetch_add(1, Ordering::Relaxed);
            });
            connections.spawn(address, |place| async move {
                pending::<()>().await;
                drop(place);
            });
        }
        tokio::task::yield_now().await;
        connections.finish().await;
        assert_eq!(ended.load(Ordering::Relaxed), 2);
    }

    /// On several threads, because its proof and its eviction must meet.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_that_has_given_its_place_back_is_not_closed_for_a_newcomer() {
        struct Known(Arc<AtomicUsize>);
        impl Drop for Known {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let closed = Arc::new(AtomicUsize::new(0));
        let mut connections = ConnectionTasks::new(64, 1);
        for _ in 0..5_000 {
            let closed = closed.clone();
            connections.spawn(IpAddr::from([10, 0, 0, 1]), |place| async move {
                if place.give_back() {
                    let _known = Known(closed);
                    pending::<()>().await;
                }
            });
        }
        assert_eq!(closed.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_oldest_of_the_address_with_most_connections_gives_way() {
        let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let rows: [(&[IpAddr], IpAddr, Option<usize>); 6] = [
            (&[], a, None),
            (&[a, b, b, a], c, None),
            (&[a, b, b, a, b], c, Some(1)),
            (&[a, b, b, a, b], a, Some(1)),
            (&[a, b, b, b], b, Some(1)),
            (&[a, b, b, b], a, None),
        ];
        for (open, newcomer, expected) in rows {
            let place = gives_way(open.iter().copied(), newcomer, 5, 3);
            assert_eq!(place, expected, "{open:?} {newcomer}");
        }
    }
}
