//! The rules of membership, without any I/O: what happened goes in with the time, requests and decisions come out.
//! See the module documentation for the protocol and the argument why it is safe.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Ownership;
use super::member_table::{KnownMember, MemberTable, Moment, WatchPosition};
use super::record::{Identity, LeaseVersion, MemberRecord, ObservedLease, SeenSessions, Session};
use super::rendezvous::RendezvousHasher;
#[cfg(test)]
use super::simulation::Rule;
use super::timing::Timing;

mod planner;
mod session;

/// A request to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// List all Leases of the service, by a consistent read.
    List,
    /// Create the own Lease when there is no `base`, else replace exactly that version of it.
    Write {
        base: Option<LeaseVersion>,
        record: MemberRecord,
    },
    /// Delete exactly that version of somebody's Lease.
    Collect {
        identity: Identity,
        lease_version: LeaseVersion,
    },
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeaseAnswer {
    /// All Leases, the own one included.
    Listed(Vec<ObservedLease>),
    /// Written; the new version.
    Written(LeaseVersion),
    /// The Lease was not as expected: nothing was written. Look and try again after that time.
    Conflict(Moment),
    /// Anything else. A write may or may not have happened, or may happen later. Try again after that time.
    Failed(Moment),
    /// The deletion was tried, with whatever result.
    Collected,
}

/// A change that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MembershipEvent {
    /// A new session counts from now on.
    Joined,
    /// The own lease could not be renewed in time.
    Lapsed,
    /// Another client deleted, released or damaged the own Lease.
    Overwritten,
    /// Another process writes the own Lease: two with one identity.
    IdentityConflict(Session),
    /// The own Lease is that of a process that may still live; waiting for its end.
    HeldByOther(Session),
}

/// The progress of the current session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SessionPhase {
    /// It lists the members.
    Starting,
    /// It has the list, and waits for the right moment to publish itself.
    Waiting,
    /// It has published itself, and lists once more for members that came before.
    Published,
    /// It has both lists.
    Joined,
    /// The Lease is released; nothing follows.
    Left,
}

/// The known state of the own Lease object.
#[derive(Debug, Clone, PartialEq, Eq)]
enum OwnLeaseState {
    Unknown,
    Absent,
    /// Written or inherited by this process.
    Own(LeaseVersion),
    /// Written by another process, which has ended when it is still so then.
    HeldByOther(LeaseVersion, Moment),
}

/// A request under way, and what was known when it was sent.
#[derive(Debug, Clone)]
struct PendingRequest {
    request: Request,
    started: Moment,
    mark: WatchPosition,
}

/// The membership of one replica.
#[derive(Debug, Clone)]
pub(crate) struct MembershipState {
    me: Identity,
    address: Arc<str>,
    /// UID of the Pod in which this process lives, if no other one lives there with its identity.
    pub(crate) pod: Option<Arc<str>>,
    ownership: Ownership,
    timing: Timing,
    member_table: MemberTable,

    first: Session,
    session: Session,
    phase: SessionPhase,
    /// Since when the current session is in `Waiting`.
    waiting_since: Moment,
    /// True if any session ever was `Joined`.
    joined: bool,
    /// True if the Lease is that of a predecessor in the same Pod: others count on this replica already.
    inherited: bool,
    /// True if anything was ever sent that writes the own Lease.
    wrote: bool,
    leaving: bool,

    base: OwnLeaseState,
    /// When the session ends unless a renewal succeeds; none before it was sent out for the first time. The attempt
    /// counts: others may have seen it, acknowledged it, waited a foreign lifetime and forgotten it, all of which the
    /// session must not survive.
    ends_at: Option<Moment>,
    renew_at: Moment,
    /// The last view of this session that was certainly written.
    published: Option<SeenSessions>,
    /// Actions are in progress that a new member must not overlap with: do not acknowledge it yet.
    busy: bool,

    asked: Option<PendingRequest>,
    retry_at: Moment,
    listed_at: Moment,
    list_wanted: bool,
    events: VecDeque<MembershipEvent>,
    #[cfg(test)]
    pub(crate) broken: Option<Rule>,
}

// === impl MembershipState ===

impl MembershipState {
    pub(crate) fn new(
        me: Identity,
        address: Arc<str>,
        session: Session,
        ownership: Ownership,
        timing: Timing,
    ) -> Self {
        Self {
            me,
            address,
            pod: None,
            ownership,
            timing,
            member_table: MemberTable::new(timing.peer_ttl),
            first: session,
            session,
            phase: SessionPhase::Starting,
            waiting_since: Moment::ZERO,
            joined: false,
            inherited: false,
            wrote: false,
            leaving: false,
            base: OwnLeaseState::Unknown,
            ends_at: None,
            renew_at: Moment::ZERO,
            published: None,
            busy: false,
            asked: None,
            retry_at: Moment::ZERO,
            listed_at: Moment::ZERO,
            list_wanted: false,
            events: VecDeque::new(),
            #[cfg(test)]
            broken: None,
        }
    }

    // --- decisions

    /// Until when this replica may act on what it owns: none when it may not act at all. It may when its own lease is
    /// valid, a list was made after the session was published, and every live member acknowledges the session.
    pub(crate) fn act_until(&self, now: Moment) -> Option<Moment> {
        let allowed = self.phase == SessionPhase::Joined && !self.leaving && self.is_acknowledged();
        self.ends_at.filter(|until| allowed && now < *until)
    }

