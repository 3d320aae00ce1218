//! Chooses the next request to the API server, and its time.

use std::sync::Arc;

use super::{MembershipState, OwnLeaseState, PendingRequest, Request, SessionPhase};
use crate::membership::member_table::Moment;
use crate::membership::record::{MemberRecord, SeenSessions};
#[cfg(test)]
use crate::membership::simulation::Rule;

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
        let (_, request) = self.wanted().into_iter().find(|(due, _)| *due <= now)?;
        match &request {
            Request::List => self.list_wanted = false,
            Request::Write { record, .. } if record.held => {
                self.wrote = true;
                self.ends_at.get_or_insert(now + self.timing.lease_ttl);
            }
            Request::Write { .. } | Request::Collect { .. } => {}
        }
        self.asked = Some(PendingRequest {
            request: request.clone(),
            started: now,
            mark: self.member_table.mark(),
        });
        Some(request)
    }

    /// When [`Self::next`] should be called again if nothing happens before; none when only an answer can help.
    pub(crate) fn wake_at(&self) -> Option<Moment> {
        let due = match self.asked {
            Some(_) => None,
            None => self
                .wanted()
                .into_iter()
                .map(|(due, _)| due.max(self.retry_at))
                .min(),
        };
        due.into_iter().chain(self.ends_at).min()
    }

    /// The wanted requests and their earliest times, the most important first.
    fn wanted(&self) -> Vec<(Moment, Request)> {
        let mut wanted = Vec::with_capacity(3);
        if self.leaving {
            match self.base {
                OwnLeaseState::Unknown if self.wrote => wanted.push((Moment::ZERO, Request::List)),
                OwnLeaseState::Own(_) if self.wrote && !self.busy => {
                    wanted.push((Moment::ZERO, self.write(false)));
                }
                _ => {}
            }
            return wanted;
        }
        match self.phase {
            SessionPhase::Left => return wanted,
            SessionPhase::Starting => wanted.push((Moment::ZERO, Request::List)),
            _ if self.base == OwnLeaseState::Unknown => wanted.push((Moment::ZERO, Request::List)),
            SessionPhase::Waiting if self.busy || matches!(self.base, OwnLeaseState::HeldByOther(..)) => {}
            SessionPhase::Waiting => wanted.push((self.publish_not_before(), self.write(true))),
            SessionPhase::Published => {
                wanted.push((self.renew_at, self.write(true)));
                wanted.push((Moment::ZERO, Request::List));
            }
            SessionPhase::Joined if self.published.as_ref() == Some(&self.view()) => {
                wanted.push((self.renew_at, self.write(true)));
            }
            SessionPhase::Joined => wanted.push((Moment::ZERO, self.write(true))),
        }
        wanted.push((self.list_at(), Request::List));
        if let Some((since, identity, lease_version)) = self.member_table.longest_gone() {
            let collect = Request::Collect {
                identity,
                lease_version,
            };
            wanted.push((since + self.timing.gc_after, collect));
        }
        wanted
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

    /// The request that renews the own Lease, or releases it.
    fn write(&self, held: bool) -> Request {
        let base = match &self.base {
            OwnLeaseState::Own(lease_version) => Some(lease_version.clone()),
            _ => None,
        };
        let record = MemberRecord {
            identity: Arc::clone(&self.me),
            session: self.session,
            address: Arc::clone(&self.address),
            view: self.view(),
            pod: self.pod.clone(),
            held,
        };
        Request::Write { base, record }
    }
}
