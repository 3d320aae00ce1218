//! The other replicas, as their Leases show them: who is live?
//!
//! Two sources. The watch is fast, may be late, may repeat itself and may break without a sign: it can only add
//! members and lengthen lives. A list is a consistent read (no resourceVersion, so the API server answers with what
//! is true at some instant after the request was sent): only a list removes a member, when it shows one of:
//!
//! - the Lease was released by its holder;
//! - the Lease still is as it was when its last change was seen, and the list was *started* one `peer_ttl` after
//!   that: its holder has not renewed since, so its own lease has ended;
//! - the Lease does not exist, and a list that far back already showed that. (Its holder starts a new session when it
//!   finds out, so what it was allowed to do ends by time.)
//!
//! Wall clock times in Leases are never read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::record::{Identity, LeaseVersion, MemberRecord, ObservedLease};

/// An instant by this replica's monotonic clock: time since it started.
pub(crate) type Moment = Duration;

/// The other replicas.
#[derive(Debug, Clone)]
pub(crate) struct MemberTable {
    peer_ttl: Duration,
    members: BTreeMap<Identity, KnownMember>,
    /// Leases that count as gone, as they were then: seen again unchanged, they still are.
    gone: BTreeMap<Identity, Tombstone>,
    /// Counts what the watch brought.
    events: u64,
}

/// A replica that counts as live.
#[derive(Debug, Clone)]
pub(crate) struct KnownMember {
    pub(crate) record: MemberRecord,
    /// None when a list no longer had the Lease.
    lease_version: Option<LeaseVersion>,
    /// When the last change was seen.
    changed: Moment,
    /// Value of [`MemberTable::events`] when the watch last brought something.
    event: u64,
    /// Seen to change: certainly alive not long ago. One that was just found may have died an hour ago.
    pub(crate) proven: bool,
}

#[derive(Debug, Clone)]
struct Tombstone {
    lease_version: LeaseVersion,
    since: Moment,
}

/// The changes that the watch had brought when a list was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WatchPosition(u64);

// === impl MemberTable ===

impl MemberTable {
    /// No members yet. A member lives for `peer_ttl` after each change seen.
    pub(crate) fn new(peer_ttl: Duration) -> Self {
        Self {
            peer_ttl,
            members: BTreeMap::new(),
            gone: BTreeMap::new(),
            events: 0,
        }
    }

    /// Those that count as live.
    pub(crate) fn live(&self) -> impl Iterator<Item = &KnownMember> {
        self.members.values()
    }

    /// When a list could find the next member dead; none without members.
    pub(crate) fn suspect_at(&self) -> Option<Moment> {
        self.members.values().map(|m| m.changed + self.peer_ttl).min()
    }

    /// To be noted when a list is started, and handed to [`Self::listed`] with its result.
    pub(crate) fn mark(&self) -> WatchPosition {
        WatchPosition(self.events)
    }

    /// The watch brought a Lease. True when a list should follow soon, to remove a member.
    pub(crate) fn observed(&mut self, now: Moment, seen: ObservedLease) -> bool {
        self.events += 1;
        if !seen.record.held {
            return self
                .members
                .get(&seen.record.identity)
                .is_some_and(|m| m.lease_version.as_ref() != Some(&seen.lease_version));
        }
        if self.is_gone(&seen) {
            return false;
        }
        match self.members.get_mut(&seen.record.identity) {
            Some(member) if member.lease_version.as_ref() == Some(&seen.lease_version) => {}
            Some(member) => member.change(now, self.events, seen),
            None => self.enter(now, seen),
        }
        false
    }

