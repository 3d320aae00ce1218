//! Decides which of two states of an object is newer.

/// A point in the order in which an index takes states in.
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

/// Returns true if a state of this `version` replaces the known one, which the index took in at the mark `taken`.
pub(crate) fn replaces(known: &str, taken: IndexMark, version: &str, origin: Origin) -> bool {
    match origin {
        Origin::Read(asked) if taken <= asked => true,
        _ => !is_newer(known, version),
    }
}

/// Returns true if an object replaces its absence, which the index took in at the mark `removed`.
pub(crate) fn replaces_absence(removed: IndexMark, origin: Origin) -> bool {
    match origin {
        Origin::Read(asked) => removed <= asked,
        Origin::Update => true,
    }
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
        let replaces = |known, version| replaces(known, IndexMark(1), version, Origin::Update);
        assert!(replaces("9", "10") && replaces("9", "9") && !replaces("10", "9"));
        assert!(replaces("x", "y"), "only numbers can be compared");
    }

    #[test]
    fn reads_replace_all_that_was_known_when_they_were_asked_for() {
        let replaces = |taken, version| replaces("10", IndexMark(taken), version, Origin::Read(IndexMark(5)));
        assert!(replaces(5, "3"), "etcd was restored");
        assert!(!replaces(6, "3"), "something newer came meanwhile");
        assert!(replaces(6, "11"));
        assert!(replaces_absence(IndexMark(5), Origin::Read(IndexMark(5))));
        assert!(!replaces_absence(IndexMark(6), Origin::Read(IndexMark(5))));
        assert!(replaces_absence(IndexMark(6), Origin::Update));
    }
}
