//! Strings of objects, decoded with one allocation at most.

use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};
use std::{borrow::Cow, fmt, sync::Arc};

/// A string that is borrowed from the document unless it has escapes. (Serde's own `Cow` always allocates.)
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// Metadata of which only the name matters; it must be there.
#[derive(Deserialize)]
pub(crate) struct NameOnly {
    #[serde(deserialize_with = "shared")]
    pub(crate) name: Arc<str>,
}

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
    struct Shared;

    impl Visitor<'_> for Shared {
        type Value = Arc<str>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Arc<str>, E> {
            name(text).map_err(E::custom)
        }
    }

    deserializer.deserialize_str(Shared)
}
