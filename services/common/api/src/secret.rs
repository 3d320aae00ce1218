//! Secrets that hold a kubeconfig, reduced to it.

use crate::{
    keep,
    lenient::{Keep, Lenient, Subset},
    meta, names,
};
use k8s_openapi::{ByteString, api::core::v1, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::Deserialize;
use std::fmt;

/// A `v1` Secret of a watch, of whose data only [`names::KUBECONFIG_KEY`] is kept. Reading one fails only on broken
/// JSON: kube writes a list that it cannot decode into the log as it came, with all that is secret in it.
#[derive(Clone, Deserialize)]
pub struct KubeconfigSecret {
    /// Identity, resourceVersion and deletionTimestamp; nothing else is kept.
    #[serde(default, deserialize_with = "meta::identity")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    data: Lenient<Option<Data>>,
}

#[derive(Clone, Deserialize)]
#[serde(expecting = "an object")]
struct Data {
    kubeconfig: Option<ByteString>,
}

// === impl KubeconfigSecret ===

impl KubeconfigSecret {
    /// The kubeconfig; none when the Secret has no such key.
    ///
    /// # Errors
    /// What is wrong with the data; never shows what is in it.
    pub fn kubeconfig(&self) -> Result<Option<&[u8]>, &str> {
        let data = self.data.as_result()?.as_ref();
        Ok(data
            .and_then(|data| data.kubeconfig.as_ref())
            .map(|bytes| bytes.0.as_slice()))
    }
}

impl fmt::Debug for KubeconfigSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeconfigSecret")
            .field("namespace", &self.metadata.namespace)
            .field("name", &self.metadata.name)
            .finish_non_exhaustive()
    }
}

crate::trimmed!(KubeconfigSecret, v1::Secret);

impl Subset for Data {
    const KEEP: Keep = keep! { names::KUBECONFIG_KEY };
}

#[cfg(test)]
mod tests;
