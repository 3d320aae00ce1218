//! The choice of the answers of API servers that may hold memory, when there is not enough for all of them.
//!
//! Answers share a fixed number of bytes. While some are free, each takes what it needs. When none are, the largest
//! answer gives way: so no shoot keeps more than an equal share, however large or slow its answers are, and an answer
//! that is no larger than this share is never given up. A byte of a list of nodes weighs twice, because without the
//! list of leases nothing is known about a shoot.

use std::collections::BTreeMap;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// The content of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    /// The version, or the review of a permission.
    Small,
    /// A page of leases: 500 are about 250 KB in Protobuf, 430 KB in JSON.
    Leases,
    /// A page of nodes: 500 are about 8 MB.
    Nodes,
}

impl AnswerKind {
    /// The most bytes of an answer.
    #[must_use]
    pub const fn limit(self) -> usize {
        match self {
            Self::Small => 64 * KIB,
            Self::Leases => 8 * MIB,
            Self::Nodes => 16 * MIB,
        }
    }

    /// The most bytes of all pages of a list: more than 10,000 leases, and 8,000 nodes.
    #[must_use]
    pub const fn list_limit(self) -> usize {
        match self {
            Self::Small => Self::Small.limit(),
            Self::Leases => 16 * MIB,
            Self::Nodes => 128 * MIB,
        }
    }

    const fn weight(self) -> usize {
        match self {
            Self::Small | Self::Leases => 1,
            Self::Nodes => 2,
        }
    }
}

/// Names an answer in an [`AnswerLedger`].
pub type AnswerId = u64;

/// The reply to an answer that asks for more bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrowAnswer {
    /// They are its own.
    Granted,
    /// They will be free when these answers, or others that were asked before, have given way. Then it must ask again.
    Wait(Vec<AnswerId>),
    /// It is the largest, or has been asked to give way.
    Refused,
}

#[derive(Debug)]
struct AnswerShare {
    kind: AnswerKind,
    bytes: usize,
    gives_way: bool,
}

/// The bytes that answers hold.
#[derive(Debug)]
pub struct AnswerLedger {
    capacity: usize,
    used: usize,
    shares: BTreeMap<AnswerId, AnswerShare>,
    next: AnswerId,
}

