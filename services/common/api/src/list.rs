//! Lists as the API server answers them. JSON is decoded from bytes in one pass, item by item where one of them is
//! malformed.

use crate::bounded::Bounded;
use crate::subset::{Keep, Subset, describe, scrub};
use crate::{keep, text};
use prost::Message;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::sync::Arc;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemList<T> {
    /// The page's own metadata.
    pub metadata: PageMeta,
    /// The items, in the server's order.
    pub items: Vec<Item<T>>,
}

/// Metadata of a page, a `metav1.ListMeta`.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(rename_all = "camelCase")]
pub struct PageMeta {
    /// The version of the collection; empty when the server sent none.
    #[prost(string, tag = "2")]
    #[serde(default, deserialize_with = "null_as_empty")]
    pub resource_version: String,
    /// Token with which to ask for the next page; empty on the last one.
    #[prost(string, tag = "3")]
    #[serde(default, rename = "continue", deserialize_with = "null_as_empty")]
    pub continue_token: String,
    /// How many items are on the pages after this one; none where the server does not say. It does not count behind a
    /// selector.
    #[prost(int64, optional, tag = "4")]
    #[serde(default)]
    pub remaining_item_count: Option<i64>,
}

/// Metadata of an item.
#[derive(Deserialize)]
pub(crate) struct RawMeta<Labels, Annotations> {
    #[serde(deserialize_with = "text::shared")]
    pub(crate) name: Arc<str>,
    #[serde(default, rename = "resourceVersion", deserialize_with = "text::revision")]
    pub(crate) revision: u64,
    pub(crate) labels: Option<Labels>,
    pub(crate) annotations: Option<Annotations>,
}

/// An item as it is written. What is left out of it is skipped.
#[derive(Deserialize)]
pub(crate) struct RawItem<Spec, Status = IgnoredAny, Labels = IgnoredAny, Annotations = IgnoredAny> {
    pub(crate) metadata: RawMeta<Labels, Annotations>,
    pub(crate) spec: Option<Spec>,
    pub(crate) status: Option<Status>,
}

/// `spec` of a Node or a Machine.
#[derive(Deserialize)]
pub(crate) struct ProviderSpec {
    #[serde(default, rename = "providerID", deserialize_with = "text::provider_id")]
    pub(crate) provider_id: Option<Arc<str>>,
}

/// An item of a list, or what is known of one that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item<T> {
    /// The item.
    Ok(T),
    /// The item is there, but not as it should be.
    Malformed {
        /// Its `metadata.name`, where at least that is readable.
        name: Option<String>,
        /// The error, for people; never a string found in it.
        reason: String,
    },
}

/// Why an answer is not a list.
#[derive(Debug, thiserror::Error)]
#[error("the answer is not a Kubernetes list: {0}")]
pub struct ListError(pub(crate) String);

/// The envelope. `items` must be there: an answer without it must not pass for an empty list, from which one would
/// conclude that a shoot has no nodes. Null is how Go writes an empty list.
#[derive(Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
struct Page<T, const MOST: usize> {
    metadata: Option<PageMeta>,
    #[serde(deserialize_with = "Option::deserialize")]
    items: Option<Bounded<T, MOST>>,
}

// === impl ItemList ===

impl<'a, T: Deserialize<'a>> ItemList<T> {
    /// Decodes a page.
    ///
    /// # Errors
    /// When the bytes are no JSON object with `items`. A malformed item is no error: see [`Item::Malformed`].
    pub fn from_slice(bytes: &'a [u8]) -> Result<Self, ListError> {
        Self::at_most::<{ usize::MAX }>(bytes)
    }

    /// Decodes a page for which at most `MOST` items were asked.
    ///
    /// # Errors
    /// As [`from_slice`](Self::from_slice), and when it has more items.
    pub fn at_most<const MOST: usize>(bytes: &'a [u8]) -> Result<Self, ListError> {
        match serde_json::from_slice::<Page<T, MOST>>(bytes) {
            Ok(page) => Ok(Self::new(page, Item::Ok)),
            Err(_) => Self::item_by_item::<MOST>(bytes),
        }
    }

    /// The slow way, to tell which item is wrong and why.
    fn item_by_item<const MOST: usize>(bytes: &'a [u8]) -> Result<Self, ListError> {
        match serde_json::from_slice::<Page<&'a RawValue, MOST>>(bytes) {
            Ok(page) => Ok(Self::new(page, Item::from_raw)),
            Err(error) => Err(ListError(scrub(&error.to_string()))),
        }
    }

    fn new<R, const MOST: usize>(page: Page<R, MOST>, convert: impl Fn(R) -> Item<T>) -> Self {
        let Bounded(items) = page.items.unwrap_or_default();
        Self {
            metadata: page.metadata.unwrap_or_default(),
            items: items.into_iter().map(convert).collect(),
        }
    }
}

// === impl Item ===

impl<'a, T: Deserialize<'a>> Item<T> {
    fn from_raw(raw: &'a RawValue) -> Self {
        let mut deserializer = serde_json::Deserializer::from_str(raw.get());
        match serde_path_to_error::deserialize(&mut deserializer) {
            Ok(item) => Self::Ok(item),
            Err(error) => Self::Malformed {
                name: name_of(raw),
                reason: describe("", error),
            },
        }
    }
}

impl<T> Item<T> {
    /// The item, if it could be decoded.
    pub fn ok(&self) -> Option<&T> {
        match self {
            Self::Ok(item) => Some(item),
            Self::Malformed { .. } => None,
        }
    }
}

impl PageMeta {
    /// The version of the collection as a number, by which lists can be ordered; 0 where it is none.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.resource_version.parse().unwrap_or(0)
    }
}

fn name_of(raw: &RawValue) -> Option<String> {
    const NAME: Keep = keep! { "metadata" => { "name" } };
    let item = Subset::read(&mut serde_json::Deserializer::from_str(raw.get()), &NAME).ok()?;
    let name: Option<String> = item.field("metadata.name").ok()?;
    name.as_deref().map(text::printable_name)
}

fn null_as_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests;
