//! The fate of requests and processes, and of the shoot at a handover.

use scaling_coordinator::domain::flow::{Action, ActionKind, ActionOutcome, Flow};
use scaling_coordinator::domain::next_step::ResourceWrite;

use super::object::index;
use super::{Checked, ModelState, RequestFate, Rules};

/// The write down as it would be if nothing were recorded.
fn unrecorded(what: ActionKind) -> ActionKind {
    match what {
        ActionKind::Write(
            ResourceWrite::Record { replicas: from }
            | ResourceWrite::Scale {
                from, record: true, ..
            },
        ) => ActionKind::Write(ResourceWrite::Scale {
            from,
            to: 0,
            record: false,
            unreadable: None,
        }),
        what => what,
    }
}

impl ModelState {
    /// Returns true if the request is under way, false if it has ended.
    pub(super) fn send(&mut self, c: usize, action: usize, rules: Rules) -> anyhow::Result<bool> {
        let mut action = self.coordinators[c].queued.remove(action);
        let i = index(&action);
        self.coordinators[c].flow.start(self.now, &action);
        if action.kind == ActionKind::Read {
            if rules.reads {
                self.coordinators[c].view[i] = self.objects[i].clone();
            }
            self.coordinators[c]
                .flow
                .finish(self.now, &action, ActionOutcome::Done);
            return Ok(false);
        }
        if rules.cluster && action.kind.needs_cluster() && !self.allowed {
            self.coordinators[c].cluster = false;
            self.coordinators[c].flow.finish(
                self.now,
                &action,
                ActionOutcome::Cancelled { why: "the Cluster" },
            );
            return Ok(false);
        }
        self.check_sending(c, &action, rules)?;
        if !rules.record {
            action.kind = unrecorded(action.kind);
        }
        if !rules.exclusive && c == 0 {
            self.answer(c, action, RequestFate::Answered, rules)?;
            return Ok(false);
        }
        self.coordinators[c].sent.push(action);
        Ok(true)
    }

    pub(super) fn answer(&mut self, c: usize, action: Action, fate: RequestFate, rules: Rules) -> Checked {
        let unknown = ActionOutcome::Unknown {
            why: "no answer".into(),
            retry_after: None,
        };
        let outcome = match fate {
            RequestFate::Answered if self.apply(&action, rules)? => ActionOutcome::Done,
            RequestFate::Answered => ActionOutcome::Conflict,
            RequestFate::AppliedButLost => {
                self.apply(&action, rules)?;
                unknown
            }
            RequestFate::Lost => unknown,
            RequestFate::Late => {
                self.late.push(action.clone());
                unknown
            }
            RequestFate::Refused => ActionOutcome::Refused {
                why: "500".into(),
                retry_after: None,
            },
        };
        if rules.deadline || fate == RequestFate::Answered {
            self.coordinators[c].flow.finish(self.now, &action, outcome);
        }
        Ok(())
    }

    /// The API server gets a write: whether it was applied.
    pub(super) fn apply(&mut self, action: &Action, rules: Rules) -> anyhow::Result<bool> {
        let i = index(action);
        let (object, wanted) = (&mut self.objects[i], self.wanted[i]);
        if rules.precondition && *action.against != *object.version.to_string() {
            return Ok(false);
        }
        let ActionKind::Write(write) = &action.kind else {
            return Ok(false);
        };
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
        for action in std::mem::take(&mut self.coordinators[c].sent) {
            self.answer(c, action, fate, rules)?;
        }
        self.retire(c, rules);
        // It will list everything before it acts again; until then it does not matter what it saw.
        let coordinator = &mut self.coordinators[c];
        (coordinator.view, coordinator.cluster, coordinator.lists) = (self.first.clone(), true, true);
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
        if rules.anew {
            self.coordinators[c].flow = Flow::default();
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
