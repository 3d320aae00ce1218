//! One probe of the internal endpoint: the leases, and what else they must be judged with.

use std::time::Duration;

use super::probe_context::ProbeInputs;
use super::prober::Prober;
use crate::cluster::transport::{Budget, Connector};
use crate::domain::assessment::Assessment;
use crate::domain::candidates::NodeIndex;
use crate::domain::outcome::ProbeFailure;
use crate::domain::probe_state::ProbeStep;
use crate::domain::schedule::MACHINES_PAUSE;

impl<R, C: Connector> Prober<R, C> {
    /// Takes over why the API server may have been away.
    pub(super) fn note_suspicion(&mut self) {
        if let Some(suspicion) = self.client.take_suspicion() {
            // Its start may be unknown. Pings would have ended the connection within a renew interval; without pings
            // (HTTP/1.1) this is an assumption.
            let unknown = match suspicion.noticed {
                true => self.state.renew_interval(),
                false => Duration::ZERO,
            };
            let since = self.shared.time_of(suspicion.since).before(unknown);
            self.state.answered_mut().note_outage(since, suspicion.silent);
        }
    }

    /// Lists the leases, and the nodes and machines if they matter. If a loss would rest on an old list of the leases,
    /// they are listed once more.
    pub(super) async fn ask_internal(
        &mut self,
        inputs: &ProbeInputs,
        budget: Budget,
    ) -> Result<Assessment, ProbeFailure> {
        let mut is_again = false;
        loop {
            let listed = self.client.leases(&inputs.internal, budget).await;
            self.note_suspicion();
            // A renew interval that has just changed applies from the next list on: no silence is proven until then.
            let rule = inputs.rule(self.state.renew_interval());
            let list = listed?;
            let step = self.state.leases(&list, rule, is_again);
            self.client.remember(self.state.remembered())?;
            let ahead = match step {
                ProbeStep::Done(assessment)
                    if self.state.is_recent(&list, &assessment, self.shared.now()) =>
                {
                    return Ok(assessment);
                }
                ProbeStep::Done(_) => {
                    is_again = true;
                    continue;
                }
                ProbeStep::CountNodes(assessment) => {
                    let nodes = self.client.count_nodes(budget).await;
                    self.note_suspicion();
                    let leases = assessment.renewing.saturating_add(assessment.undated);
                    if nodes.is_some_and(|nodes| nodes <= leases as usize) {
                        return Ok(assessment);
                    }
                    None
                }
                ProbeStep::ListNodes(ahead) => ahead,
            };
            let index = match (self.list_nodes(inputs, budget).await, ahead) {
                (Ok(index), _) => index,
                // They did not matter yet.
                (Err(failure), Some(assessment)) if !failure.is_throttled() => return Ok(assessment),
                (Err(failure), _) => return Err(failure),
            };
            let assessment = self.state.judge(&list, index, rule);
            self.client.remember(self.state.remembered())?;
            if self.state.is_recent(&list, &assessment, self.shared.now()) {
                return Ok(assessment);
            }
            is_again = true;
        }
    }

    /// Lists the nodes and machines. While the seed wants to be left alone, only the leases are listed.
    async fn list_nodes(&mut self, inputs: &ProbeInputs, budget: Budget) -> Result<NodeIndex, ProbeFailure> {
        let now = self.shared.now();
        if now < self.machines_paused_until {
            let pause = self.machines_paused_until.since(now);
            return Err(ProbeFailure::MachinesThrottled(Some(pause)));
        }
        let listed = self.client.nodes_and_machines(&inputs.internal, budget).await;
        if let Err(ProbeFailure::MachinesThrottled(wait)) = listed {
            let pause = self.shared.pace(&inputs.config).pause(wait, MACHINES_PAUSE);
            self.machines_paused_until = self.shared.now().after(pause);
        }
        let (nodes, machines) = listed?;
        Ok(NodeIndex::new(&nodes, &machines, &inputs.settings))
    }
}
