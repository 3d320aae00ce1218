//! A state in which faults have ended.

use super::{Budget, Checked, CombinedVerdict, ModelState, RequestFate, Rules};

impl ModelState {
    /// From now on every object is listed.
    pub fn list_all(&mut self) {
        for coordinator in &mut self.coordinators {
            (coordinator.listed, coordinator.seen) = ([true; 2], [true; 2]);
        }
    }

    /// True if an object has changed out of the blue since it was read, and no watch brings it.
    pub fn lacks_news(&self) -> bool {
        self.coordinators.iter().any(|coordinator| {
            (0..2).any(|i| {
                let is_old = coordinator.view[i].version < self.objects[i].surprise;
                coordinator.seen[i] && !coordinator.listed[i] && is_old
            })
        })
    }

    /// From now on everything works, and the observers report this.
    pub fn end_faults(&mut self, verdict: CombinedVerdict, rules: Rules) -> Checked {
        self.left = Budget::default();
        self.verdict = verdict;
        for sent in std::mem::take(&mut self.late) {
            self.apply(&sent, rules)?;
        }
        for c in 0..2 {
            self.answer_all(c, rules)?;
        }
        if !self.coordinators.iter().any(|c| c.acts) {
            self.acquire(0);
        }
        Ok(())
    }

    /// One round of a state in which everything works: each request is answered, each watch is up to date.
    pub fn faultless_round(&mut self, rules: Rules) -> Checked {
        for c in 0..2 {
            self.converge(c);
        }
        for c in 0..2 {
            for i in 0..2 {
                if self.coordinators[c].listed[i] {
                    self.coordinators[c].view[i] = self.objects[i].clone();
                }
            }
            self.coordinators[c].cluster = self.allowed;
        }
        self.reconcile(rules);
        let mut idle = true;
        for c in 0..2 {
            if self.coordinators[c].acts {
                while !self.coordinators[c].queued.is_empty() {
                    idle = false;
                    self.send(c, 0, rules)?;
                    self.reconcile(rules);
                }
                self.answer_all(c, rules)?;
            }
        }
        if idle {
            self.now = self.wake().unwrap_or(self.now);
        }
        self.reconcile(rules);
        self.check()
    }

    fn answer_all(&mut self, c: usize, rules: Rules) -> Checked {
        for sent in std::mem::take(&mut self.coordinators[c].sent) {
            self.answer(c, sent, RequestFate::Answered, rules)?;
        }
        Ok(())
    }
}
