//! Chooses the next request to the API server, and its time.

use std::sync::Arc;

use super::{Asked, Base, Request, Stage, State};
use crate::membership::card::{Card, Identity, Stamp, View};
use crate::membership::roster::Moment;
#[cfg(test)]
use crate::membership::simulation::Rule;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Want {
    List,
    Publish,
    Release,
    Collect(Identity, Stamp),
}

// === impl State ===

impl State {
    /// The next request, when one is due; at most one is under way at a time.
    pub(crate) fn next(&mut self, now: Moment) -> Option<Request> {
        self.check_lapse(now);
        #[cfg(test)]
        if self.is_broken(Rule::ConsistentRead) {
            self.roster.remove_unseen(now);
        }
        if self.asked.is_some() || now < self.retry_at {
            return None;
        }
        let want = self.agenda().into_iter().find(|(due, _)| *due <= now)?.1;
        Some(self.ask(now, want))
    }

    /// When [`Self::next`] should be called again if nothing happens before; none when only an answer can help.
    pub(crate) fn wake_at(&self) -> Option<Moment> {
        let due = match self.asked {
            Some(_) => None,
            None => self
                .agenda()
                .into_iter()
                .map(|(due, _)| due.max(self.retry_at))
                .min(),
        };
        due.into_iter().chain(self.ends_at).min()
    }

    /// The wanted requests and their earliest times, the most important first.
    fn agenda(&self) -> Vec<(Moment, Want)> {
        let mut agenda = Vec::with_capacity(3);
        if self.leaving {
            match self.base {
                Base::Unknown if self.wrote => agenda.push((Moment::ZERO, Want::List)),
                Base::Own(_) if self.wrote && !self.busy => agenda.push((Moment::ZERO, Want::Release)),
                _ => {}
            }
            return agenda;
        }
        match self.stage {
            Stage::Left => return agenda,
            Stage::Starting => agenda.push((Moment::ZERO, Want::List)),
            _ if self.base == Base::Unknown => agenda.push((Moment::ZERO, Want::List)),
            Stage::Waiting if self.busy || matches!(self.base, Base::Occupied(..)) => {}
            Stage::Waiting => agenda.push((self.gate(), Want::Publish)),
            Stage::Published => {
                agenda.push((self.renew_at, Want::Publish));
                agenda.push((Moment::ZERO, Want::List));
            }
            Stage::Joined if self.published.as_ref() == Some(&self.view()) => {
                agenda.push((self.renew_at, Want::Publish));
            }
            Stage::Joined => agenda.push((Moment::ZERO, Want::Publish)),
        }
        agenda.push((self.list_at(), Want::List));
        if let Some((since, identity, stamp)) = self.roster.longest_gone() {
            agenda.push((since + self.timing.forget, Want::Collect(identity, stamp)));
        }
        agenda
    }

    /// When to publish a new session. Not before everybody found has shown that it lives, while somebody certainly
    /// does: those hand over a share at once, and it would lie idle as long as a dead one cannot acknowledge.
    fn gate(&self) -> Moment {
        // Its share lies idle already: the others take its predecessor for live.
        if self.inherited {
            return Moment::ZERO;
        }
        let (mut proven, mut unproven) = (false, false);
        for member in self.roster.live() {
            proven |= member.proven;
            unproven |= !member.proven;
        }
        match (proven, unproven) {
            (_, false) => Moment::ZERO,
            (true, true) => self.waiting_since + self.timing.foreign,
            // Time for one renewal, by the slowest clock.
            (false, true) => self.waiting_since + self.timing.renew.mul_f64(1.2),
        }
    }

    fn list_at(&self) -> Moment {
        if self.list_wanted {
            return Moment::ZERO;
        }
        let settled = self.stage == Stage::Joined && self.is_acknowledged();
        let interval = if settled {
            self.timing.resync
        } else {
            self.timing.renew
        };
        let regular = self.listed_at + interval;
        let occupied_until = match self.base {
            Base::Occupied(_, ends_at) => Some(ends_at),
            _ => None,
        };
        self.roster
            .suspect_at()
            .into_iter()
            .chain(occupied_until)
            .fold(regular, Moment::min)
    }

    /// The view to publish: everybody live. While actions are in progress that belong to a new member, those whom
    /// the last published view had, so that the new member waits.
    fn view(&self) -> View {
        let live = self
            .roster
            .live()
            .map(|m| (Arc::clone(&m.card.identity), m.card.session));
        let mut view: View = match &self.published {
            Some(published) if self.busy => live.filter(|(id, s)| published.get(id) == Some(s)).collect(),
            _ => live.collect(),
        };
        view.insert(Arc::clone(&self.me), self.session);
        view
    }

    fn ask(&mut self, started: Moment, want: Want) -> Request {
        let base = match &self.base {
            Base::Own(stamp) => Some(stamp.clone()),
            _ => None,
        };
        let (asked, request) = match want {
            Want::List => {
                self.list_wanted = false;
                (
                    Asked::List {
                        started,
                        mark: self.roster.mark(),
                    },
                    Request::List,
                )
            }
            Want::Publish => {
                self.wrote = true;
                self.ends_at.get_or_insert(started + self.timing.own);
                let view = self.view();
                let card = self.card(view.clone(), true);
                (
                    Asked::Write {
                        started,
                        session: self.session,
                        view,
                    },
                    Request::Write { base, card },
                )
            }
            Want::Release => {
                let card = self.card(self.view(), false);
                (Asked::Release, Request::Write { base, card })
            }
            Want::Collect(identity, stamp) => (
                Asked::Collect(Arc::clone(&identity)),
                Request::Collect { identity, stamp },
            ),
        };
        self.asked = Some(asked);
        request
    }

    fn card(&self, view: View, held: bool) -> Card {
        Card {
            identity: Arc::clone(&self.me),
            session: self.session,
            address: Arc::clone(&self.address),
            view,
            pod: self.pod.clone(),
            held,
        }
    }
}
