//! Membership: the replicas of a service share its keys (shoots, namespaces) among themselves, through Kubernetes
//! Leases alone.
//!
//! ```text
//!   run ──────── requests ──────> leases ──────> API server
//!    │  ^─────── answers, watch ──────┘
//!    v
//!  state (own session, rules) ── member_table (the others: who is live?) ── record, lease (what a Lease says)
//!    │
//!    ├──> share: owns / owner / others / subscribe         discovery: the members of another service
//!    └──> exclusive: may_act / act
//! ```
//!
//! # Protocol
//!
//! Every replica keeps one Lease with its *identity* (the name of its Pod), its *session* (a random number, replaced
//! whenever its own lease has lapsed or its Lease object was touched by somebody else), its gRPC address and its
//! *view*: whom it considers live, with their sessions. Listing somebody's session in the view acknowledges it.
//!
//! A key belongs to the live member with the highest rendezvous weight (`rendezvous`).
//!
//! - The own lease is valid for 13.5 s from the start of the last request that renewed it; a foreign one counts as
//!   live for 18 s after its last change was seen. Both by the own monotonic clock; wall clock times are written for
//!   people and never read. See [`Timing::PRODUCTION`] for the margin. A clock that stops while the process goes on
//!   (a virtual machine that is frozen by its host) is outside of this; preconditions on every write remain.
//!   So is a write that was handed to its connection right before the process was frozen: it goes out when the process
//!   thaws.
//! - Only a list removes a member, see `member_table`: one that was started 18 s after the last change and shows that
//!   still nothing has changed, or one that shows the Lease released. A watch can only add.
//! - A replica may act on a key ([`Share::may_act`], [`Share::act`]) when its own lease is valid, when it has
//!   listed all Leases after its session was first written, when it owns the key among all that it considers live, and
//!   when the view of each of those acknowledges its session.
//!
//! # Why no two replicas act on one key
//!
//! Suppose that A and B act on the same key at one instant. If each considers the other live, then they agree on which
//! of the two has the higher weight, and only that one acts. So one of them, say B, does not consider A live. Of the
//! lists that each made after it had written its session, take the later one. The replica that made it saw the
//! session of the other. From then on it counts the other as live, until a list removes it, which happens only when
//! the session seen has ended. So if A made it, A needs B's acknowledgement, and has it, so B did list A's session in
//! its view, and no longer does: B removed A, and A's session has ended. (If it was a predecessor of B that listed it,
//! B's own list saw it too.) If B made it, B removed A: the same. Either
//! way A does not act with that session, against the assumption.
//!
//! That a removal proves the end of a session: a session ends 13.5 s after the start of its last successful renewal
//! (or of its first attempt), an answer that is handled after the end does not prolong it, and a renewal that was
//! applied before the removing list would have been seen by it as a change.
//!
//! A process that finds the Lease of its dead predecessor *in the same Pod* need not wait for the end of that lease:
//! the session ended with the process. It waits 2 s, in which what the dead one had sent comes to its end, and writes
//! its own session over it ([`MembershipTask::in_pod`], ADR 0009).
//!
//! Acting takes time: a [`Permit`] covers it. While one is held for a key that a new member would own, the new
//! member's session is not acknowledged; and the own Lease is not released.
//!
//! Nobody acts on a key for a moment when it changes hands. A replica that joins publishes itself only when those whom
//! it found have shown that they are alive or have run out, so that its share does not lie idle while it waits for
//! the acknowledgement of a dead one.
//!
//! The rules are tried out by a simulation of everything above, with each rule taken away in turn (`simulation`). One
//! case is left out, for its remedy (waiting 18 s at every start and after every outage of the API server) would cost
//! more than it saves: somebody deletes a Lease by hand, *and* before its holder has noticed, normally milliseconds
//! later, another replica starts a session, *and* the holder is in the middle of acting. Preconditions on the writes
//! remain.
//!
//! # Overlapping ownership
//!
//! Where two replicas may look after one key for a moment ([`Share::owns`]), the owner is simply the highest among
//! the live. The own lease is no condition: a replica that is cut off from the API server keeps reading what it has.
//! Since it cannot list either, it removes nobody, so it does not take over the keys of all the others. What it
//! does to a key takes a [`Permit`] all the same: by the argument above two replicas hold one for the same key only
//! if they have the same identity, because a process takes the Lease of a predecessor that it believes to be dead
//! at once.
//!
//! # Leader election
//!
//! Where only one Lease may be used, one replica leads and owns all keys (`LeaderElection`, ADR 0032). Its handle is
//! the same [`Exclusive`].
//!
//! # Permissions
//!
//! In the namespace of the Leases: `coordination.k8s.io` `leases`: get, list, watch, create, update, delete. For
//! [`Discovery`] alone: list, watch.

mod discovery;
mod exclusive;
mod leader;
pub mod lease;
mod leases;
mod member_table;
mod record;
mod rendezvous;
mod run;
mod share;
#[cfg(test)]
mod simulation;
mod state;
mod timing;

use tokio_util::sync::CancellationToken;
use watchdog_runtime::readiness::Readiness;

pub use self::discovery::{Discovery, ReplicaAddresses};
pub use self::exclusive::{Exclusive, Permit};
pub(crate) use self::leader::{ElectionConfig as OldElectionConfig, LeaderElection as OldLeaderElection};
pub use self::record::Identity;
pub use self::run::MembershipTask;
pub use self::share::Share;
pub use self::timing::Timing;

/// The membership of this replica: a [`Share`], or an [`Exclusive`] one.
pub trait Membership: Sized {
    /// Prepares the membership of this replica. The blocker `membership` stays until it has joined. Nothing happens
    /// before [`MembershipTask::run`] runs; spawn it as a critical task. When `stop` is cancelled it releases the
    /// Lease, so that others take over at once, and returns.
    #[must_use]
    fn join(config: MembershipConfig, stop: CancellationToken) -> (Self, MembershipTask);
}

/// How many replicas may own one key at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// One at most. A process that finds its Lease held by another one with the same identity waits until that has
    /// ended.
    Exclusive,
    /// Two for a moment. A process that starts takes over the Lease with its identity at once, as that of its
    /// predecessor.
    Overlapping,
}

/// The settings of a membership.
#[derive(Clone)]
pub struct MembershipConfig {
    /// For the seed.
    pub client: kube::Client,
    /// Where the Leases live.
    pub namespace: String,
    /// The service whose replicas share their work: `lease-probe`, `scaling-coordinator` or `weeder`.
    pub service: &'static str,
    /// Name of this replica, unique in the service: the name of its Pod.
    pub identity: String,
    /// Where others reach its gRPC API, `host:port`.
    pub address: String,
    /// Where it is shown why the last request failed.
    pub readiness: Readiness,
    /// [`Timing::PRODUCTION`], except in tests.
    pub timing: Timing,
}
