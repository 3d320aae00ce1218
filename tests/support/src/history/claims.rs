//! The records of the replicas in their membership Leases, over time.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::{PEER_TTL, Write};

/// Start of every annotation of the watchdog.
const PREFIX: &str = "dependency-watchdog.gardener.cloud/";

/// How a replica let go of what it had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReleaseKind {
    Released,
    Acknowledged,
    Expired,
}

/// A Lease from one write to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LeaseRecord {
    /// When the write came in: others can only have seen it later.
    at: Timestamp,
    session: String,
    /// Identity to session of all whom it considers live.
    view: BTreeMap<String, String>,
    held: bool,
    /// Counts the changes of session, view and holder.
    claim: usize,
}

/// All cards of all replicas, each replica's by time.
#[derive(Debug, Default)]
pub(super) struct Claims {
    cards: BTreeMap<String, Vec<LeaseRecord>>,
}

// === impl Claims ===

impl Claims {
    /// From writes in the order of their arrival.
    pub(super) fn read(writes: &[Write]) -> Self {
        let mut claims = Self::default();
        for write in writes {
            if write.applied && write.path.contains("/leases") {
                claims.add(write);
            }
        }
        claims
    }

    fn add(&mut self, write: &Write) {
        let Some(mut card) = card(write) else { return };
        // Whose Lease it is stands in its name, and nobody writes another's.
        let cards = self.cards.entry(write.author.clone()).or_default();
        if let Some(last) = cards.last() {
            let same = (&last.session, &last.view, last.held) == (&card.session, &card.view, card.held);
            card.claim = last.claim + usize::from(!same);
        }
        cards.push(card);
    }

    /// The content of a replica's Lease at a moment.
    fn card(&self, replica: &str, at: Timestamp) -> Option<&LeaseRecord> {
        let cards = self.cards.get(replica)?;
        cards.get(..cards.partition_point(|card| card.at <= at))?.last()
    }

    /// The number of a replica's claim at a moment.
    pub(super) fn current(&self, replica: &str, at: Timestamp) -> Option<usize> {
        Some(self.card(replica, at)?.claim)
    }

    /// True if a replica holds its Lease at a moment; says why not.
    pub(super) fn is_held(&self, replica: &str, at: Timestamp) -> Result<(), String> {
        let card = self.card(replica, at).ok_or("it has none")?;
        if !card.held {
            return Err(format!("it was released at {}", card.at));
        }
        if is_expired(card, at) {
            return Err(format!("it was last renewed at {}", card.at));
        }
        Ok(())
    }

    /// How `from`, who acted under that claim, let go, so that `to` may act at a moment; none when it did not.
    pub(super) fn let_go(
        &self,
        (from, claim): (&str, Option<usize>),
        to: &str,
        at: Timestamp,
    ) -> Option<ReleaseKind> {
        let before = self.card(from, at)?;
        if !before.held {
            return Some(ReleaseKind::Released);
        }
        let after = self.card(to, at)?;
        // As long as its claim is the same, what it owned is what it owns, whomever it acknowledges.
        if Some(before.claim) != claim && before.view.get(to) == Some(&after.session) {
            return Some(ReleaseKind::Acknowledged);
        }
        is_expired(before, at).then_some(ReleaseKind::Expired)
    }
}

fn is_expired(card: &LeaseRecord, at: Timestamp) -> bool {
    at.duration_since(card.at).unsigned_abs() >= PEER_TTL && at > card.at
}

fn card(write: &Write) -> Option<LeaseRecord> {
    let annotation = |name: &str| {
        let annotations = write.body.pointer("/metadata/annotations")?;
        annotations.get(format!("{PREFIX}{name}"))?.as_str()
    };
    let holder = write.body.pointer("/spec/holderIdentity").and_then(Value::as_str);
    Some(LeaseRecord {
        at: write.at,
        session: annotation("session")?.to_owned(),
        view: serde_json::from_str(annotation("view")?).ok()?,
        held: holder.is_some_and(|holder| !holder.is_empty()),
        claim: 0,
    })
}
