//! The record that a replica keeps of itself in its Lease.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Name of a replica, unique among the replicas of its service: the name of its Pod.
pub type Identity = Arc<str>;

/// A stretch of life of a replica during which its own lease never lapsed. What others acknowledged holds for one
/// session only: a replica that was away cannot act on an acknowledgement from before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Session(pub(crate) u64);

/// The replicas that one considers live, itself included, each with its session: what it acknowledges.
pub(crate) type SeenSessions = BTreeMap<Identity, Session>;

/// The content of a membership Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberRecord {
    pub(crate) identity: Identity,
    pub(crate) session: Session,
    /// Where its gRPC API is reached.
    pub(crate) address: Arc<str>,
    pub(crate) view: SeenSessions,
    /// UID of the Pod in which it lives, if it is certainly the only process with its identity there.
    pub(crate) pod: Option<Arc<str>>,
    /// False once the holder has released it.
    pub(crate) held: bool,
}

/// The version of a Lease object: changes with every write, and differs between two objects of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseVersion {
    pub(crate) uid: Arc<str>,
    pub(crate) version: Arc<str>,
}

/// A Lease as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedLease {
    pub(crate) record: MemberRecord,
    pub(crate) lease_version: LeaseVersion,
}

// === impl Session ===

impl Session {
    /// A session that no other process has had.
    pub(crate) fn random() -> Self {
        Self(rand::random())
    }

    /// The session after this one.
    pub(crate) const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// True if `self` is one of the sessions from `first` to `last` of one process.
    pub(crate) const fn within(self, first: Self, last: Self) -> bool {
        self.0.wrapping_sub(first.0) <= last.0.wrapping_sub(first.0)
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Session {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_its_own_sessions() {
        let first = Session(u64::MAX);
        let last = first.next().next();
        assert_eq!(last, Session(1));
        assert!(Session(0).within(first, last) && first.within(first, last) && last.within(first, last));
        assert!(!Session(2).within(first, last) && !Session(u64::MAX - 1).within(first, last));
        assert_eq!("00000000000000ff".parse(), Ok(Session(255)));
        assert_eq!(Session(255).to_string(), "00000000000000ff");
    }
}
