//! The objects that a watch reports, by shoot. It is a hint: what a write rests on is read.
//!
//! Answers to our own writes and reads are often earlier than the watch, and feed the index, too. So no object goes
//! back to an older version.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use tokio_util::sync::CancellationToken;
use watchdog_kube::key::ObjectKey;
use watchdog_kube::watch::Change;
use watchdog_runtime::work_queue::WorkQueue;

/// How the indexes reach the controller.
#[derive(Debug, Clone, Default)]
pub(crate) struct IndexSignals {
    /// The shoots of which something has changed.
    pub(crate) work_queue: Arc<WorkQueue>,
    /// Cancelled once a read has shown that etcd was restored from a backup, so this process may know states that no
    /// longer exist. The process ends, and the next one reads everything.
    pub(crate) restored: CancellationToken,
}

#[derive(Debug)]
pub(crate) struct ObjectIndex<T> {
    signals: IndexSignals,
    /// Version and object.
    known: HashMap<Arc<str>, (Arc<str>, T)>,
    /// The shoots that were known when the list began that runs: the others came since.
    before_list: HashSet<Arc<str>>,
    is_listed: bool,
    /// The shoots whose object, or that there is none, was seen while the list is not complete.
    seen_unlisted: HashSet<Arc<str>>,
}

impl<T: PartialEq> ObjectIndex<T> {
    pub(crate) fn new(signals: IndexSignals) -> Self {
        Self {
            signals,
            known: HashMap::new(),
            before_list: HashSet::new(),
            is_listed: false,
            seen_unlisted: HashSet::new(),
        }
    }

    /// Returns true once a list was complete.
    pub(crate) const fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Returns true if what [`Self::get`] returns for a shoot was seen.
    pub(crate) fn is_known(&self, shoot: &str) -> bool {
        self.is_listed || self.seen_unlisted.contains(shoot)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(crate) fn get(&self, shoot: &str) -> Option<&T> {
        self.known.get(shoot).map(|(_, object)| object)
    }

    pub(crate) fn version(&self, shoot: &str) -> Option<Arc<str>> {
        self.known.get(shoot).map(|(version, _)| version.clone())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &T)> {
        self.known.iter().map(|(shoot, (_, object))| (shoot, object))
    }

    /// Waits for another complete list.
    pub(crate) fn unlist(&mut self) {
        self.is_listed = false;
        self.seen_unlisted.clear();
    }

    /// Forgets the object of a shoot that was seen without a list.
    pub(crate) fn forget_unlisted(&mut self, shoot: &str) {
        self.seen_unlisted.remove(shoot);
    }

    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }

    /// A watch reports a change. `make` makes the entry of an object from the object and the entry before.
    pub(crate) fn take_in<K: Resource>(
        &mut self,
        change: &Change<K>,
        shoot_of: fn(ObjectKey) -> String,
        make: impl FnOnce(&K, Option<&T>) -> T,
    ) {
        match change {
            Change::ListBegins => self.before_list = self.known.keys().cloned().collect(),
            Change::Applied(object) => {
                let (shoot, version) = (shoot_of(ObjectKey::of(object)), version_of(object.meta()));
                self.apply(&shoot, version, |old| make(object, old));
            }
            // One of the same name that was created since stays.
            Change::Deleted(last) => {
                let shoot = shoot_of(ObjectKey::of(last));
                if self.accepts(&shoot, version_of(last.meta())) {
                    self.remove(&shoot);
                }
            }
            Change::Synced(keys) => self.synced(&keys.iter().cloned().map(shoot_of).collect()),
            Change::Restored => self.signals.restored.cancel(),
        }
    }

    /// An object has this version, by the watch, a read or the answer to a write.
    pub(crate) fn apply(&mut self, shoot: &str, version: &str, make: impl FnOnce(Option<&T>) -> T) {
        if shoot.is_empty() || !self.accepts(shoot, version) {
            return;
        }
        let old = self.get(shoot);
        let object = make(old);
        let has_changed = old != Some(&object);
        self.known.insert(shoot.into(), (version.into(), object));
        self.note_seen(shoot);
        if has_changed {
            self.signals.work_queue.add(shoot);
        }
    }

