//! Node leases: when did each kubelet last reach its kube-apiserver?

use crate::list::{Item, ItemList, ListError, RawItem};
use crate::{protobuf, text};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use std::sync::Arc;

/// A `coordination.k8s.io/v1` Lease in the namespace `kube-node-lease`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Raw")]
pub struct LeaseItem {
    /// The lease's name, which is the node's.
    pub name: Arc<str>,
    /// `metadata.resourceVersion` as a number: the order of the last writes. 0 where it is none.
    pub revision: u64,
    /// `spec.renewTime`, by the clock of the node; `None` when the lease has none, which the API allows.
    pub renew_time: Option<Timestamp>,
    /// `spec.leaseDurationSeconds`; kubelet renews every quarter of it.
    pub lease_duration_seconds: Option<i32>,
}

type Raw = RawItem<RawSpec>;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSpec {
    #[serde(default, deserialize_with = "micro_time")]
    renew_time: Option<Timestamp>,
    lease_duration_seconds: Option<i32>,
}

// === impl LeaseItem ===

impl LeaseItem {
    /// Decodes a page of leases for which at most `MOST` were asked, in Protobuf or in JSON.
    ///
    /// # Errors
    /// When the bytes are no list, or one of more items. An item whose name or time cannot be used is no error: see
    /// [`Item::Malformed`].
    pub fn page<const MOST: usize>(bytes: &[u8]) -> Result<ItemList<Self>, ListError> {
        if !protobuf::is_protobuf(bytes) {
            return ItemList::at_most::<MOST>(bytes);
        }
        let list = protobuf::leases(bytes, MOST)?;
        Ok(ItemList {
            metadata: list.metadata.unwrap_or_default(),
            items: list.items.into_iter().map(Item::from).collect(),
        })
    }

    /// # Errors
    /// The field that cannot be used, and why.
    fn new(
        name: &str,
        revision: &str,
        spec: protobuf::LeaseSpec,
    ) -> Result<Self, (&'static str, &'static str)> {
        let time = |time: protobuf::MicroTime| Some(Timestamp::new(time.seconds?, time.nanos));
        let renew_time = spec.renew_time.and_then(time).transpose();
        Ok(Self {
            name: text::name(name).map_err(|why| ("metadata.name", why))?,
            revision: revision.parse().unwrap_or(0),
            renew_time: renew_time.map_err(|_| ("spec.renewTime", "not a time"))?,
            lease_duration_seconds: spec.lease_duration_seconds,
        })
    }
}

impl From<protobuf::Lease> for Item<LeaseItem> {
    fn from(lease: protobuf::Lease) -> Self {
        let protobuf::ObjectMeta {
            name,
            resource_version,
        } = lease.metadata.unwrap_or_default();
        match LeaseItem::new(&name, &resource_version, lease.spec.unwrap_or_default()) {
            Ok(lease) => Self::Ok(lease),
            Err((field, why)) => Self::Malformed {
                name: Some(name).filter(|name| !name.is_empty()),
                reason: format!("{field}: {why}"),
            },
        }
    }
}

impl From<Raw> for LeaseItem {
    fn from(raw: Raw) -> Self {
        let spec = raw.spec.unwrap_or_default();
        Self {
            name: raw.metadata.name,
            revision: raw.metadata.revision,
            renew_time: spec.renew_time,
            lease_duration_seconds: spec.lease_duration_seconds,
        }
    }
}

/// Reads a `metav1.MicroTime`: RFC 3339, or null.
fn micro_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<text::Text>::deserialize(deserializer)?;
    text.map(|text| text.0.parse())
        .transpose()
        .map_err(|_| serde::de::Error::custom("not a time in RFC 3339"))
}

#[cfg(test)]
mod tests;
