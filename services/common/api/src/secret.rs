//! Secrets that hold a kubeconfig, reduced to it.

use crate::{
    keep, names,
    subset::{Keep, Subset},
};
use k8s_openapi::{ByteString, api::core::v1, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Deserializer};
use std::fmt;

/// A `v1` Secret of a watch, of whose data only [`names::KUBECONFIG_KEY`] is kept. Reading one fails only on broken
/// JSON: kube writes a list that it cannot decode into the log as it came, with all that is secret in it.
#[derive(Clone)]
pub struct KubeconfigSecret {
    /// Identity, resourceVersion and deletionTimestamp; nothing else is kept.
    pub metadata: ObjectMeta,
    kubeconfig: Result<Option<ByteString>, String>,
}

const KEEP: Keep = keep! {
    "metadata" => { "name", "namespace", "uid", "resourceVersion", "generation", "deletionTimestamp" },
    "data" => { names::KUBECONFIG_KEY },
};

impl<'de> Deserialize<'de> for KubeconfigSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Subset::read(deserializer, &KEEP)?;
        Ok(Self {
            metadata: object.metadata(),
            kubeconfig: object.field("data.kubeconfig"),
        })
    }
}

// === impl KubeconfigSecret ===

impl KubeconfigSecret {
    /// The kubeconfig; none when the Secret has no such key.
    ///
    /// # Errors
    /// What is wrong with the data; never shows what is in it.
    pub fn kubeconfig(&self) -> Result<Option<&[u8]>, &str> {
        let data = self.kubeconfig.as_ref().map_err(String::as_str)?;
        Ok(data.as_ref().map(|bytes| bytes.0.as_slice()))
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

#[cfg(test)]
mod tests;
