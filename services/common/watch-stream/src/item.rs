//! The items of the streams: they have a key, and their times age on the way.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use watchdog_proto::probe::v1 as probe;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::weeder::v1 as weeder;

use crate::message::{Event, Message};
use crate::wire::{duration, forward, micros, signed};

pub use watchdog_client::item::{Keyed, NamePair};

/// An item of a Watch stream, as it is on the wire. Page tokens carry its key as text.
pub trait StreamItem: Keyed<Key: Display + FromStr> + prost::Message + Clone {
    /// Name of the stream in logs, metrics and on /readyz.
    const STREAM: &'static str;

    /// The item as it is after `later`.
    fn age(&mut self, _later: Duration) {}
}

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

impl StreamItem for probe::Verdict {
    const STREAM: &'static str = "lease-probe";

    fn age(&mut self, later: Duration) {
        let later = micros(Some(&duration(later)));
        self.age = Some(signed(micros(self.age.as_ref()).saturating_add(later)));
        self.valid_for = Some(signed(micros(self.valid_for.as_ref()).saturating_sub(later)));
    }
}

impl StreamItem for scaling::ShootScaling {
    const STREAM: &'static str = "scaling";
}

impl StreamItem for weeder::Weeder {
    const STREAM: &'static str = "weeders";

    fn age(&mut self, later: Duration) {
        let remaining = forward(self.remaining.as_ref()).saturating_sub(later);
        self.remaining = Some(duration(remaining));
    }
}

impl StreamItem for weeder::EndpointReadiness {
    const STREAM: &'static str = "endpoint-readiness";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_ages_on_its_way() {
        let mut verdict = probe::Verdict {
            age: Some(signed(1_000_000)),
            valid_for: Some(signed(1_500_000)),
            ..Default::default()
        };
        verdict.age(Duration::from_secs(2));
        assert_eq!(micros(verdict.age.as_ref()), 3_000_000);
        assert_eq!(micros(verdict.valid_for.as_ref()), -500_000);
    }
}
