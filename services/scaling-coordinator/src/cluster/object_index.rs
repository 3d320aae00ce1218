//! The objects that a watch reports, by shoot, and which of two states of an object counts.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The mark of what was taken in last.
static LAST_MARK: AtomicU64 = AtomicU64::new(0);

/// A point in the order in which the indexes of this process take states in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IndexMark(pub(crate) u64);

/// Where the state of an object comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A watch event or the answer to a write. It may be older than what is known.
    Update,
    /// A complete list or a consistent read that was asked for at this mark. It is what the API server has, also when
    /// its version is lower than the known one because etcd was restored from a backup; only what was taken in after
    /// the mark can be newer.
    Read(IndexMark),
}

#[derive(Debug)]
pub(crate) struct ObjectIndex<T> {
    known: HashMap<Arc<str>, KnownObject<T>>,
    /// When an object was last removed.
    removed: IndexMark,
}

#[derive(Debug)]
pub(crate) struct KnownObject<T> {
    pub(crate) version: Arc<str>,
    pub(crate) taken: IndexMark,
    pub(crate) object: T,
}

impl IndexMark {
    /// The mark of what was taken in last: read before a list or read is asked for.
    pub(crate) fn last() -> Self {
        Self(LAST_MARK.load(Ordering::SeqCst))
    }

    /// The mark of what is taken in now.
    pub(crate) fn next() -> Self {
        Self(LAST_MARK.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

impl<T> Default for ObjectIndex<T> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            removed: IndexMark::default(),
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

    /// Returns true if a state of this version and origin replaces what is known of an object, or its absence.
    pub(crate) fn accepts(&self, shoot: &str, version: &str, origin: Origin) -> bool {
        match (self.known.get(shoot), origin) {
            (Some(known), Origin::Read(asked)) if known.taken <= asked => true,
            (Some(known), _) => !is_newer(&known.version, version),
            (None, Origin::Read(asked)) => self.removed <= asked,
            (None, Origin::Update) => true,
        }
    }

    pub(crate) fn insert(&mut self, shoot: &str, version: Arc<str>, object: T) {
        let taken = IndexMark::next();
        let known = KnownObject {
            version,
            taken,
            object,
        };
        self.known.insert(shoot.into(), known);
    }

    /// A watch reports the deletion of an object that had this version. A newer object of the same name stays.
    pub(crate) fn deleted(&mut self, shoot: &str, version: &str) {
        self.remove_if(shoot, |known| !is_newer(&known.version, version));
    }

    /// A consistent read that was asked for at this mark found no object.
    pub(crate) fn absent(&mut self, shoot: &str, asked: IndexMark) {
        self.remove_if(shoot, |known| known.taken <= asked);
    }

    fn remove_if(&mut self, shoot: &str, believed: impl FnOnce(&KnownObject<T>) -> bool) {
        if self.known.get(shoot).is_some_and(believed) {
            self.known.remove(shoot);
            self.removed = IndexMark::next();
        }
    }

    /// Objects exist in these shoots and in no others, by a list that was asked for at this mark. Returns the shoots
    /// whose object is gone.
    pub(crate) fn synced(&mut self, exist: &BTreeSet<String>, asked: IndexMark) -> Vec<Arc<str>> {
        let is_gone =
            |shoot: &Arc<str>, known: &mut KnownObject<T>| !exist.contains(&**shoot) && known.taken <= asked;
        let gone: Vec<_> = self.known.extract_if(is_gone).map(|(shoot, _)| shoot).collect();
        if !gone.is_empty() {
            self.removed = IndexMark::next();
        }
        gone
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
    fn updates_are_guarded_by_version() {
        let accepts = |known: &str, version| {
            let mut index = ObjectIndex::default();
            index.insert("s", known.into(), ());
            index.accepts("s", version, Origin::Update)
        };
        assert!(accepts("9", "10") && accepts("9", "9") && !accepts("10", "9"));
        assert!(accepts("x", "y"), "only numbers can be compared");
    }

    #[test]
    fn reads_replace_all_that_was_known_when_they_were_asked_for() {
        let mut index = ObjectIndex::default();
        let before = Origin::Read(IndexMark::last());
        index.insert("s", "10".into(), ());
        let after = Origin::Read(IndexMark::last());
        assert!(index.accepts("s", "3", after), "etcd was restored");
        assert!(!index.accepts("s", "3", before), "something newer came meanwhile");
        assert!(index.accepts("s", "11", before));
        index.deleted("s", "10");
        assert!(index.accepts("s", "3", Origin::Read(IndexMark::last())));
        assert!(
            !index.accepts("s", "3", after),
            "it was deleted after it was read"
        );
        assert!(index.accepts("s", "3", Origin::Update));
    }
}
