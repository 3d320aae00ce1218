//! The answers to callers: Watch, Get and List.

use std::collections::{BTreeMap, HashMap};
use std::str::FromStr;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;
use watchdog_proto::stream::v1 as pb;
use watchdog_runtime::request::PageRequest;
use watchdog_runtime::rpc_error::{ErrorReason, error, invalid, invalid_field};

use super::SeedView;
use super::known_replicas::{KnownReplicas, PeerState, WAIT_FOR_REPLICAS};
use crate::item::{StreamItem, TimedItem};
use crate::message::{Completeness, Event, MAX_ITEM_BYTES, Message};
use crate::metrics::{Rpc, TRIMMED};
use crate::server::StreamStore;
use crate::stream::{Responses, serve};
use crate::subscription::{CompletenessChanges, Subscription};
use crate::wire::{ItemPage, WatchResponse};

/// A page ends before it grows larger than this: a quarter of the 4 MiB that clients take by default.
const MAX_PAGE_BYTES: usize = 1024 * 1024;

/// The names of unary RPCs in the count of items that were sent without their texts.
const LIST: &str = "List";
const GET: &str = "Get";

/// The item, without its texts where it is too large for those who follow it.
fn trimmed<M: StreamItem>(rpc: &'static str, mut item: M) -> M {
    if item.encoded_len() > MAX_ITEM_BYTES {
        item.leave_out_texts();
        TRIMMED.inc(Rpc(rpc));
    }
    item
}

/// An answer about one item.
#[derive(Debug)]
pub struct ItemAnswer<M> {
    /// The item, if there is one.
    pub item: Option<M>,
    /// When the answer was sent.
    pub position: Option<pb::Position>,
    /// Lists what the answer lacks.
    pub completeness: Option<pb::Completeness>,
}

/// Reads the scope of a request.
///
/// # Errors
/// INVALID_ARGUMENT when there is no such scope.
pub fn scope(scope: i32) -> Result<pb::Scope, Status> {
    pb::Scope::try_from(scope).map_err(|_| {
        let why = format!("{scope} is unknown: use SCOPE_SEED, which is the default, or SCOPE_REPLICA");
        invalid_field("scope", &why)
    })
}

