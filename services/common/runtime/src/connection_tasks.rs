//! Tasks that each serve one connection, with limits. A connection beyond them is accepted all the same, and the oldest
//! of the address that has most is closed: a caller that is served quickly gets in, whatever others do.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use tokio_util::task::AbortOnDropHandle;

/// Connections that end when this is dropped.
#[derive(Debug)]
pub struct ConnectionTasks {
    open: VecDeque<(IpAddr, AbortOnDropHandle<()>)>,
    total: usize,
    per_address: usize,
}

impl ConnectionTasks {
    /// At most this many at the same time, and of one address.
    #[must_use]
    pub const fn new(total: usize, per_address: usize) -> Self {
        Self {
            open: VecDeque::new(),
            total,
            per_address,
        }
    }

    /// Serves one more connection. Returns the address of the one that gave way, if one did.
    pub fn spawn(
        &mut self,
        address: IpAddr,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Option<IpAddr> {
        self.open.retain(|(_, task)| !task.is_finished());
        let addresses = self.open.iter().map(|(address, _)| *address);
        let evicted = gives_way(addresses, address, self.total, self.per_address);
        let evicted = evicted.and_then(|place| self.open.remove(place));
        self.open
            .push_back((address, AbortOnDropHandle::new(tokio::spawn(task))));
        evicted.map(|(address, _)| address)
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
    use super::*;

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
