//! Readiness as a set of named blockers: the service is ready when none is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// What keeps the service from being ready: name -> why, in a sentence that says what to do.
type Blockers = BTreeMap<&'static str, String>;

/// The readiness of the process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Readiness {
    blockers: Arc<Mutex<Blockers>>,
    ready: watch::Sender<bool>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self {
            blockers: Arc::default(),
            ready: watch::Sender::new(true),
        }
    }
}

impl Readiness {
    /// Adds a blocker, or says anew why it blocks. It stays until [`Readiness::clear`].
    pub fn block(&self, name: &'static str, why: impl Into<String>) {
        self.update(|blockers| {
            blockers.insert(name, why.into());
        });
    }

    /// Removes a blocker; nothing happens when it is not there.
    pub fn clear(&self, name: &'static str) {
        self.update(|blockers| {
            blockers.remove(name);
        });
    }

    /// What blocks now.
    #[must_use]
    pub fn blockers(&self) -> Blockers {
        self.blockers.lock().clone()
    }

    /// Follows whether the process is ready.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    fn update(&self, change: impl FnOnce(&mut Blockers)) {
        let mut blockers = self.blockers.lock();
        change(&mut blockers);
        let ready = blockers.is_empty();
        // Under the lock, so that two changes cannot be published in the wrong order.
        self.ready
            .send_if_modified(|current| std::mem::replace(current, ready) != ready);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_ready_when_the_last_blocker_is_cleared() {
        let readiness = Readiness::default();
        let state = readiness.subscribe();
        readiness.block("clusters", "not listed yet");
        readiness.block("permissions", "not checked yet");
        readiness.block("permissions", "missing: list leases");
        assert!(!*state.borrow());
        assert_eq!(readiness.blockers()["permissions"], "missing: list leases");
        readiness.clear("clusters");
        assert!(!*state.borrow());
        readiness.clear("permissions");
        assert!(*state.borrow());
    }
}
