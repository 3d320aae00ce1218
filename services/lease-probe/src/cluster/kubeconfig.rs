//! The kubeconfigs of shoots, as their Secrets hold them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use watchdog_api::kubeconfig::ShootAccess;

use crate::domain::outcome::ProbeFailure;

/// A kubeconfig, or why it cannot be used.
pub type Access = Result<Arc<Kubeconfig>, ProbeFailure>;

/// A usable kubeconfig.
#[derive(Debug)]
pub struct Kubeconfig {
    /// Hash of its content.
    pub digest: u64,
    /// How to reach the API server.
    pub access: ShootAccess,
}

impl PartialEq for Kubeconfig {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

/// The kubeconfig in `data`, which is what a Secret has under its key, if it has that key, or why it cannot be read.
///
/// # Errors
/// Why it cannot be used; never shows what is in it.
pub fn access(data: Result<Option<&[u8]>, &str>) -> Access {
    let unusable = |why: &str| ProbeFailure::Kubeconfig(format!("the Secret {why}"));
    let data = data.map_err(|why| unusable(&format!("has malformed data: {why}")))?;
    let data = data.ok_or_else(|| unusable("has no data key kubeconfig"))?;
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    let access = watchdog_api::kubeconfig::parse(data)
        .map_err(|e| ProbeFailure::Kubeconfig(format!("{}: {}", e.field, e.reason)))?;
    Ok(Arc::new(Kubeconfig {
        digest: hasher.finish(),
        access,
    }))
}
