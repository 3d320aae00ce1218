//! Node leases: when did each kubelet last reach its kube-apiserver?

use crate::{list::ItemList, text};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use std::{borrow::Cow, sync::Arc};

/// A `coordination.k8s.io/v1` Lease in the namespace `kube-node-lease`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Raw")]
pub struct LeaseItem {
    /// The lease's name, which is the node's.
    pub name: Arc<str>,
    /// `spec.renewTime`, by the clock of the node; `None` when the lease has none, which the API allows.
    pub renew_time: Option<Timestamp>,
    /// `spec.leaseDurationSeconds`; kubelet renews every quarter of it.
    pub lease_duration_seconds: Option<i32>,
}

/// A page of leases.
pub type LeaseList = ItemList<LeaseItem>;

#[derive(Deserialize)]
struct Raw {
    metadata: text::NameOnly,
    #[serde(default)]
    spec: Option<RawSpec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSpec {
    #[serde(default, deserialize_with = "micro_time")]
    renew_time: Option<Timestamp>,
    #[serde(default)]
    lease_duration_seconds: Option<i32>,
}

// === impl LeaseItem ===

impl From<Raw> for LeaseItem {
    fn from(raw: Raw) -> Self {
        let spec = raw.spec.unwrap_or_default();
        Self {
            name: raw.metadata.name,
            renew_time: spec.renew_time,
            lease_duration_seconds: spec.lease_duration_seconds,
        }
    }
}

/// Reads a `metav1.MicroTime`: RFC 3339, or null.
fn micro_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let Some(value) = Option::<text::Text>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let text: Cow<'_, str> = value.0;
    text.parse()
        .map(Some)
        .map_err(|_| serde::de::Error::custom("not a time in RFC 3339"))
}

#[cfg(test)]
mod tests;