    /// A list brought all Leases. It was started at `started`, with `mark` noted then. True when another list should
    /// follow, because the watch brought something about one of them in the meantime and the order is unknown.
    pub(crate) fn listed(
        &mut self,
        started: Moment,
        mark: WatchPosition,
        now: Moment,
        leases: Vec<ObservedLease>,
    ) -> bool {
        let mut unsure = false;
        let leases: BTreeMap<Identity, ObservedLease> = leases
            .into_iter()
            .map(|seen| (Arc::clone(&seen.record.identity), seen))
            .collect();
        self.gone.retain(|identity, tombstone| {
            leases
                .get(identity)
                .is_some_and(|seen| seen.lease_version == tombstone.lease_version)
        });
        let peer_ttl = self.peer_ttl;
        let peer_ended = |changed: Moment| changed + peer_ttl <= started;
        for (identity, member) in &mut self.members {
            if !leases.contains_key(identity)
                && member.event <= mark.0
                && member.lease_version.take().is_some()
            {
                member.changed = now;
            }
        }
        self.members.retain(|identity, member| {
            let overtaken = member.event > mark.0;
            let over = match leases.get(identity) {
                None => !overtaken && peer_ended(member.changed),
                Some(seen) if !seen.record.held || self.gone.contains_key(identity) => {
                    unsure |= overtaken;
                    !overtaken
                }
                Some(seen) => {
                    !overtaken
                        && member.lease_version.as_ref() == Some(&seen.lease_version)
                        && peer_ended(member.changed)
                }
            };
            if over && let Some(seen) = leases.get(identity) {
                self.gone.insert(Arc::clone(identity), Tombstone::new(now, seen));
            }
            !over
        });
        self.take_in(mark, now, leases);
        unsure
    }

    /// Notes the new and the changed Leases of a list.
    fn take_in(&mut self, mark: WatchPosition, now: Moment, leases: BTreeMap<Identity, ObservedLease>) {
        for (identity, seen) in leases {
            if self.gone.contains_key(&identity) {
                continue;
            }
            match self.members.get_mut(&identity) {
                Some(member)
                    if member.event > mark.0
                        || member.lease_version.as_ref() == Some(&seen.lease_version) => {}
                Some(member) if seen.record.held => member.change(now, member.event, seen),
                Some(_) => {}
                None if seen.record.held => self.enter(now, seen),
                None => {
                    self.gone.insert(identity, Tombstone::new(now, &seen));
                }
            }
        }
    }

    /// The longest gone Lease that still exists, and since when it is gone.
    pub(crate) fn longest_gone(&self) -> Option<(Moment, Identity, LeaseVersion)> {
        let (identity, tombstone) = self.gone.iter().min_by_key(|(_, tombstone)| tombstone.since)?;
        Some((
            tombstone.since,
            Arc::clone(identity),
            tombstone.lease_version.clone(),
        ))
    }

    /// An attempt was made to delete a gone Lease; the next comes a lifetime later, if a list still has it then.
    pub(crate) fn collected(&mut self, now: Moment, identity: &str) {
        if let Some(tombstone) = self.gone.get_mut(identity) {
            tombstone.since = now;
        }
    }

    /// Behaviour of a careless implementation: for tests that show why it must not.
    #[cfg(test)]
    pub(crate) fn remove_unseen(&mut self, now: Moment) {
        self.members
            .retain(|_, member| now < member.changed + self.peer_ttl);
    }

    /// As [`Self::remove_unseen`].
    #[cfg(test)]
    pub(crate) fn remove(&mut self, identity: &str) {
        self.members.remove(identity);
    }

    fn enter(&mut self, now: Moment, seen: ObservedLease) {
        let member = KnownMember {
            record: seen.record,
            lease_version: Some(seen.lease_version),
            changed: now,
            event: self.events,
            proven: false,
        };
        self.members.insert(Arc::clone(&member.record.identity), member);
    }

    fn is_gone(&self, seen: &ObservedLease) -> bool {
        self.gone
            .get(&seen.record.identity)
            .is_some_and(|tombstone| tombstone.lease_version == seen.lease_version)
    }
}

impl KnownMember {
    fn change(&mut self, now: Moment, event: u64, seen: ObservedLease) {
        self.record = seen.record;
        self.lease_version = Some(seen.lease_version);
        self.changed = now;
        self.event = event;
        self.proven = true;
    }
}

impl Tombstone {
    fn new(since: Moment, seen: &ObservedLease) -> Self {
        Self {
            lease_version: seen.lease_version.clone(),
            since,
        }
    }
}
