//! Strings of objects, decoded with one allocation at most.

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny},
};
use std::{borrow::Cow, sync::Arc};

/// A string that is borrowed from the document unless it has escapes. (Serde's own `Cow` always allocates.)
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// The most bytes of a name; label values are shorter. API servers enforce both, but not every server is one.
const LONGEST_NAME: usize = 253;

fn bounded(text: &str) -> Result<Arc<str>, &'static str> {
    if text.len() > LONGEST_NAME {
        return Err("must not be longer than 253 bytes");
    }
    Ok(Arc::from(text))
}

/// A non-empty name that many owners share.
pub(crate) fn name(text: &str) -> Result<Arc<str>, &'static str> {
    match text {
        "" => Err("must not be empty"),
        text => bounded(text),
    }
}

/// The value of a label, which may be empty.
pub(crate) fn label<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<str>>, D::Error> {
    let text = Option::<Text>::deserialize(deserializer)?;
    text.map(|text| bounded(&text.0))
        .transpose()
        .map_err(D::Error::custom)
}

/// A [`name`]. (Serde's own `Arc<str>` allocates twice.)
pub(crate) fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    let Text(text) = Text::deserialize(deserializer)?;
    name(&text).map_err(D::Error::custom)
}

/// A `resourceVersion` as a number, by which objects can be ordered; 0 where it is none.
pub(crate) fn revision<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = Option::<Text>::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.0.parse().ok()).unwrap_or(0))
}

/// True: the field is there, whatever its value.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}
