//! The invariants, judged by what is true and not by what a coordinator sees.

use super::object::{Object, dependents, index};
use super::{Checked, CombinedVerdict, Direction, ModelState, Request, Rules};

impl ModelState {
    /// Checks the invariants of a write when a coordinator sends it.
    pub(super) fn check_sending(&self, c: usize, sent: &Request, rules: Rules) -> Checked {
        let because = |ok: bool, why: &str| {
            anyhow::ensure!(ok, "{why}: {sent:?}");
            Ok(())
        };
        match (sent.direction, self.verdict) {
            (Direction::Release, _) => because(!self.allowed, "S2: it is still to be protected")?,
            (Direction::Up, CombinedVerdict::Healthy)
            | (Direction::Down, CombinedVerdict::LeasesExpired | CombinedVerdict::ExternalUnreachable) => {}
            (_, CombinedVerdict::Stale) => return because(false, "S1: a verdict that is no longer valid"),
            _ => return because(false, "S2: no verdict asks for it"),
        }
        because(
            self.allowed || !sent.needs_cluster() || sent.direction == Direction::Release,
            "S4: a replica count of a shoot that is not to be acted on",
        )?;
        if !rules.judged {
            return Ok(());
        }
        // To remove meltdown-protection-active begins no level: the resource is up already.
        let begins_level = sent.direction != Direction::Release && sent.needs_cluster();
        let other = &self.coordinators[1 - c];
        because(
            !other.acts && other.sent.is_empty(),
            "S5: another replica acts on it",
        )?;
        let dependents = dependents(rules, true);
        let level = sent.direction.info(&dependents[index(sent)]).level;
        for (i, dependent) in dependents.iter().enumerate() {
            // A change that came out of the blue and has not been seen yet cannot be taken into account.
            let known = self.coordinators[c].view[i].version >= self.objects[i].surprise;
            if known && begins_level && sent.direction.info(dependent).level < level {
                because(
                    self.objects[i].has_reached(sent.direction),
                    "S3: the level before is not reached",
                )?;
            }
        }
        Ok(())
    }

    /// Checks the invariants of every state: nothing lost, nothing doubled.
    pub(super) fn check(&self) -> Checked {
        for (object, wanted) in self.objects.iter().zip(self.wanted) {
            let held = object.recorded == Some(wanted) && (object.protected || self.was_stopped);
            anyhow::ensure!(
                object.replicas != 0 || held,
                "S6: it is down, {wanted} should be recorded: {object:?}"
            );
            anyhow::ensure!(
                object.replicas == 0 || object.replicas == wanted,
                "S6: it is up at {}, it should be at {wanted}",
                object.replicas
            );
        }
        Ok(())
    }

    /// Returns true if the final state is right: everything is where the verdict wants it, or the Cluster forbids
    /// writes.
    pub fn is_settled(&self) -> bool {
        if self.verdict == CombinedVerdict::LeasesExpired {
            let is_down = |object: &Object| object.has_reached(Direction::Down);
            return !self.allowed || self.objects.iter().all(is_down);
        }
        let restored =
            |(object, wanted): (&Object, i32)| !object.protected && (object.ready == wanted || !self.allowed);
        self.objects.iter().zip(self.wanted).all(restored)
    }
}
