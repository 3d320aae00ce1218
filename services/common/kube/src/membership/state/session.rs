//! The life of a session: when it begins to count, and everything that ends it.

use super::{MembershipEvent, MembershipState, OwnLeaseState, SessionPhase};
use crate::membership::Ownership;
use crate::membership::member_table::Moment;
use crate::membership::record::ObservedLease;
#[cfg(test)]
use crate::membership::simulation::Rule;

// === impl MembershipState ===

impl MembershipState {
    pub(super) fn join(&mut self) {
        self.phase = SessionPhase::Joined;
        self.joined = true;
        self.events.push_back(MembershipEvent::Joined);
    }

    /// The own Lease as a list shows it.
    pub(super) fn own_lease(&mut self, started: Moment, now: Moment, own: Option<ObservedLease>) {
        let Some(ObservedLease {
            record,
            lease_version,
        }) = own
        else {
            self.base = OwnLeaseState::Absent;
            return self.overwritten(MembershipEvent::Overwritten);
        };
        if matches!(&self.base, OwnLeaseState::Own(known) if *known == lease_version) {
            return;
        }
        if !record.held {
            self.base = OwnLeaseState::Own(lease_version);
            return self.overwritten(MembershipEvent::Overwritten);
        }
        if record.session.within(self.first, self.session) {
            self.base = OwnLeaseState::Own(lease_version);
            if record.session != self.session {
                self.overwritten(MembershipEvent::Overwritten);
            }
            return;
        }
        self.overwritten(MembershipEvent::IdentityConflict(record.session));
        // A container starts when the one before in its Pod has ended: only what that one had sent may still arrive.
        let predecessor = self.pod.is_some() && record.pod == self.pod;
        let ends_at = match &self.base {
            OwnLeaseState::HeldByOther(before, ends_at) if *before == lease_version => *ends_at,
            _ if predecessor => now + self.inheritance(),
            _ => {
                self.events
                    .push_back(MembershipEvent::HeldByOther(record.session));
                now + self.timing.peer_ttl
            }
        };
        // Somebody who dies leaves his Lease as it is. Where overlapping is allowed, and this process is new, the
        // other one is taken for its predecessor at once.
        let ended = started >= ends_at;
        let overlapping = self.ownership == Ownership::Overlapping && !self.wrote;
        self.inherited = ended && predecessor;
        self.base = if ended || overlapping {
            OwnLeaseState::Own(lease_version)
        } else {
            OwnLeaseState::HeldByOther(lease_version, ends_at)
        };
    }

    fn inheritance(&self) -> Moment {
        #[cfg(test)]
        if self.is_broken(Rule::Inheritance) {
            return Moment::ZERO;
        }
        self.timing.takeover_delay
    }

    fn overwritten(&mut self, event: MembershipEvent) {
        if matches!(self.phase, SessionPhase::Published | SessionPhase::Joined) && !self.leaving {
            self.events.push_back(event);
            self.new_session();
        }
    }

    /// The own lease is valid or it is not: a session that missed its renewal never comes back.
    pub(super) fn check_lapse(&mut self, now: Moment) {
        if self.ends_at.is_some_and(|until| now >= until) {
            if !self.leaving {
                self.events.push_back(MembershipEvent::Lapsed);
            }
            self.new_session();
        }
    }

    fn new_session(&mut self) {
        self.session = self.session.next();
        #[cfg(test)]
        if self.is_broken(Rule::Session) {
            self.session = self.first;
        }
        self.ends_at = None;
        self.published = None;
        self.phase = SessionPhase::Starting;
    }

    /// Nothing is left to release.
    pub(super) fn finish_leaving(&mut self) {
        let nothing =
            !self.wrote || matches!(self.base, OwnLeaseState::Absent | OwnLeaseState::HeldByOther(..));
        if self.leaving && nothing && self.asked.is_none() {
            self.left();
        }
    }

    pub(super) const fn left(&mut self) {
        self.phase = SessionPhase::Left;
        self.ends_at = None;
    }
}
