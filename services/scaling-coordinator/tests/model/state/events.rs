//! The events that can happen next.

use super::{CombinedVerdict, Event, ModelState, RequestFate, Rules};

impl ModelState {
    /// The events that can happen now.
    pub fn events(&self, rules: Rules) -> Vec<Event> {
        use CombinedVerdict::{
            Contradiction, ExternalUnreachable, Healthy, Inconclusive, LeasesExpired, Nothing, Stale,
        };
        let mut events = Vec::new();
        let left = &self.left;
        if left.turns > 0 {
            let all: &[CombinedVerdict] = if left.all_verdicts {
                &[
                    Nothing,
                    Healthy,
                    LeasesExpired,
                    ExternalUnreachable,
                    Inconclusive,
                    Stale,
                    Contradiction,
                ]
            } else {
                &[Healthy, LeasesExpired, Stale]
            };
            events.extend(all.iter().filter(|s| **s != self.verdict).map(|s| Event::Say(*s)));
        }
        for i in 0..2 {
            let object = &self.objects[i];
            if !object.current || object.ready != object.replicas {
                events.push(Event::Controllers(i));
            }
            if left.meddles > 0 {
                events.push(Event::Touch(i));
                events.extend(
                    [1, 2]
                        .into_iter()
                        .filter(|n| *n != object.replicas)
                        .map(|n| Event::Meddle(i, n)),
                );
            }
        }
        for (c, coordinator) in self.coordinators.iter().enumerate() {
            for action in 0..coordinator.sent.len() {
                events.push(Event::Answer(c, action, RequestFate::Answered));
                if left.losses > 0 {
                    let fates = [
                        RequestFate::AppliedButLost,
                        RequestFate::Lost,
                        RequestFate::Late,
                        RequestFate::Refused,
                    ];
                    events.extend(fates.map(|fate| Event::Answer(c, action, fate)));
                }
            }
            if !coordinator.acts {
                if self.may_acquire(c, rules) {
                    events.push(Event::Acquire(c));
                }
                continue;
            }
            let listed = (0..2).filter(|i| coordinator.listed[*i]);
            let behind = listed.filter(|i| coordinator.view[*i] != self.objects[*i]);
            events.extend(behind.map(|i| Event::Watch(c, i)));
            if left.lists > 0 {
                let unlisted = (0..2).filter(|i| !coordinator.listed[*i]);
                events.extend(unlisted.map(|i| Event::List(c, i)));
            }
            if coordinator.cluster != self.allowed {
                events.push(Event::WatchCluster(c));
            }
            events.extend((0..coordinator.queued.len()).map(|action| Event::Send(c, action)));
            if left.crashes > 0 {
                events.push(Event::Crash(c, RequestFate::AppliedButLost));
                if !coordinator.sent.is_empty() {
                    events.push(Event::Crash(c, RequestFate::Lost));
                    if left.losses > 0 {
                        events.push(Event::Crash(c, RequestFate::Late));
                    }
                }
            }
            if left.moves > 0 {
                events.push(Event::Release(c));
            }
        }
        events.extend((0..self.late.len()).map(Event::Arrive));
        if left.stops > 0 && self.allowed {
            events.push(Event::Stop);
        }
        if left.resumes > 0 && !self.allowed {
            events.push(Event::Resume);
        }
        if left.jumps > 0 && self.wake().is_some() {
            events.push(Event::Jump);
        }
        events
    }

    /// The contract of the membership: nobody else acts, and no request of another is under way.
    fn may_acquire(&self, c: usize, rules: Rules) -> bool {
        let other = &self.coordinators[1 - c];
        // Where two are alike it makes no difference which of them takes over.
        let alike = *other == self.coordinators[c];
        if alike && c != 0 {
            return false;
        }
        !other.acts && (other.sent.is_empty() || !rules.permit) && self.coordinators[c].sent.is_empty()
    }
}
