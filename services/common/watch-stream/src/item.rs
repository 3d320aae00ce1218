//! The items of a store, each with its moment.

use std::sync::Arc;

use tokio::time::Instant;

use crate::message::{Event, Message};
use crate::wire::duration;

pub use watchdog_client::item::{NamePair, StreamItem};

/// An item as it was at a moment.
#[derive(Debug, Clone)]
pub(crate) struct TimedItem<M> {
    pub(crate) item: Arc<M>,
    pub(crate) as_of: Instant,
    /// When its replica set it.
    pub(crate) set_at: Instant,
}

impl<M> PartialEq for TimedItem<M> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.item, &other.item) && self.as_of == other.as_of
    }
}

impl<M: StreamItem> TimedItem<M> {
    /// The item now.
    pub(crate) fn now(&self) -> M {
        let mut item = M::clone(&self.item);
        item.age(self.as_of.elapsed());
        item
    }

    /// A message that is sent now. An item is as old as its replica says, however late it was published here.
    pub(crate) fn message(message: Message<M::Key, Arc<Self>>) -> Message<M::Key, M> {
        let Message { mut position, event } = message;
        if let Event::Upsert(_, item) = &event {
            position.item_age = Some(duration(item.set_at.elapsed()));
        }
        let event = event.map(|item| item.now());
        Message { position, event }
    }
}
