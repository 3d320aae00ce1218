//! The places of all keys and values of a file.

use crate::yaml::{MAX_DEPTH, MAX_NODES};
use serde_saphyr::granit_parser::{Event, Parser, Span};
use std::{borrow::Cow, collections::BTreeMap};

/// Line and column.
pub(super) type Place = (u64, u64);

/// A value, and all that is in it. What an alias stands for is not in it: its place is the alias.
#[derive(Default)]
pub(super) struct Node<'t> {
    pub(super) key: Place,
    pub(super) place: Place,
    pub(super) fields: BTreeMap<Cow<'t, str>, Self>,
    pub(super) items: Vec<Self>,
}

impl<'t> Node<'t> {
    /// The whole file, as far as its syntax and the limits allow: what exceeds them is refused by the decoder.
    pub(super) fn root(text: &'t str) -> Self {
        let mut depth = 0;
        let is_within_limits = |(event, _): &(Event<'_>, Span)| {
            depth = depth + usize::from(is_start(event)) - usize::from(is_end(event));
            depth <= MAX_DEPTH
        };
        let mut events = Parser::new_from_str(text)
            .map_while(Result::ok)
            .filter(|(event, _)| event.is_node() || is_end(event))
            .take(2 * MAX_NODES)
            .take_while(is_within_limits);
        let first = events.next();
        first.map_or_else(Self::default, |first| Self::read(first, &mut events))
    }

    /// The value that begins with the first of these events.
    fn read((event, span): (Event<'t>, Span), events: &mut impl Iterator<Item = (Event<'t>, Span)>) -> Self {
        let mut node = Self {
            place: (span.start.line() as u64, span.start.col() as u64 + 1),
            ..Self::default()
        };
        while is_start(&event) {
            let Some(first) = events.next().filter(|(event, _)| !is_end(event)) else {
                break;
            };
            if matches!(event, Event::SequenceStart(..)) {
                node.items.push(Self::read(first, events));
                continue;
            }
            let name = match &first.0 {
                Event::Scalar(name, ..) => name.clone(),
                // No field has the name of a list or a mapping.
                _ => Cow::default(),
            };
            let key = Self::read(first, events).place;
            let Some(value) = events.next() else { break };
            let value = Self::read(value, events);
            node.fields.insert(name, Self { key, ..value });
        }
        node
    }
}

fn is_start(event: &Event<'_>) -> bool {
    matches!(event, Event::MappingStart(..) | Event::SequenceStart(..))
}

fn is_end(event: &Event<'_>) -> bool {
    matches!(event, Event::MappingEnd | Event::SequenceEnd)
}
