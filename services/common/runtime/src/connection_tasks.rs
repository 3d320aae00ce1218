//! Tasks that each serve one connection. Until its caller has proved who it is, a connection holds one of few places. A
//! new one is accepted all the same, and the oldest of the address that has most places is closed: a caller that is
//! served or proves itself quickly gets in, whatever others do.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Connections that end when this is dropped.
#[derive(Debug)]
pub struct ConnectionTasks {
    tasks: JoinSet<()>,
    strangers: VecDeque<Stranger>,
    total: usize,
    per_address: usize,
}

/// A connection that holds a place.
#[derive(Debug)]
struct Stranger {
    address: IpAddr,
    given_back: CancellationToken,
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

    /// Serves one more connection. It holds its place until it ends, or drops what it is given. Returns the address of
    /// the one that gave way, if one did.
    pub fn spawn<F>(&mut self, address: IpAddr, serve: impl FnOnce(DropGuard) -> F) -> Option<IpAddr>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        while self.tasks.try_join_next().is_some() {}
        self.forget_known();
        let addresses = self.strangers.iter().map(|stranger| stranger.address);
        let evicted = gives_way(addresses, address, self.total, self.per_address);
        let evicted = evicted.and_then(|place| self.strangers.remove(place));
        let given_back = CancellationToken::new();
        let task = self.tasks.spawn(serve(given_back.clone().drop_guard()));
        self.strangers.push_back(Stranger {
            address,
            given_back,
            task,
        });
        evicted.map(|evicted| {
            evicted.task.abort();
            evicted.address
        })
    }

    /// Closes the connections that hold a place, and waits until the others have ended.
    pub async fn finish(mut self) {
        self.forget_known();
        self.strangers.iter().for_each(|stranger| stranger.task.abort());
        while self.tasks.join_next().await.is_some() {}
    }

    /// Those that have given their place back are no strangers any more.
    fn forget_known(&mut self) {
        self.strangers
            .retain(|stranger| !stranger.given_back.is_cancelled());
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

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
