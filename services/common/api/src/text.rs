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
pub(crate) struct Named {
    #[serde(deserialize_with = "shared")]
    pub(crate) name: Arc<str>,
}

/// A non-empty string that many owners share. (Serde's own `Arc<str>` allocates twice.)
pub(crate) fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    struct Shared;

    impl Visitor<'_> for Shared {
        type Value = Arc<str>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Arc<str>, E> {
            if text.is_empty() {
                Err(E::custom("must not be empty"))
            } else {
                Ok(Arc::from(text))
            }
        }
    }

    deserializer.deserialize_str(Shared)
}
