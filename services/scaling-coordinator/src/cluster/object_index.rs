//! The objects that a watch reports, by shoot. It is a hint: what a write rests on is read.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

#[derive(Debug)]
pub(crate) struct ObjectIndex<T> {
    known: HashMap<Arc<str>, KnownObject<T>>,
    /// The shoots that were known when the list began that runs: the others came since.
    before_list: HashSet<Arc<str>>,
}

#[derive(Debug)]
pub(crate) struct KnownObject<T> {
    pub(crate) version: Arc<str>,
    pub(crate) object: T,
}

impl<T> Default for ObjectIndex<T> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            before_list: HashSet::new(),
        }
    }
}

impl<T> ObjectIndex<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(crate) fn get(&self, shoot: &str) -> Option<&KnownObject<T>> {
        self.known.get(shoot)
    }

    pub(crate) fn get_mut(&mut self, shoot: &str) -> Option<&mut T> {
        self.known.get_mut(shoot).map(|known| &mut known.object)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &T)> {
        self.known.iter().map(|(shoot, known)| (shoot, &known.object))
    }

    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }

    /// Returns true if an object of this version is not older than what is known. The watch may bring what the answer
    /// to a write or a read has brought before, and older.
    pub(crate) fn accepts(&self, shoot: &str, version: &str) -> bool {
        self.known
            .get(shoot)
            .is_none_or(|known| !is_newer(&known.version, version))
    }

    pub(crate) fn insert(&mut self, shoot: &str, version: Arc<str>, object: T) {
        self.known.insert(shoot.into(), KnownObject { version, object });
    }

    /// A watch reports the deletion of an object that had this version. A newer object of the same name stays.
    pub(crate) fn deleted(&mut self, shoot: &str, version: &str) {
        if self.accepts(shoot, version) {
            self.known.remove(shoot);
        }
    }

    /// A read found no object; `before` is the version that was known when it was asked for.
    pub(crate) fn absent(&mut self, shoot: &str, before: Option<&Arc<str>>) {
        if self.get(shoot).map(|known| &known.version) == before {
            self.known.remove(shoot);
        }
    }

    pub(crate) fn list_begins(&mut self) {
        self.before_list = self.known.keys().cloned().collect();
    }

    /// Objects exist in these shoots and in no others, by the list that is complete now. Returns the shoots whose
    /// object is gone.
    pub(crate) fn synced(&mut self, exist: &BTreeSet<String>) -> Vec<Arc<str>> {
        let before = std::mem::take(&mut self.before_list);
        let gone: Vec<_> = before
            .into_iter()
            .filter(|shoot| !exist.contains(&**shoot))
            .collect();
        gone.into_iter()
            .filter(|shoot| self.known.remove(shoot).is_some())
            .collect()
    }
}

pub(crate) fn version_of(metadata: &ObjectMeta) -> &str {
    metadata.resource_version.as_deref().unwrap_or_default()
}

/// Returns true if `version` is known to be newer than `other`. Resource versions are numbers on every API server
/// that keeps its objects in etcd.
pub(crate) fn is_newer(version: &str, other: &str) -> bool {
    match (version.parse::<u64>(), other.parse::<u64>()) {
        (Ok(version), Ok(other)) => version > other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_goes_back_to_an_older_version() {
        let accepts = |known: &str, version| {
            let mut index = ObjectIndex::default();
            index.insert("s", known.into(), ());
            index.accepts("s", version)
        };
        assert!(accepts("9", "10") && accepts("9", "9") && !accepts("10", "9"));
        assert!(accepts("x", "y"), "versions that are no numbers are believed");
        let mut index = ObjectIndex::default();
        index.insert("s", "9".into(), ());
        index.deleted("s", "8");
        assert!(index.get("s").is_some(), "another one of the same name");
        index.deleted("s", "10");
        assert!(index.get("s").is_none());
    }

    #[test]
    fn a_read_that_found_nothing_does_not_remove_what_came_since() {
        let mut index = ObjectIndex::default();
        index.insert("s", "9".into(), ());
        index.absent("s", Some(&"8".into()));
        index.absent("s", None);
        assert!(index.get("s").is_some());
        index.absent("s", Some(&"9".into()));
        assert!(index.is_empty());
    }

    #[test]
    fn a_list_removes_what_is_gone_and_not_what_came_while_it_ran() {
        let mut index = ObjectIndex::default();
        for shoot in ["kept", "gone"] {
            index.insert(shoot, "1".into(), ());
        }
        index.list_begins();
        index.insert("new", "2".into(), ());
        assert_eq!(index.synced(&["kept".to_owned()].into()), ["gone".into()]);
        assert_eq!(index.iter().count(), 2);
    }
}
