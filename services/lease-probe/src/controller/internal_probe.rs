//! One probe of the internal endpoint: the leases, and what else they must be judged with.

use std::time::Duration;

use watchdog_api::unix_time::UnixTime;

use super::probe_context::ProbeContext;
use super::probe_inputs::ProbeInputs;
use crate::cluster::connection::Suspicion;
use crate::cluster::shoot_client::{Budget, ShootClient};
use crate::domain::answered::ListTimes;
use crate::domain::assessment::{Assessment, ExpiryRule};
use crate::domain::candidates::NodeIndex;
use crate::domain::outcome::{FailureEvidence, ProbeFailure};
use crate::domain::probe_state::{ProbeState, ProbeStep};
use crate::domain::renewals::expiry_age;

/// A loss rests on a list of leases that is no older than this when it is reported: lists of nodes and machines may
/// take long, and the leases may be renewed meanwhile.
const STALE_LIST: Duration = Duration::from_secs(2);

pub(super) struct ProbeResult {
    pub(super) assessment: Assessment,
    // A 429 that did not decide the result. The prober still pauses for as long as the server asked.
    pub(super) throttled: Option<ProbeFailure>,
}

/// Takes over why the API server may have been away.
pub(super) fn note_suspicion(shared: &ProbeContext, client: &mut impl ShootClient, state: &mut ProbeState) {
    let renew_interval = state.renew_interval();
    if let Some(Suspicion {
        since,
        silent,
        noticed,
    }) = client.take_suspicion()
    {
        let since = shared.time_of(since);
        // Its start is not known. Pings would have ended the connection within a renew interval; without pings
        // (HTTP/1.1) this is an assumption.
        let since = if noticed {
            since.before(renew_interval)
        } else {
            since
        };
        state.answered_mut().note_outage(since, silent);
    }
}

/// Lists the leases, and the nodes and machines if they matter. If those take long, the leases are listed once more.
pub(super) async fn ask_internal<S: ShootClient>(
    shared: &ProbeContext,
    client: &mut S,
    state: &mut ProbeState,
    inputs: &ProbeInputs,
    budget: Budget,
) -> Result<ProbeResult, ProbeFailure> {
    let done = |assessment| ProbeResult {
        assessment,
        throttled: None,
    };
    // When nodes and machines were asked for that took long.
    let mut slow: Option<UnixTime> = None;
    loop {
        let listed = client.leases(&inputs.internal, budget).await;
        note_suspicion(shared, client, state);
        // A renew interval that has just changed applies from the next list on: no silence is proven until then.
        let rule = rule(inputs, state.renew_interval());
        let (leases, sent) = listed?;
        let sent = shared.time_of(sent);
        let times = ListTimes {
            sent,
            // What held it up here says nothing about the API server.
            received: shared.now().before(client.waited()).max(sent),
            revision: leases.revision,
        };
        let ahead = match state.leases(times, &leases, rule) {
            ProbeStep::Done(assessment) => return Ok(done(assessment)),
            ProbeStep::CountNodes(assessment) => {
                let nodes = client.count_nodes(budget).await;
                note_suspicion(shared, client, state);
                if nodes.is_some_and(|nodes| nodes <= leases.leases.len()) {
                    return Ok(done(assessment));
                }
                None
            }
            ProbeStep::ListNodes => None,
            ProbeStep::Ahead(assessment) => Some(assessment),
        };
        if let Some(asked) = slow.take()
            && let Some(assessment) = state.judge_again(&leases, rule, asked, times.sent)
        {
            return Ok(done(assessment));
        }
        let asked = shared.now();
        match (list_nodes(shared, client, state, inputs, budget).await, ahead) {
            (Ok(index), _) => {
                let assessment = state.judge(&leases, index, rule, times.sent);
                let listed_lately = shared.now().since(times.received) <= STALE_LIST;
                if listed_lately || !assessment.outcome.is_loss() {
                    return Ok(done(assessment));
                }
                // The leases may have been renewed in the meantime.
                slow = Some(asked);
            }
            // They did not matter yet.
            (Err(failure), Some(assessment)) => {
                if failure.evidence() == FailureEvidence::Throttles {
                    state.answered_mut().note_outage(shared.now(), false);
                }
                return Ok(ProbeResult {
                    assessment,
                    throttled: failure.is_throttled().then_some(failure),
                });
            }
            (Err(failure), None) => return Err(failure),
        }
    }
}

/// Lists the nodes and machines. While the seed wants to be left alone, only the leases are listed.
async fn list_nodes<S: ShootClient>(
    shared: &ProbeContext,
    client: &mut S,
    state: &mut ProbeState,
    inputs: &ProbeInputs,
    budget: Budget,
) -> Result<NodeIndex, ProbeFailure> {
    if let Some(pause) = state.machines_pause(shared.now()) {
        return Err(ProbeFailure::MachinesThrottled(Some(pause)));
    }
    match client.nodes_and_machines(&inputs.internal, budget).await {
        Ok((nodes, machines)) => Ok(NodeIndex::new(&nodes, &machines, &inputs.settings)),
        Err(failure) => {
            if let ProbeFailure::MachinesThrottled(wait) = failure {
                let pace = shared.pace(&inputs.config);
                state.machines_throttled(wait, pace, (shared.random)(), shared.now());
            }
            Err(failure)
        }
    }
}

fn rule(inputs: &ProbeInputs, renew_interval: Duration) -> ExpiryRule {
    ExpiryRule {
        expiry_age: expiry_age(inputs.grace_period(), renew_interval),
        threshold: inputs
            .failure_fraction()
            .unwrap_or(inputs.config.node_lease_failure_fraction),
    }
}
