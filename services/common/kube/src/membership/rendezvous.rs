//! Chooses the member that owns a key: the one with the highest weight for it (rendezvous, or highest-random-weight,
//! hashing). Adding a member moves to it only what it now owns; removing one moves only what it owned.
//!
//! `weight(identity, key) = rapidhash_v3(le(rapidhash_v3(identity)) ++ le(rapidhash_v3(key)))`
//!
//! rapidhash V3 is a published algorithm whose output is the same on every platform and in every release of the
//! crate: replicas of different versions of this program agree. Sessions are no part of it, so a member that restarts
//! gets back what it had.

use std::sync::Arc;

use rapidhash::v3::rapidhash_v3;

/// Members, with their hashes worked out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RendezvousHasher {
    members: Vec<(Arc<str>, u64)>,
}

impl RendezvousHasher {
    /// A ring of these members; the order is of no importance.
    pub(crate) fn new(members: impl IntoIterator<Item = Arc<str>>) -> Self {
        let mut members: Vec<_> = members
            .into_iter()
            .map(|m| (Arc::clone(&m), rapidhash_v3(m.as_bytes())))
            .collect();
        members.sort();
        members.dedup();
        Self { members }
    }

    /// The owner of `key`; none when there is no member. Between equal weights, which no real pair of names has,
    /// the greater name decides.
    pub(crate) fn owner(&self, key: &str) -> Option<&Arc<str>> {
        let key = rapidhash_v3(key.as_bytes());
        self.members
            .iter()
            .max_by_key(|(name, hash)| (weight(*hash, key), name))
            .map(|(name, _)| name)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Arc<str>> {
        self.members.iter().map(|(name, _)| name)
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }
}

fn weight(member: u64, key: u64) -> u64 {
    let pair = (u128::from(key) << 64) | u128::from(member);
    rapidhash_v3(&pair.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ring(names: &[&str]) -> RendezvousHasher {
        RendezvousHasher::new(names.iter().map(|n| Arc::from(*n)))
    }

    #[test]
    fn weights_never_change() {
        // Replicas of two releases run side by side during an update: they must agree on every owner.
        let weight =
            |member: &str, key: &str| weight(rapidhash_v3(member.as_bytes()), rapidhash_v3(key.as_bytes()));
        assert_eq!(weight("", ""), KNOWN[0]);
        assert_eq!(weight("scaling-coordinator-0", "shoot--dev--one"), KNOWN[1]);
    }

    const KNOWN: [u64; 2] = [5_149_987_315_568_596_742, 11_658_398_607_736_685_712];

    #[test]
    fn nobody_owns_anything_in_an_empty_ring() {
        assert_eq!(RendezvousHasher::default().owner("shoot--a--b"), None);
    }

    #[test]
    fn three_members_share_a_thousand_keys_evenly() {
        // Pod names of one Deployment differ in a few characters only; 1000/3 = 333, standard deviation 15.
        let names = [
            "coordinator-6c9f7d8b5d-2xk4p",
            "coordinator-6c9f7d8b5d-8w7lm",
            "coordinator-6c9f7d8b5d-zz9qt",
        ];
        let ring = ring(&names);
        for name in names {
            let share = (0..1000)
                .filter(|i| {
                    ring.owner(&format!("shoot--project-{}--cluster-{i}", i % 7))
                        .map(|o| &**o)
                        == Some(name)
                })
                .count();
            assert!((260..410).contains(&share), "{name} has {share} of 1000");
        }
    }

    proptest! {
        #[test]
        fn a_change_of_members_moves_only_the_share_of_the_one_that_changed(
            names in prop::collection::btree_set("[a-z0-9-]{1,20}", 1..8),
            newcomer in "[a-z0-9-]{21}",
            keys in prop::collection::vec("[a-z0-9-]{1,40}", 1..50),
        ) {
            let before = RendezvousHasher::new(names.iter().map(|n| Arc::from(n.as_str())));
            let after = RendezvousHasher::new(names.iter().chain([&newcomer]).map(|n| Arc::from(n.as_str())));
            for key in &keys {
                let (old, new) = (before.owner(key), after.owner(key));
                prop_assert!(new == old || new.map(|o| &**o) == Some(newcomer.as_str()));
            }
        }

        #[test]
        fn the_order_of_members_does_not_matter(
            names in prop::collection::vec("[a-z]{1,10}", 1..8).prop_shuffle(),
            key in ".{0,40}",
        ) {
            let mut reversed = names.clone();
            reversed.reverse();
            let there = RendezvousHasher::new(names.iter().map(|n| Arc::from(n.as_str())));
            let back = RendezvousHasher::new(reversed.iter().map(|n| Arc::from(n.as_str())));
            prop_assert_eq!(there.owner(&key), back.owner(&key));
        }
    }
}