impl AnswerLedger {
    /// Nothing is held yet.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            used: 0,
            shares: BTreeMap::new(),
            next: 0,
        }
    }

    /// An answer begins.
    pub fn open(&mut self, kind: AnswerKind) -> AnswerId {
        let id = self.next;
        self.next += 1;
        let share = AnswerShare {
            kind,
            bytes: 0,
            gives_way: false,
        };
        self.shares.insert(id, share);
        id
    }

    /// An answer needs `bytes` more.
    pub fn grow(&mut self, id: AnswerId, bytes: usize) -> GrowAnswer {
        let fits = self.used.saturating_add(bytes) <= self.capacity;
        match self.shares.get_mut(&id) {
            Some(share) if fits && !share.gives_way => {
                share.bytes += bytes;
                self.used += bytes;
                GrowAnswer::Granted
            }
            Some(share) if !share.gives_way => self.make_room(id, bytes),
            _ => GrowAnswer::Refused,
        }
    }

    fn make_room(&mut self, id: AnswerId, bytes: usize) -> GrowAnswer {
        let leaving = self.shares.values().filter(|share| share.gives_way);
        let mut leaving: usize = leaving.map(|share| share.bytes).sum();
        let mut asked = Vec::new();
        while (self.used - leaving).saturating_add(bytes) > self.capacity {
            let size = |(other, share): &(&AnswerId, &mut AnswerShare)| {
                let more = if **other == id { bytes } else { 0 };
                (share.bytes + more).saturating_mul(share.kind.weight())
            };
            let staying = self.shares.iter_mut().filter(|(_, share)| !share.gives_way);
            match staying.max_by_key(size) {
                Some((largest, share)) if *largest != id => {
                    share.gives_way = true;
                    leaving += share.bytes;
                    asked.push(*largest);
                }
                _ => {
                    // Nobody gives way in vain.
                    for id in asked {
                        if let Some(share) = self.shares.get_mut(&id) {
                            share.gives_way = false;
                        }
                    }
                    return GrowAnswer::Refused;
                }
            }
        }
        GrowAnswer::Wait(asked)
    }

    /// Gives back all but `bytes` of what an answer holds.
    pub fn shrink(&mut self, id: AnswerId, bytes: usize) {
        if let Some(share) = self.shares.get_mut(&id) {
            let freed = share.bytes.saturating_sub(bytes);
            share.bytes -= freed;
            self.used -= freed;
        }
    }

    /// An answer was read, or given up.
    pub fn close(&mut self, id: AnswerId) {
        if let Some(share) = self.shares.remove(&id) {
            self.used -= share.bytes;
        }
    }

    /// The most bytes that may be held.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// The bytes that are held.
    #[must_use]
    pub const fn used(&self) -> usize {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_largest_gives_way_and_nobody_in_vain() {
        let mut ledger = AnswerLedger::new(100);
        let [large, small, asking] = [0; 3].map(|_| ledger.open(AnswerKind::Leases));
        assert_eq!(ledger.grow(large, 60), GrowAnswer::Granted);
        assert_eq!(ledger.grow(small, 30), GrowAnswer::Granted);
        assert_eq!(ledger.grow(asking, 20), GrowAnswer::Wait(vec![large]));
        assert_eq!(
            ledger.grow(large, 1),
            GrowAnswer::Refused,
            "it was asked to give way"
        );
        assert_eq!(ledger.used(), 90, "until it has");
        ledger.close(large);
        assert_eq!(ledger.grow(asking, 20), GrowAnswer::Granted);
        assert_eq!(
            ledger.grow(small, 80),
            GrowAnswer::Refused,
            "it would be the largest"
        );
        ledger.shrink(small, 10);
        assert_eq!(ledger.used(), 30);
        assert_eq!(ledger.grow(asking, 50), GrowAnswer::Granted);
    }

    #[test]
    fn nodes_give_way_to_leases() {
        let mut ledger = AnswerLedger::new(100);
        let nodes = ledger.open(AnswerKind::Nodes);
        let leases = ledger.open(AnswerKind::Leases);
        assert_eq!(ledger.grow(nodes, 40), GrowAnswer::Granted);
        assert_eq!(ledger.grow(leases, 60), GrowAnswer::Granted);
        assert_eq!(ledger.grow(leases, 10), GrowAnswer::Wait(vec![nodes]));
    }

    const CAPACITY: usize = 10_000;

    proptest! {
        /// Answers grow in any order and are never read to their end, as those of hostile shoots.
        #[test]
        fn the_bytes_stay_below_the_capacity_and_an_equal_share_is_never_refused(
            steps in prop::collection::vec((0_usize..20, 1_usize..3_000), 1..300), honest_at in 0_usize..300,
        ) {
            let mut ledger = AnswerLedger::new(CAPACITY);
            let mut open: Vec<_> = (0..20).map(|_| ledger.open(AnswerKind::Leases)).collect();
            let honest = ledger.open(AnswerKind::Leases);
            let (share, mut has) = (CAPACITY / 21, false);
            for (step, (who, bytes)) in steps.into_iter().enumerate() {
                let growth = match (step >= honest_at, has) {
                    (true, false) => ledger.grow(honest, share),
                    _ => ledger.grow(open[who], bytes),
                };
                prop_assert!(ledger.used() <= CAPACITY);
                let honest_asked = step >= honest_at && !has;
                match growth {
                    GrowAnswer::Granted => has |= honest_asked,
                    GrowAnswer::Wait(asked) => {
                        prop_assert!(!asked.contains(&honest), "an equal share gave way");
                        for id in asked {
                            ledger.close(id);
                            let place = open.iter().position(|open| *open == id).unwrap();
                            open[place] = ledger.open(AnswerKind::Leases);
                        }
                        if honest_asked {
                            prop_assert_eq!(ledger.grow(honest, share), GrowAnswer::Granted);
                            has = true;
                        }
                    }
                    GrowAnswer::Refused => {
                        prop_assert!(!honest_asked, "an equal share was refused");
                        ledger.close(open[who]);
                        open[who] = ledger.open(AnswerKind::Leases);
                    }
                }
            }
            open.push(honest);
            open.iter().for_each(|id| ledger.close(*id));
            prop_assert_eq!(ledger.used(), 0);
        }
    }
}
