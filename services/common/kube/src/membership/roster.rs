//! The other replicas, as their Leases show them: who is live?
//!
//! Two sources. The watch is fast, may be late, may repeat itself and may break without a sign: it can only add
//! members and lengthen lives. A list is a consistent read (no resourceVersion, so the API server answers with what
//! is true at some instant after the request was sent): only a list removes a member, when it shows one of:
//!
//! - the Lease was released by its holder;
//! - the Lease still is as it was when its last change was seen, and the list was *started* a foreign lifetime after
//!   that: its holder has not renewed since, so its own lease has ended;
//! - the Lease does not exist, and a list that far back already said so. (Its holder starts a new session when it
//!   finds out, so what it was allowed to do ends by time.)
//!
//! Wall clock times in Leases are never read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::card::{Card, Identity, Seen, Stamp};

/// An instant by this replica's monotonic clock: time since it started.
pub(crate) type Moment = Duration;

/// The other replicas.
#[derive(Debug, Clone)]
pub(crate) struct Roster {
    foreign: Duration,
    members: BTreeMap<Identity, Member>,
    /// Leases that count as gone, as they were then: seen again unchanged, they still are.
    gone: BTreeMap<Identity, Grave>,
    /// Counts what the watch brought.
    events: u64,
}

/// A replica that counts as live.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) card: Card,
    /// None when a list no longer had the Lease.
    stamp: Option<Stamp>,
    /// When the last change was seen.
    pub(crate) changed: Moment,
    /// Value of [`Roster::events`] when the watch last brought something.
    event: u64,
    /// Seen to change: certainly alive not long ago. One that was just found may have died an hour ago.
    pub(crate) proven: bool,
}

#[derive(Debug, Clone)]
struct Grave {
    stamp: Stamp,
    since: Moment,
}

/// The changes that the watch had brought when a list was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark(u64);

// === impl Roster ===

impl Roster {
    /// Nobody yet. A member lives for `foreign` after each change seen.
    pub(crate) fn new(foreign: Duration) -> Self {
        Self {
            foreign,
            members: BTreeMap::new(),
            gone: BTreeMap::new(),
            events: 0,
        }
    }

    /// Those that count as live.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// When a list could find the next member dead; none without members.
    pub(crate) fn suspect_at(&self) -> Option<Moment> {
        self.members.values().map(|m| m.changed + self.foreign).min()
    }

    /// To be noted when a list is started, and handed to [`Self::listed`] with its result.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.events)
    }

    /// The watch brought a Lease. True when a list should follow soon, to remove somebody.
    pub(crate) fn observed(&mut self, now: Moment, seen: Seen) -> bool {
        self.events += 1;
        if !seen.card.held {
            return self
                .members
                .get(&seen.card.identity)
                .is_some_and(|m| m.stamp.as_ref() != Some(&seen.stamp));
        }
        if self.is_gone(&seen) {
            return false;
        }
        match self.members.get_mut(&seen.card.identity) {
            Some(member) if member.stamp.as_ref() == Some(&seen.stamp) => {}
            Some(member) => member.change(now, self.events, seen),
            None => self.enter(now, seen),
        }
        false
    }

    /// A list brought all Leases. It was started at `started`, with `mark` noted then. True when another list should
    /// follow, because the watch brought something about one of them in the meantime and the order is unknown.
    pub(crate) fn listed(&mut self, started: Moment, mark: Mark, now: Moment, leases: Vec<Seen>) -> bool {
        let mut unsure = false;
        let leases: BTreeMap<Identity, Seen> = leases
            .into_iter()
            .map(|seen| (Arc::clone(&seen.card.identity), seen))
            .collect();
        self.gone
            .retain(|identity, grave| leases.get(identity).is_some_and(|seen| seen.stamp == grave.stamp));
        let old = started.saturating_sub(self.foreign);
        let foreign_ended = |changed: Moment| started >= self.foreign && changed <= old;
        for (identity, member) in &mut self.members {
            if !leases.contains_key(identity) && member.event <= mark.0 && member.stamp.take().is_some() {
                member.changed = now;
            }
        }
        self.members.retain(|identity, member| {
            let overtaken = member.event > mark.0;
            let over = match leases.get(identity) {
                None => !overtaken && foreign_ended(member.changed),
                Some(seen) if !seen.card.held || self.gone.contains_key(identity) => {
                    unsure |= overtaken;
                    !overtaken
                }
                Some(seen) => {
                    !overtaken && member.stamp.as_ref() == Some(&seen.stamp) && foreign_ended(member.changed)
                }
            };
            if over && let Some(seen) = leases.get(identity) {
                self.gone.insert(Arc::clone(identity), Grave::new(now, seen));
            }
            !over
        });
        for (identity, seen) in leases {
            if self.gone.contains_key(&identity) {
                continue;
            }
            match self.members.get_mut(&identity) {
                Some(member) if member.event > mark.0 || member.stamp.as_ref() == Some(&seen.stamp) => {}
                Some(member) if seen.card.held => member.change(now, member.event, seen),
                Some(_) => {}
                None if seen.card.held => self.enter(now, seen),
                None => {
                    self.gone.insert(identity, Grave::new(now, &seen));
                }
            }
        }
        unsure
    }

    /// The longest gone Lease that still exists, and since when it is gone.
    pub(crate) fn longest_gone(&self) -> Option<(Moment, Identity, Stamp)> {
        let (identity, grave) = self.gone.iter().min_by_key(|(_, grave)| grave.since)?;
        Some((grave.since, Arc::clone(identity), grave.stamp.clone()))
    }

    /// An attempt was made to delete a gone Lease; the next comes a lifetime later, if a list still has it then.
    pub(crate) fn collected(&mut self, now: Moment, identity: &str) {
        if let Some(grave) = self.gone.get_mut(identity) {
            grave.since = now;
        }
    }

    /// Behaviour of a careless implementation: for tests that show why it must not.
    #[cfg(test)]
    pub(crate) fn remove_unseen(&mut self, now: Moment) {
        self.members
            .retain(|_, member| now < member.changed + self.foreign);
    }

    /// As [`Self::remove_unseen`].
    #[cfg(test)]
    pub(crate) fn remove(&mut self, identity: &str) {
        self.members.remove(identity);
    }

    fn enter(&mut self, now: Moment, seen: Seen) {
        let member = Member {
            card: seen.card,
            stamp: Some(seen.stamp),
            changed: now,
            event: self.events,
            proven: false,
        };
        self.members.insert(Arc::clone(&member.card.identity), member);
    }

    fn is_gone(&self, seen: &Seen) -> bool {
        self.gone
            .get(&seen.card.identity)
            .is_some_and(|grave| grave.stamp == seen.stamp)
    }
}

impl Member {
    fn change(&mut self, now: Moment, event: u64, seen: Seen) {
        self.card = seen.card;
        self.stamp = Some(seen.stamp);
        self.changed = now;
        self.event = event;
        self.proven = true;
    }
}

impl Grave {
    fn new(since: Moment, seen: &Seen) -> Self {
        Self {
            stamp: seen.stamp.clone(),
            since,
        }
    }
}