    /// A consistent read has found an object of a version, or none. `before` is the version that was known when the
    /// read was asked for.
    pub(crate) fn read(
        &mut self,
        shoot: &str,
        before: Option<&str>,
        found: Option<(&str, impl FnOnce(Option<&T>) -> T)>,
    ) {
        match found {
            Some((version, make)) => {
                if before.is_some_and(|before| is_newer(before, version)) {
                    self.signals.restored.cancel();
                }
                self.apply(shoot, version, make);
            }
            None if self.version(shoot).as_deref() == before => self.remove(shoot),
            // It has come since.
            None => {}
        }
    }

    fn accepts(&self, shoot: &str, version: &str) -> bool {
        let known = self.known.get(shoot);
        known.is_none_or(|(known, _)| !is_newer(known, version))
    }

    fn note_seen(&mut self, shoot: &str) {
        if !self.is_listed {
            self.seen_unlisted.insert(shoot.into());
        }
    }

    fn remove(&mut self, shoot: &str) {
        self.known.remove(shoot);
        self.note_seen(shoot);
        self.signals.work_queue.add(shoot);
    }

    /// Objects exist in these shoots and in no others, by the list that is complete now.
    fn synced(&mut self, exist: &BTreeSet<String>) {
        for shoot in std::mem::take(&mut self.before_list) {
            if !exist.contains(&*shoot) {
                self.remove(&shoot);
            }
        }
        self.seen_unlisted = HashSet::new();
        if !std::mem::replace(&mut self.is_listed, true) {
            self.signals.work_queue.add_all();
        }
    }
}

pub(crate) fn version_of(metadata: &ObjectMeta) -> &str {
    metadata.resource_version.as_deref().unwrap_or_default()
}

/// Returns true if `version` is known to be newer than `other`. Resource versions are numbers on every API server
/// that keeps its objects in etcd.
fn is_newer(version: &str, other: &str) -> bool {
    match (version.parse::<u64>(), other.parse::<u64>()) {
        (Ok(version), Ok(other)) => version > other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use watchdog_api::cluster::Cluster;

    use super::*;

    fn index() -> ObjectIndex<()> {
        ObjectIndex::new(IndexSignals::default())
    }

    fn change(index: &mut ObjectIndex<()>, change: Change<Cluster>) {
        index.take_in(&change, |key| key.name, |_, _| ());
    }

    fn cluster(version: &str) -> Cluster {
        let metadata = serde_json::json!({ "name": "s", "resourceVersion": version });
        serde_json::from_value(serde_json::json!({ "metadata": metadata })).unwrap()
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey {
            namespace: String::new(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn nothing_goes_back_to_an_older_version() {
        let accepts = |known: &str, version| {
            let mut index = index();
            index.apply("s", known, |_| ());
            index.accepts("s", version)
        };
        assert!(accepts("9", "10") && accepts("9", "9") && !accepts("10", "9"));
        assert!(accepts("x", "y"), "versions that are no numbers are believed");
        let mut index = index();
        index.apply("s", "9", |_| ());
        change(&mut index, Change::Deleted(cluster("8")));
        assert!(index.get("s").is_some(), "another one of the same name");
        change(&mut index, Change::Deleted(cluster("10")));
        assert!(index.is_empty());
    }

    #[test]
    fn a_read_that_found_nothing_does_not_remove_what_came_since() {
        let mut index = index();
        index.apply("s", "9", |_| ());
        let none = None::<(&str, fn(Option<&()>))>;
        index.read("s", Some("8"), none);
        index.read("s", None, none);
        assert!(index.get("s").is_some());
        index.read("s", Some("9"), none);
        assert!(index.is_empty());
    }

    #[test]
    fn a_list_removes_what_is_gone_and_not_what_came_while_it_ran() {
        let mut index = index();
        for shoot in ["kept", "gone"] {
            index.apply(shoot, "1", |_| ());
        }
        change(&mut index, Change::ListBegins);
        index.apply("new", "2", |_| ());
        change(&mut index, Change::Synced([key("kept")].into()));
        assert!(index.get("gone").is_none());
        assert_eq!(index.iter().count(), 2);
    }

    #[test]
    fn a_read_that_shows_an_older_version_than_the_one_before_shows_a_restored_etcd() {
        let mut index = index();
        for (before, version, is_restored) in [
            (None, "1", false),
            (Some("1"), "2", false),
            (Some("2"), "1", true),
        ] {
            index.read("s", before, Some((version, |_: Option<&()>| ())));
            assert_eq!(index.signals.restored.is_cancelled(), is_restored);
        }
    }
}
