//! The two witnesses of a shoot: the replicas that probe it.
//!
//! They are the two live members with the highest weight for the shoot (rendezvous hashing), so a member that comes or
//! goes moves only its own share. `weight(member, shoot) = rapidhash_v3(le(rapidhash_v3(member)) ++
//! le(rapidhash_v3(shoot)))`: a published algorithm whose output is the same on every platform and in every release, so
//! replicas of different versions agree.
//!
//! Replicas need not have the same view of the members. Each decides for itself; where views differ, a shoot has a
//! witness more or less for a moment.

use std::sync::Arc;
use std::time::Duration;

use rapidhash::v3::rapidhash_v3;

/// Replicas that probe one shoot.
pub const WITNESSES: usize = 2;

/// A witness that has probed a shoot for this time can prove a loss, whenever that began: a silence of 32.5 s, and the
/// start before it.
pub const INFORMED_AFTER: Duration = Duration::from_secs(45);

/// How good a witness a member is, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberState {
    /// It does not answer gRPC.
    Silent,
    /// It answers; it may have just started.
    Answers,
    /// It has answered for [`INFORMED_AFTER`] without a pause.
    Informed,
}

/// The live members, as one of them knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveMembers {
    members: Vec<LiveMember>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct LiveMember {
    name: Arc<str>,
    hash: u64,
    state: MemberState,
}

impl LiveMembers {
    /// The members, each with its state; this replica always answers.
    #[must_use]
    pub fn new(members: impl IntoIterator<Item = (Arc<str>, MemberState)>) -> Self {
        let member = |(name, state): (Arc<str>, MemberState)| LiveMember {
            hash: rapidhash_v3(name.as_bytes()),
            name,
            state,
        };
        Self {
            members: members.into_iter().map(member).collect(),
        }
    }

    /// True before the members are known.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The witnesses of a shoot: the two highest members, and if another one is better than both, also the highest of
    /// the best. So a foreign Lease, or a frozen holder, leaves no shoot without a witness, and replicas that join
    /// together leave none to those that cannot prove a loss yet.
    fn of(&self, shoot: &str) -> Vec<&LiveMember> {
        let shoot = rapidhash_v3(shoot.as_bytes());
        let mut ranked: Vec<&LiveMember> = self.members.iter().collect();
        // Between equal weights, which no real pair of names has, the greater name decides.
        ranked.sort_by_cached_key(|member| std::cmp::Reverse((weight(member.hash, shoot), &member.name)));
        let others = ranked.split_off(WITNESSES.min(ranked.len()));
        let best = ranked.iter().map(|member| member.state).max();
        let better = others.into_iter().filter(|member| Some(member.state) > best);
        // Of equal ones, the last of an iterator is its maximum.
        ranked.extend(better.rev().max_by_key(|member| member.state));
        ranked
    }

    /// True if this is the witness that counts the shoot, so that the replicas together count each once: the highest
    /// that answers.
    #[must_use]
    pub fn counts(&self, name: &str, shoot: &str) -> bool {
        let first = self.of(shoot).into_iter().find(|member| member.answers());
        first.is_some_and(|first| *first.name == *name)
    }

    /// True if this member is a witness of the shoot.
    #[must_use]
    pub fn is_witness(&self, name: &str, shoot: &str) -> bool {
        self.of(shoot).into_iter().any(|witness| *witness.name == *name)
    }
}

impl MemberState {
    /// Of a replica that has answered for this time without a pause; none if it does not answer.
    #[must_use]
    pub fn of(answering_for: Option<Duration>) -> Self {
        match answering_for {
            None => Self::Silent,
            Some(time) if time < INFORMED_AFTER => Self::Answers,
            Some(_) => Self::Informed,
        }
    }
}

impl LiveMember {
    fn answers(&self) -> bool {
        self.state >= MemberState::Answers
    }
}