    /// True if this replica takes part in the sharing of keys that may overlap.
    pub(crate) fn shares(&self) -> bool {
        self.joined && !self.leaving
    }

    /// All live members, this replica among them once it has joined.
    pub(crate) fn ring(&self) -> RendezvousHasher {
        let me = self.shares().then(|| Arc::clone(&self.me));
        RendezvousHasher::new(
            self.member_table
                .live()
                .map(|m| Arc::clone(&m.record.identity))
                .chain(me),
        )
    }

    /// True if the own lease is valid.
    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        let written = matches!(self.phase, SessionPhase::Published | SessionPhase::Joined);
        written && self.ends_at.is_some_and(|until| now < until)
    }

    /// True if the request under way writes the own Lease.
    pub(crate) fn is_writing(&self) -> bool {
        let request = self.asked.as_ref().map(|asked| &asked.request);
        matches!(request, Some(Request::Write { .. }))
    }

    /// True if the current session has come as far as it can on its own; others may still have to acknowledge it.
    #[cfg(test)]
    pub(crate) const fn has_joined(&self) -> bool {
        matches!(self.phase, SessionPhase::Joined)
    }

    pub(crate) const fn has_left(&self) -> bool {
        matches!(self.phase, SessionPhase::Left)
    }

    /// The news for people since the last call.
    pub(crate) fn take_event(&mut self) -> Option<MembershipEvent> {
        self.events.pop_front()
    }

    fn is_acknowledged(&self) -> bool {
        #[cfg(test)]
        if self.is_broken(Rule::Acknowledgement) {
            return true;
        }
        let acknowledges = |m: &KnownMember| m.record.view.get(&self.me) == Some(&self.session);
        self.member_table.live().all(acknowledges)
    }

    #[cfg(test)]
    fn is_broken(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }

    // --- what happens

    /// True if actions are in progress on keys that this replica no longer owns (or, when leaving, on any).
    pub(crate) const fn set_busy(&mut self, busy: bool) {
        self.busy = busy;
    }

    /// Stops acting, and releases the own Lease as soon as no action is in progress.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
        self.finish_leaving();
    }

    /// The watch brought a Lease.
    pub(crate) fn observed(&mut self, now: Moment, seen: ObservedLease) {
        if seen.record.identity == self.me {
            let mine = seen.record.held && seen.record.session.within(self.first, self.session);
            self.list_wanted |= !mine && matches!(self.base, OwnLeaseState::Own(_));
        } else {
            #[cfg(test)]
            if self.is_broken(Rule::ConfirmedRelease) && !seen.record.held {
                return self.member_table.remove(&seen.record.identity);
            }
            self.list_wanted |= self.member_table.observed(now, seen);
        }
    }

    /// The watch may have missed something or reported that a Lease is gone: list.
    pub(crate) const fn request_list(&mut self) {
        self.list_wanted = true;
    }

    /// The request under way has ended.
    pub(crate) fn answered(&mut self, now: Moment, answer: LeaseAnswer) {
        self.check_lapse(now);
        let Some(asked) = self.asked.take() else { return };
        match (asked.request, answer) {
            (request, LeaseAnswer::Failed(delay)) => {
                self.retry_at = now + delay;
                match request {
                    Request::List => self.list_wanted = true,
                    // A creation that failed may have happened nevertheless.
                    Request::Write { base: None, .. } => self.base = OwnLeaseState::Unknown,
                    Request::Write { .. } | Request::Collect { .. } => {}
                }
            }
            (Request::List, LeaseAnswer::Listed(leases)) => {
                self.listed(asked.started, asked.mark, now, leases);
            }
            (Request::Write { record, .. }, LeaseAnswer::Written(_)) if !record.held => self.left(),
            (Request::Write { record, .. }, LeaseAnswer::Written(lease_version)) => {
                self.base = OwnLeaseState::Own(lease_version);
                if record.session == self.session {
                    self.renewed(asked.started, now, record.view);
                }
            }
            (Request::Write { .. }, LeaseAnswer::Conflict(delay)) => {
                self.retry_at = now + delay;
                self.base = OwnLeaseState::Unknown;
            }
            (Request::Collect { identity, .. }, _) => self.member_table.collected(now, &identity),
            // No other pair is ever handed in.
            (Request::List | Request::Write { .. }, _) => {}
        }
        self.finish_leaving();
    }

    fn renewed(&mut self, started: Moment, now: Moment, view: SeenSessions) {
        self.ends_at = Some(started + self.timing.lease_ttl);
        self.renew_at = started + self.timing.renew;
        self.published = Some(view);
        if self.phase == SessionPhase::Waiting {
            self.phase = SessionPhase::Published;
            #[cfg(test)]
            if self.is_broken(Rule::ListAfterPublication) {
                self.join();
            }
        }
        // The answer may have been handled long after it came.
        self.check_lapse(now);
    }

    fn listed(&mut self, started: Moment, mark: WatchPosition, now: Moment, mut leases: Vec<ObservedLease>) {
        let own = leases
            .iter()
            .position(|seen| seen.record.identity == self.me)
            .map(|at| leases.swap_remove(at));
        self.own_lease(started, now, own);
        self.list_wanted |= self.member_table.listed(started, mark, now, leases);
        self.listed_at = now;
        match self.phase {
            SessionPhase::Starting => {
                self.phase = SessionPhase::Waiting;
                self.waiting_since = now;
            }
            SessionPhase::Published => self.join(),
            SessionPhase::Waiting | SessionPhase::Joined | SessionPhase::Left => {}
        }
    }
}
