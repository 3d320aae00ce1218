//! The first span of a trace: the probe that changed the verdict on a shoot.

use tokio::time::Instant;
use watchdog_runtime::trace::{KeyValue, Span, Tracer};

use crate::domain::outcome::Outcome;
use crate::domain::verdict::Verdict;

/// The span of a probe that began at `started` and found something else than what was `told` before. None while traces
/// are off, and for a shoot that is found healthy at first: after a start all are, and that is no news.
pub(super) fn changed(
    tracer: &Tracer,
    shoot: &str,
    told: &'static str,
    verdict: &Verdict,
    started: Instant,
) -> Option<Span> {
    if told == Outcome::Pending.as_str() && verdict.outcome == Outcome::Healthy {
        return None;
    }
    let mut span = tracer.root("probe", started, || {
        let mut attributes = vec![
            KeyValue::new("shoot", shoot.to_owned()),
            KeyValue::new("outcome", verdict.outcome.as_str()),
            KeyValue::new("outcome.before", told),
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
