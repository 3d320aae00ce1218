//! Adds spans to the trace of a verdict: one for the operation that follows from it, until every resource has reached
//! its target or the direction changes, and one for each write.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;
use watchdog_runtime::trace::{KeyValue, Span, Tracer};

use super::verdicts::VerdictTable;
use crate::domain::attempts::{RequestOutcome, WriteAttempt};
use crate::domain::overview::ShootScaling;
use crate::domain::status::FlowState;
use crate::domain::{Direction, direction_name};

/// Makes the spans. Does nothing while traces are off.
#[derive(Debug)]
pub(crate) struct Traces {
    tracer: Tracer,
    verdicts: Arc<VerdictTable>,
    operations: HashMap<Arc<str>, TracedFlow>,
}

/// The operation after one change of direction. It has no span once it is done, so that it is traced only once.
#[derive(Debug)]
struct TracedFlow {
    since: Instant,
    span: Option<Span>,
}

impl Traces {
    /// Goes on with the traces of these verdicts.
    pub(crate) fn new(tracer: Tracer, verdicts: Arc<VerdictTable>) -> Self {
        Self {
            tracer,
            verdicts,
            operations: HashMap::new(),
        }
    }

    /// Takes note of how far a shoot is.
    pub(super) fn reconciled(&mut self, shoot: &Arc<str>, scaling: &ShootScaling) {
        if !self.tracer.is_on() {
            return;
        }
        if let Some(operation) = self.operations.get_mut(shoot)
            && operation.since != scaling.since
        {
            if let Some(span) = &mut operation.span {
                let direction = direction_name(scaling.direction);
                let attributes = [("direction", direction), ("reason", &scaling.reason)];
                let attributes = attributes.map(|(key, value)| KeyValue::new(key, value.to_owned()));
                span.event("the direction has changed", attributes.into());
            }
            self.operations.remove(shoot);
        }
        let under_way = matches!(scaling.status.state, FlowState::Running | FlowState::Failed);
        match (scaling.direction, self.operations.get_mut(shoot)) {
            (Some(direction), None) if under_way => self.begin(shoot, direction, scaling),
            (_, Some(operation)) if !under_way => operation.span = None,
            (_, Some(operation)) if scaling.status.state == FlowState::Failed => {
                if let Some(span) = &mut operation.span {
                    span.fail("a level has failed, it is tried again");
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, shoot: &Arc<str>, direction: Direction, scaling: &ShootScaling) {
        let Some(context) = self.verdicts.traceparent(shoot, direction) else {
            return;
        };
        let name = match direction {
            Direction::Down => "scale down",
            Direction::Up => "scale up",
            Direction::Release => "release",
        };
        let span = self.tracer.below(&context, name, scaling.since, || {
            vec![
                KeyValue::new("shoot", shoot.to_string()),
                KeyValue::new("reason", scaling.reason.clone()),
            ]
        });
        let since = scaling.since;
        self.operations.insert(shoot.clone(), TracedFlow { since, span });
    }

    /// The span of a write that begins now, if its operation is traced.
    pub(super) fn request(&self, shoot: &str, attempt: &WriteAttempt) -> Option<Span> {
        let operation = self.operations.get(shoot)?.span.as_ref()?;
        self.tracer.child(operation, "write", Instant::now(), || {
            vec![
                KeyValue::new("shoot", shoot.to_owned()),
                KeyValue::new("resource", attempt.reference.to_string()),
                KeyValue::new("what", attempt.write.to_string()),
            ]
        })
    }

    pub(super) fn forget(&mut self, shoot: &str) {
        self.operations.remove(shoot);
    }
}

/// Ends the span of a write with what came of it.
pub(super) fn ended(span: Option<Span>, outcome: &RequestOutcome) {
    let Some(mut span) = span else {
        return;
    };
    span.set("result", outcome.write_result().as_str());
    if let Some(error) = outcome.error() {
        span.fail(error.to_owned());
    }
}

#[cfg(test)]
mod tests;