impl<M: StreamItem> SeedView<M> {
    /// Waits until an answer of this scope is complete, or there is no use in waiting. Returns what it lacks.
    async fn settled(&self, scope: pb::Scope) -> Completeness {
        let mut replicas = self.replicas.subscribe();
        let latest = Instant::now() + WAIT_FOR_REPLICAS;
        loop {
            let (completeness, wait) = replicas.borrow_and_update().completeness(scope);
            let until = wait.map_or(latest, |until| until.min(latest));
            if wait.is_none() || until <= Instant::now() {
                return completeness;
            }
            tokio::select! {
                changed = replicas.changed() => if changed.is_err() { return completeness },
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// The completeness of an answer of this scope once it is settled, and whenever it may have changed.
    fn completeness_changes(&self, scope: pb::Scope) -> CompletenessChanges {
        let mut replicas = self.replicas.subscribe();
        replicas.mark_changed();
        let next = move |(view, mut replicas): (Self, watch::Receiver<KnownReplicas>)| async move {
            replicas.changed().await.ok()?;
            let completeness = view.settled(scope).await;
            Some((completeness, (view, replicas)))
        };
        Box::pin(futures::stream::unfold((self.clone(), replicas), next))
    }

    fn store(&self, scope: pb::Scope) -> &StreamStore<M::Key, TimedItem<M>> {
        match scope {
            pb::Scope::Unspecified | pb::Scope::Seed => &self.whole,
            pb::Scope::Replica => &self.own,
        }
    }

    /// The body of a Watch RPC.
    ///
    /// # Errors
    /// UNAVAILABLE while the process drains.
    pub fn watch<R: WatchResponse<Item = M>>(
        &self,
        scope: pb::Scope,
        matches: impl Fn(&M::Key) -> bool + Send + 'static,
    ) -> Result<Responses<R>, Status> {
        let (_, rpc) = R::PATH.rsplit_once('/').unwrap_or_default();
        let completeness = self.completeness_changes(scope);
        let subscription = Subscription::new(self.store(scope), matches, completeness);
        let mut sent_incomplete = false;
        let encode = move |message: Message<M::Key, Arc<TimedItem<M>>>| {
            match &message.event {
                Event::SnapshotComplete { completeness, .. } => sent_incomplete = !completeness.complete,
                // Followers kept what the snapshot lacked. Only another one shows what of that is gone, and a stream
                // has one snapshot only.
                Event::Heartbeat {
                    completeness: Some(now),
                } if sent_incomplete && now.complete => {
                    let why =
                        "the snapshot of this stream lacked items, and now none is missing: connect again";
                    return Err(error(ErrorReason::SnapshotIncomplete, why));
                }
                Event::Heartbeat { .. } | Event::Upsert(..) | Event::Removed(_) => {}
            }
            let Message { position, event } = TimedItem::message(message);
            let event = event.map(|item| trimmed(rpc, item));
            Ok(R::encode(Message { position, event }))
        };
        serve(rpc, self.draining.clone(), subscription, encode)
    }

    /// One item of the whole seed. If there is none, waits for the replicas that have not sent their items yet.
    pub async fn get(&self, key: &M::Key) -> ItemAnswer<M> {
        let whole = &self.whole;
        let mut report = whole.get(key);
        let completeness = if report.is_some() {
            self.replicas.borrow().completeness(pb::Scope::Seed).0
        } else {
            let completeness = self.settled(pb::Scope::Seed).await;
            report = whole.get(key);
            completeness
        };
        ItemAnswer {
            item: report.map(|report| trimmed(GET, report.now())),
            position: Some(whole.position()),
            completeness: Some(completeness),
        }
    }

    /// Visits all items, after waiting for the replicas that have not sent theirs yet. Returns where an answer from
    /// them stands and what it lacks.
    pub async fn visit(
        &self,
        scope: pb::Scope,
        mut visit: impl FnMut(&M) + Send,
    ) -> (pb::Position, pb::Completeness) {
        let completeness = self.settled(scope).await;
        let position = self.store(scope).visit(|report| visit(&report.item));
        (position, completeness)
    }

    /// The replicas that are known now, this one included: how much is known of each, and how many items it reports.
    #[must_use]
    pub fn known_replicas(&self) -> BTreeMap<Arc<str>, (PeerState, u32)> {
        let mut items: HashMap<Arc<str>, u32> = HashMap::new();
        for reports in self.reports.lock().values() {
            for replica in reports.replicas() {
                *items.entry(replica.clone()).or_default() += 1;
            }
        }
        let own = u32::try_from(self.own.keys().len()).unwrap_or(u32::MAX);
        items.insert(self.me.clone(), own);
        let states = self.replicas.borrow().states.clone().into_iter();
        let with_items = |(name, state)| {
            let items = items.get(&name).copied().unwrap_or_default();
            (name, (state, items))
        };
        states.map(with_items).collect()
    }

    /// Where an answer of the whole seed stands now, and what it lacks.
    #[must_use]
    pub fn standing(&self) -> (pb::Position, pb::Completeness) {
        let (completeness, _) = self.replicas.borrow().completeness(pb::Scope::Seed);
        (self.whole.position(), completeness)
    }

    /// A page of the items that match, after waiting for the replicas that have not sent theirs yet.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when the page token holds no key.
    pub async fn list(
        &self,
        scope: pb::Scope,
        request: &PageRequest,
        matches: impl Fn(&M::Key, &M) -> bool + Send,
    ) -> Result<ItemPage<M>, Status> {
        let after = request.after.as_deref().map(read_key).transpose()?;
        let completeness = self.settled(scope).await;
        let page = self
            .store(scope)
            .page(after.as_ref(), request.size, |key, report| {
                matches(key, &report.item)
            });
        let (mut items, mut last, mut bytes, mut more) = (Vec::new(), None, 0, page.more);
        for (key, report) in page.items {
            let item = trimmed(LIST, report.now());
            bytes += item.encoded_len();
            if bytes > MAX_PAGE_BYTES && last.is_some() {
                more = true;
                break;
            }
            items.push(item);
            last = Some(key);
        }
        let last = last.filter(|_| more);
        Ok(ItemPage {
            items,
            next_page_token: last
                .map(|key| request.token_after(&key.to_string()))
                .unwrap_or_default(),
            total_size: i32::try_from(page.total).unwrap_or(i32::MAX),
            position: Some(page.position),
            completeness: Some(completeness),
        })
    }
}

fn read_key<K: FromStr>(text: &str) -> Result<K, Status> {
    let why = "was issued by another method: use next_page_token of the previous page, unchanged";
    text.parse()
        .map_err(|_| invalid(ErrorReason::InvalidPageToken, "page_token", why))
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use watchdog_proto::probe::v1::{Evidence, Outcome, Verdict, ZoneEvidence};

    use super::*;
    use crate::message::MAX_STREAM_MESSAGE_BYTES;

    #[test]
    fn an_item_that_is_too_large_goes_without_its_texts() {
        let zone = |zone: &str| ZoneEvidence {
            zone: zone.to_owned(),
            ..Default::default()
        };
        let verdict = |message: String, zones| Verdict {
            shoot: "shoot--a--b".to_owned(),
            outcome: Outcome::LeasesExpired.into(),
            message,
            evidence: Some(Evidence {
                leases: 3,
                zones,
                ..Default::default()
            }),
            ..Default::default()
        };
        let usual = verdict("as ever".to_owned(), vec![zone("a")]);
        assert_eq!(trimmed(LIST, usual.clone()), usual);
        for hostile in [
            verdict("x".repeat(300_000), Vec::new()),
            verdict(String::new(), vec![zone(&"x".repeat(253)); 1_000]),
        ] {
            let sent = trimmed(LIST, hostile);
            assert!(sent.encoded_len() * 4 <= MAX_STREAM_MESSAGE_BYTES);
            assert_eq!(
                (sent.shoot.as_str(), sent.outcome()),
                ("shoot--a--b", Outcome::LeasesExpired)
            );
            assert_eq!(sent.evidence.map(|evidence| evidence.leases), Some(3));
        }
    }
}