fn weight(member: u64, shoot: u64) -> u64 {
    let pair = (u128::from(shoot) << 64) | u128::from(member);
    rapidhash_v3(&pair.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::MemberState::{Answers, Informed, Silent};
    use super::*;

    impl LiveMembers {
        fn witnesses(&self, shoot: &str) -> Vec<&Arc<str>> {
            { self.of(shoot).into_iter() }
                .map(|member| &member.name)
                .collect()
        }
    }

    fn members<'a>(names: impl IntoIterator<Item = &'a str>) -> LiveMembers {
        LiveMembers::new(names.into_iter().map(|name| (name.into(), Informed)))
    }

    #[test]
    fn a_member_is_informed_when_it_has_answered_for_long_enough() {
        let of = |seconds| MemberState::of(Some(Duration::from_secs(seconds)));
        assert_eq!([of(0), of(44), of(45)], [Answers, Answers, Informed]);
        assert_eq!(MemberState::of(None), Silent);
    }

    /// Replicas of two releases run side by side during an update.
    #[test]
    fn weights_never_change() {
        let weight = |member: &str, shoot: &str| {
            weight(rapidhash_v3(member.as_bytes()), rapidhash_v3(shoot.as_bytes()))
        };
        assert_eq!(weight("", ""), 5_149_987_315_568_596_742);
        let known = weight("scaling-coordinator-0", "shoot--dev--one");
        assert_eq!(known, 11_658_398_607_736_685_712);
    }

    #[test]
    fn all_probe_where_there_are_one_or_two_and_nobody_where_none_is_known() {
        assert!(LiveMembers::default().witnesses("shoot").is_empty());
        assert!(members(["a"]).is_witness("a", "shoot"));
        let two = members(["a", "b"]);
        assert!(
            two.is_witness("a", "shoot") && two.is_witness("b", "shoot") && !two.is_witness("c", "shoot")
        );
    }

    #[test]
    fn three_members_share_a_thousand_shoots_evenly() {
        // Pod names of one Deployment differ in a few characters only; two thirds of 1,000 are 667.
        let names = [
            "probe-6c9f7d8b5d-2xk4p",
            "probe-6c9f7d8b5d-8w7lm",
            "probe-6c9f7d8b5d-zz9qt",
        ];
        let three = members(names);
        for name in names {
            let shoots = (0..1000).map(|number| format!("shoot--project-{}--cluster-{number}", number % 7));
            let share = shoots.filter(|shoot| three.is_witness(name, shoot)).count();
            assert!((590..740).contains(&share), "{name} has {share} of 1000");
        }
    }

    proptest! {
        #[test]
        fn a_member_that_comes_moves_only_its_share(
            names in prop::collection::btree_set("[a-z0-9-]{1,20}", 1..8),
            newcomer in "[a-z0-9-]{21}",
            shoots in prop::collection::vec("[a-z0-9-]{1,40}", 1..50),
        ) {
            let before = members(names.iter().map(String::as_str));
            let after = members(names.iter().chain([&newcomer]).map(String::as_str));
            for shoot in &shoots {
                let old: BTreeSet<_> = before.witnesses(shoot).into_iter().collect();
                let new: BTreeSet<_> = after.witnesses(shoot).into_iter().collect();
                let came: Vec<_> = new.difference(&old).collect();
                prop_assert!(came.iter().all(|name| ****name == *newcomer), "{old:?} {new:?}");
                let went = old.difference(&new).count();
                let full = names.len() >= WITNESSES;
                prop_assert_eq!(went, if full { came.len() } else { 0 });
            }
        }

        #[test]
        fn whatever_a_replica_knows_of_the_others_one_of_the_best_probes(
            known in prop::collection::btree_map(
                "[a-z]{1,10}",
                prop::sample::select(vec![Silent, Answers, Informed]),
                1..10,
            ),
            shoot in ".{0,40}",
        ) {
            let all = LiveMembers::new(known.iter().map(|(name, state)| (Arc::from(name.as_str()), *state)));
            let answer = |name: &str| known[name] >= Answers;
            let witnesses = all.witnesses(&shoot);
            prop_assert!(witnesses.len() <= WITNESSES + 1);
            let counted = known.keys().filter(|name| all.counts(name, &shoot)).count();
            prop_assert_eq!(counted, usize::from(known.keys().any(|name| answer(name))));
            let answers = witnesses.iter().any(|name| answer(name));
            prop_assert_eq!(answers, known.keys().any(|name| answer(name)));
            // Each of them, asked alone, says the same.
            for name in known.keys() {
                prop_assert_eq!(all.is_witness(name, &shoot), witnesses.iter().any(|witness| ***witness == **name));
            }
            // None of the others is better than all witnesses.
            let states = |names: &[&Arc<str>]| names.iter().map(|name| known[&***name]).max();
            prop_assert_eq!(states(&witnesses), known.values().copied().max());
        }
    }
}
