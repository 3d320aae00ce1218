//! The first span of a trace: the probe that changed the verdict on a shoot.

use tokio::time::Instant;
use watchdog_runtime::trace::{KeyValue, Span, Tracer};

use crate::domain::outcome::Outcome;
use crate::domain::verdict::Verdict;

/// The span of a probe that began at `started` and changed the outcome from `before`. None while traces are off, and
/// for a shoot whose first outcome is healthy: after a start nearly all are.
pub(super) fn changed(
    tracer: &Tracer,
    shoot: &str,
    before: &'static str,
    verdict: &Verdict,
    started: Instant,
) -> Option<Span> {
    if before == Outcome::Pending.as_str() && verdict.outcome == Outcome::Healthy {
        return None;
    }
    let mut span = tracer.root("probe", started, || {
        let mut attributes = vec![
            KeyValue::new("shoot", shoot.to_owned()),
            KeyValue::new("outcome", verdict.outcome.as_str()),
            KeyValue::new("outcome.before", before),
            KeyValue::new("message", verdict.message.clone()),
        ];
        if let Some(evidence) = &verdict.evidence {
            attributes.extend([
                KeyValue::new("leases", i64::from(evidence.leases)),
                KeyValue::new("candidates", i64::from(evidence.candidates)),
                KeyValue::new("expired", i64::from(evidence.expired)),
            ]);
        }
        attributes
    })?;
    if !verdict.failure.is_empty() {
        span.fail(verdict.failure);
    }
    Some(span)
}
