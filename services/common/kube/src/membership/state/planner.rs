//! Chooses the next request to the API server, and its time.

use std::sync::Arc;

use super::{MembershipState, OwnLeaseState, PendingRequest, Request, SessionPhase};
use crate::membership::member_table::Moment;
use crate::membership::record::{Identity, LeaseVersion, MemberRecord, SeenSessions};
#[cfg(test)]
use crate::membership::simulation::Rule;

#[derive(Debug, Clone, PartialEq, Eq)]
enum NextRequest {
    List,
    Publish,
    Release,
    Collect(Identity, LeaseVersion),
}

// === impl MembershipState ===

impl MembershipState {
    /// The next request, when one is due; at most one is under way at a time.
    pub(crate) fn next(&mut self, now: Moment) -> Option<Request> {
        self.check_lapse(now);
        #[cfg(test)]
        if self.is_broken(Rule::ConsistentRead) {
            self.member_table.remove_unseen(now);
        }
        if self.asked.is_some() || now < self.retry_at {
            return None;
        }
        let want = self.planner().into_iter().find(|(due, _)| *due <= now)?.1;
        Some(self.ask(now, want))
    }

    /// When [`Self::next`] should be called again if nothing happens before; none when only an answer can help.
    pub(crate) fn wake_at(&self) -> Option<Moment> {
        let due = match self.asked {
            Some(_) => None,
            None => self
                .planner()
                .into_iter()
                .map(|(due, _)| due.max(self.retry_at))
                .min(),
        };
        due.into_iter().chain(self.ends_at).min()
    }

    /// The wanted requests and their earliest times, the most important first.
    fn planner(&self) -> Vec<(Moment, NextRequest)> {
        let mut planner = Vec::with_capacity(3);
        if self.leaving {
            match self.base {
                OwnLeaseState::Unknown if self.wrote => planner.push((Moment::ZERO, NextRequest::List)),
                OwnLeaseState::Own(_) if self.wrote && !self.busy => {
                    planner.push((Moment::ZERO, NextRequest::Release))
                }
                _ => {}
            }
            return planner;
        }
        match self.phase {
            SessionPhase::Left => return planner,
            SessionPhase::Starting => planner.push((Moment::ZERO, NextRequest::List)),
            _ if self.base == OwnLeaseState::Unknown => planner.push((Moment::ZERO, NextRequest::List)),
            SessionPhase::Waiting if self.busy || matches!(self.base, OwnLeaseState::HeldByOther(..)) => {}
            SessionPhase::Waiting => planner.push((self.publish_not_before(), NextRequest::Publish)),
            SessionPhase::Published => {
                planner.push((self.renew_at, NextRequest::Publish));
                planner.push((Moment::ZERO, NextRequest::List));
            }
            SessionPhase::Joined if self.published.as_ref() == Some(&self.view()) => {
                planner.push((self.renew_at, NextRequest::Publish));
            }
            SessionPhase::Joined => planner.push((Moment::ZERO, NextRequest::Publish)),
        }
        planner.push((self.list_at(), NextRequest::List));
        if let Some((since, identity, lease_version)) = self.member_table.longest_gone() {
            planner.push((
                since + self.timing.gc_after,
                NextRequest::Collect(identity, lease_version),
            ));
        }
        planner
    }

    /// When to publish a new session. Not before everybody found has shown that it lives, while somebody certainly
    /// does: those hand over a share at once, and it would lie idle as long as a dead one cannot acknowledge.
    fn publish_not_before(&self) -> Moment {
        // Its share lies idle already: the others take its predecessor for live.
        if self.inherited {
            return Moment::ZERO;
        }
        let (mut proven, mut unproven) = (false, false);
        for member in self.member_table.live() {
            proven |= member.proven;
            unproven |= !member.proven;
        }
        match (proven, unproven) {
            (_, false) => Moment::ZERO,
            (true, true) => self.waiting_since + self.timing.peer_ttl,
            // Time for one renewal, by the slowest clock.
            (false, true) => self.waiting_since + self.timing.renew.mul_f64(1.2),
        }
    }

    fn list_at(&self) -> Moment {
        if self.list_wanted {
            return Moment::ZERO;
        }
        let settled = self.phase == SessionPhase::Joined && self.is_acknowledged();
        let interval = if settled {
            self.timing.resync
        } else {
            self.timing.renew
        };
        let regular = self.listed_at + interval;
        let occupied_until = match self.base {
            OwnLeaseState::HeldByOther(_, ends_at) => Some(ends_at),
            _ => None,
        };
        self.member_table
            .suspect_at()
            .into_iter()
            .chain(occupied_until)
            .fold(regular, Moment::min)
    }

    /// The view to publish: everybody live. While actions are in progress that belong to a new member, those whom
    /// the last published view had, so that the new member waits.
    fn view(&self) -> SeenSessions {
        let live = self
            .member_table
            .live()
            .map(|m| (Arc::clone(&m.record.identity), m.record.session));
        let mut view: SeenSessions = match &self.published {
            Some(published) if self.busy => live.filter(|(id, s)| published.get(id) == Some(s)).collect(),
            _ => live.collect(),
        };
        view.insert(Arc::clone(&self.me), self.session);
        view
    }

    fn ask(&mut self, started: Moment, want: NextRequest) -> Request {
        let base = match &self.base {
            OwnLeaseState::Own(lease_version) => Some(lease_version.clone()),
            _ => None,
        };
        let (asked, request) = match want {
            NextRequest::List => {
                self.list_wanted = false;
                (
                    PendingRequest::List {
                        started,
                        mark: self.member_table.mark(),
                    },
                    Request::List,
                )
            }
            NextRequest::Publish => {
                self.wrote = true;
                self.ends_at.get_or_insert(started + self.timing.lease_ttl);
                let view = self.view();
                let record = self.record(view.clone(), true);
                (
                    PendingRequest::Write {
                        started,
                        session: self.session,
                        view,
                    },
                    Request::Write { base, record },
                )
            }
            NextRequest::Release => {
                let record = self.record(self.view(), false);
                (PendingRequest::Release, Request::Write { base, record })
            }
            NextRequest::Collect(identity, lease_version) => (
                PendingRequest::Collect(Arc::clone(&identity)),
                Request::Collect {
                    identity,
                    lease_version,
                },
            ),
        };
        self.asked = Some(asked);
        request
    }

    fn record(&self, view: SeenSessions, held: bool) -> MemberRecord {
        MemberRecord {
            identity: Arc::clone(&self.me),
            session: self.session,
            address: Arc::clone(&self.address),
            view,
            pod: self.pod.clone(),
            held,
        }
    }
}
