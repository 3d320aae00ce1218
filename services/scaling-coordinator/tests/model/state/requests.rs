//! The fate of requests and processes, and of the shoot at a handover.

use scaling_coordinator::domain::attempts::FlowHints;
use scaling_coordinator::domain::request::RequestOutcome;
use scaling_coordinator::domain::resource_step::ResourceWrite;

use super::object::index;
use super::{Checked, ModelState, Request, RequestFate, Rules};

/// The write down as it would be if nothing were recorded.
fn unrecorded(write: ResourceWrite) -> ResourceWrite {
    match write {
        ResourceWrite::Record { replicas: from }
        | ResourceWrite::Scale {
            from, record: true, ..
        } => ResourceWrite::Scale {
            from,
            to: 0,
            record: false,
            unreadable: None,
        },
        write => write,
    }
}

impl ModelState {
    /// Returns true if the request is under way, false if it has ended.
    pub(super) fn send(&mut self, c: usize, request: usize, rules: Rules) -> anyhow::Result<bool> {
        self.coordinators[c].has_turn = true;
        let mut sent = self.coordinators[c].queued.remove(request);
        let (now, i) = (self.now, index(&sent));
        let hints = &mut self.coordinators[c].hints;
        hints.begin(now, &sent);
        if sent.write.is_none() {
            hints.end(now, &sent, &RequestOutcome::Done);
            self.read(c, i, rules);
            return Ok(false);
        }
        if rules.cluster && sent.needs_cluster() {
            self.coordinators[c].cluster = self.allowed;
        }
        // What is checked right before a write.
        if rules.checked && self.direction(c, rules) != Some(sent.direction) {
            let cancelled = RequestOutcome::Cancelled { why: "the direction" };
            let hints = &mut self.coordinators[c].hints;
            hints.end(now, &sent, &cancelled);
            return Ok(false);
        }
        self.check_sending(c, &sent, rules)?;
        if !rules.record {
            sent.write = sent.write.map(|(write, against)| (unrecorded(write), against));
        }
        if !rules.exclusive && c == 0 {
            self.answer(c, sent, RequestFate::Answered, rules)?;
            return Ok(false);
        }
        self.coordinators[c].sent.push(sent);
        Ok(true)
    }

    fn read(&mut self, c: usize, i: usize, rules: Rules) {
        if rules.reads {
            self.coordinators[c].view[i] = self.objects[i].clone();
            // What one learns after it has lost the shoot is not kept.
            self.coordinators[c].read[i] = self.coordinators[c].acts;
            self.coordinators[c].seen[i] = true;
        }
    }

    pub(super) fn answer(&mut self, c: usize, sent: Request, fate: RequestFate, rules: Rules) -> Checked {
        let i = index(&sent);
        let unknown = RequestOutcome::Unknown {
            why: "no answer".into(),
            retry_after: None,
        };
        self.coordinators[c].read[i] = false;
        let outcome = match fate {
            RequestFate::Answered if self.apply(&sent, rules)? => {
                self.read(c, i, rules);
                RequestOutcome::Done
            }
            RequestFate::Answered => {
                self.read(c, i, rules);
                RequestOutcome::Conflict
            }
            // The read that follows fails, too.
            RequestFate::AppliedButLost => {
                self.apply(&sent, rules)?;
                unknown
            }
            RequestFate::Lost => unknown,
            RequestFate::Late => {
                self.late.push(sent.clone());
                self.read(c, i, rules);
                unknown
            }
            RequestFate::Refused => RequestOutcome::Refused {
                why: "500".into(),
                retry_after: None,
            },
        };
        let hints = &mut self.coordinators[c].hints;
        hints.end(self.now, &sent, &outcome);
        Ok(())
    }

    /// The API server gets a write: whether it was applied.
    pub(super) fn apply(&mut self, sent: &Request, rules: Rules) -> anyhow::Result<bool> {
        let i = index(sent);
        let (object, wanted) = (&mut self.objects[i], self.wanted[i]);
        let Some((write, against)) = &sent.write else {
            return Ok(false);
        };
        if rules.precondition && **against != *object.version.to_string() {
            return Ok(false);
        }
        match write {
            ResourceWrite::Record { replicas } => {
                (object.recorded, object.protected) = (Some(*replicas), true);
                object.version += 1;
                anyhow::ensure!(
                    *replicas == object.replicas,
                    "S6: {replicas} are recorded, there are {}",
                    object.replicas
                );
            }
            ResourceWrite::Scale { from, to, record, .. } => {
                if *record {
                    (object.recorded, object.protected) = (Some(*from), true);
                }
                anyhow::ensure!(
                    !record || *from == object.replicas,
                    "S6: {from} are recorded, there are {}",
                    object.replicas
                );
                object.scale(*to);
                anyhow::ensure!(
                    *to == 0 || *to == wanted,
                    "S6: restored to {to} instead of {wanted}"
                );
            }
            ResourceWrite::CleanUp => {
                object.protected = false;
                object.version += 1;
            }
        }
        Ok(true)
    }

    pub(super) fn crash(&mut self, c: usize, fate: RequestFate, rules: Rules) -> Checked {
        self.left.crashes -= 1;
        self.left.losses -= u8::from(fate == RequestFate::Late);
        for sent in std::mem::take(&mut self.coordinators[c].sent) {
            self.answer(c, sent, fate, rules)?;
        }
        self.retire(c, rules);
        // It will list everything before it acts again; until then it does not matter what it saw.
        let coordinator = &mut self.coordinators[c];
        (coordinator.view, coordinator.cluster, coordinator.lists) = (self.first.clone(), true, true);
        (coordinator.listed, coordinator.seen) = (rules.listed(), rules.listed());
        if !rules.durable {
            self.objects.iter_mut().for_each(|object| object.recorded = None);
        }
        Ok(())
    }

    /// A replica forgets a shoot that is not its own any more; what is under way ends by itself. What it sees from now
    /// on is what it saw then: its watches may be late for any time, each by itself.
    pub(super) fn retire(&mut self, c: usize, rules: Rules) {
        self.coordinators[c].acts = false;
        self.coordinators[c].queued.clear();
        self.coordinators[c].has_turn = false;
        if rules.anew {
            self.coordinators[c].hints = FlowHints::default();
            self.coordinators[c].read = [false; 2];
        }
    }

    pub(super) fn acquire(&mut self, c: usize) {
        let coordinator = &mut self.coordinators[c];
        coordinator.acts = true;
        if std::mem::take(&mut coordinator.lists) {
            (coordinator.view, coordinator.cluster) = (self.objects.clone(), self.allowed);
        }
    }
}
