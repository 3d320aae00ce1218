use std::time::Duration;

use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SimpleSpanProcessor, SpanData, SpanExporter};
use parking_lot::Mutex;

use super::*;
use crate::controller::verdicts::TracedVerdict;
use crate::domain::decision::{Outcome, ReceivedVerdict};
use crate::domain::history::tests::{action, scaling};
use crate::domain::status::Step;
use crate::domain::testing::S;

/// The context of a span of lease-probe.
const PROBE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Keeps the spans that have ended, in that order.
#[derive(Debug, Clone, Default)]
struct EndedSpans(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for EndedSpans {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().extend(batch);
        Ok(())
    }
}

impl EndedSpans {
    fn names(&self) -> Vec<String> {
        self.0.lock().iter().map(|span| span.name.to_string()).collect()
    }
}

fn attributes(attributes: &[KeyValue]) -> Vec<(&str, String)> {
    attributes
        .iter()
        .map(|attribute| (attribute.key.as_str(), attribute.value.to_string()))
        .collect()
}

/// The traces of a shoot whose nodes are cut off since now, by a verdict that is traced.
fn cut_off() -> (Traces, EndedSpans, Arc<str>) {
    let (verdicts, stream) = (
        Arc::new(VerdictTable::new(Arc::default())),
        Arc::from("lease-probe-0"),
    );
    verdicts.joined(&stream);
    let now = Instant::now();
    let verdict = ReceivedVerdict {
        outcome: Outcome::LeasesExpired,
        observer: stream.clone(),
        observed: now,
        outcome_since: now,
        list_revision: 0,
        first_revision: 0,
        sent: now,
        valid_until: now + 60 * S,
        message: "".into(),
    };
    let traceparent = Some(PROBE.into());
    verdicts.upsert(&stream, "shoot", TracedVerdict { verdict, traceparent });
    let ended = EndedSpans::default();
    let tracer = Tracer::on(SimpleSpanProcessor::new(ended.clone()));
    (Traces::new(tracer, verdicts), ended, "shoot".into())
}

fn state(direction: Direction, state: FlowState, since: Instant) -> ShootScaling {
    ShootScaling {
        since,
        ..scaling(Some(direction), state, Step::Writing, false)
    }
}

#[tokio::test(start_paused = true)]
async fn a_scale_down_lasts_from_the_change_of_direction_to_the_next_one_and_has_the_writes_below_it() {
    let (mut traces, ended, shoot) = cut_off();
    let since = Instant::now();
    tokio::time::advance(5 * S).await;
    traces.reconciled(&shoot, &state(Direction::Down, FlowState::Running, since));
    let write = traces.request(&shoot, &action(Direction::Down));
    let why = "admission webhook".to_owned();
    let refused = RequestOutcome::Refused {
        why,
        retry_after: None,
    };
    super::ended(write, &refused);
    traces.reconciled(&shoot, &state(Direction::Down, FlowState::Failed, since));
    assert_eq!(ended.names(), ["write"], "the operation goes on");
    traces.reconciled(&shoot, &state(Direction::Up, FlowState::Running, Instant::now()));

    let spans = ended.0.lock();
    let [write, operation] = &spans[..] else {
        panic!("{spans:?}");
    };
    assert_eq!(operation.name, "scale down");
    assert_eq!(operation.span_context.trace_id().to_string(), PROBE[3..35]);
    assert_eq!(operation.parent_span_id.to_string(), PROBE[36..52]);
    let took = operation.end_time.duration_since(operation.start_time).unwrap();
    // The wall clock goes on while that of tokio is paused.
    assert!(took > Duration::from_secs(4), "{took:?}");
    let because = ("reason", "Because.".to_owned());
    assert_eq!(
        attributes(&operation.attributes),
        [("shoot", "shoot".to_owned()), because.clone()]
    );
    assert!(
        format!("{:?}", operation.status).contains("a level has failed"),
        "{operation:?}"
    );
    let [changed] = &operation.events[..] else {
        panic!("{operation:?}");
    };
    assert_eq!(changed.name, "the direction has changed");
    assert_eq!(
        attributes(&changed.attributes),
        [("direction", "up".to_owned()), because]
    );

    assert_eq!(write.parent_span_id, operation.span_context.span_id());
    let of_write = attributes(&write.attributes);
    let attempt = action(Direction::Down);
    assert_eq!(
        of_write,
        [
            ("shoot", "shoot".to_owned()),
            ("resource", attempt.reference.to_string()),
            ("what", attempt.write.to_string()),
            ("result", "refused".to_owned()),
        ]
    );
    assert!(
        format!("{:?}", write.status).contains("admission webhook"),
        "{write:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_operation_is_traced_once_and_only_below_a_verdict_that_wants_it() {
    let (mut traces, ended, shoot) = cut_off();
    let now = Instant::now();
    let has_span = |traces: &Traces| traces.request("shoot", &action(Direction::Down)).is_some();
    traces.reconciled(&shoot, &state(Direction::Up, FlowState::Running, now));
    assert!(!has_span(&traces), "no verdict wants it up");
    traces.reconciled(&shoot, &state(Direction::Down, FlowState::Settled, now));
    assert!(!has_span(&traces), "nothing was left to do");
    for (flow, is_traced) in [
        (FlowState::Running, true),
        (FlowState::Settled, false),
        (FlowState::Running, false),
    ] {
        traces.reconciled(&shoot, &state(Direction::Down, flow, now));
        assert_eq!(has_span(&traces), is_traced, "{flow:?}");
    }
    assert_eq!(ended.names(), ["write", "scale down"]);
    // The next change of direction begins anew, until the shoot is another replica's.
    traces.reconciled(&shoot, &state(Direction::Down, FlowState::Running, now + S));
    traces.forget(&shoot);
    assert_eq!(ended.names(), ["write", "scale down", "scale down"]);
}
