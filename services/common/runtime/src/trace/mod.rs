//! OpenTelemetry traces, off by default: one for each verdict that changed, from the probe that found it to the last
//! write that follows from it. The context travels in the verdict ([`Span::traceparent`]).
//!
//! Spans are made when something has happened and not on the way there, so the thousands of probes that find nothing
//! new make none, and a process without `--otlp-endpoint` makes none at all. The spans wait in a bounded queue for a
//! task that exports them: a collector that is slow or gone costs spans, which are counted, and never time.

mod endpoint;
mod export;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, Key};
pub use opentelemetry::{KeyValue, Value};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, SpanProcessor};
use parking_lot::Mutex;
use tokio::time::Instant;

pub use self::endpoint::OtlpEndpoint;
pub(crate) use self::export::start;
use crate::label;
use crate::metrics::Counter;
use crate::token_bucket::TokenBucket;

label!(pub(crate) enum SpanResult: "result" {
    Exported = "exported",
    Failed = "failed",
    Dropped = "dropped",
    Limited = "limited",
});

pub(crate) const SPANS: Counter<SpanResult> = Counter::new(
    "watchdog_trace_spans_total",
    "OpenTelemetry spans by result: exported, failed (the collector did not take them), dropped (the queue was full), \
     limited (traces that were not begun because there were too many).",
);

/// Traces that may begin at once. Enough for every shoot behind one load balancer that fails.
const BURST: f64 = 200.0;

/// Traces that may begin in a second when the burst is used up. One has a span for the probe, one for the operation and
/// five to ten for the writes.
const TRACES_PER_SECOND: f64 = 20.0;

/// Longest context that is looked at; version 00 has 55 characters.
const LONGEST_CONTEXT: usize = 128;

/// The key under which propagators keep the context.
const TRACEPARENT: &str = "traceparent";

/// Makes spans, or none while traces are off. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Tracer(Option<Arc<EnabledTracer>>);

#[derive(Debug)]
struct EnabledTracer {
    tracer: SdkTracer,
    roots: Mutex<TokenBucket>,
}

impl Tracer {
    /// Makes no spans.
    #[must_use]
    pub const fn off() -> Self {
        Self(None)
    }

    /// Hands ended spans to a processor.
    #[must_use]
    pub fn on(processor: impl SpanProcessor + 'static) -> Self {
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
            .with_span_processor(processor)
            .build();
        Self(Some(Arc::new(EnabledTracer {
            tracer: provider.tracer("dependency-watchdog"),
            roots: Mutex::new(TokenBucket::new(TRACES_PER_SECOND, BURST, Instant::now())),
        })))
    }

    /// True if spans are made.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The first span of a trace, of something that began then. None while traces are off, or when too many began
    /// lately.
    #[must_use]
    pub fn root(
        &self,
        name: &'static str,
        began: Instant,
        attributes: impl FnOnce() -> Vec<KeyValue>,
    ) -> Option<Span> {
        let on = self.0.as_ref()?;
        if !on.roots.lock().try_take(Instant::now()) {
            SPANS.inc(SpanResult::Limited);
            return None;
        }
        Some(on.span(name, began, &Context::new(), attributes()))
    }

    /// A span below one of another process. None while traces are off, or when the context is none.
    #[must_use]
    pub fn below(
        &self,
        traceparent: &str,
        name: &'static str,
        began: Instant,
        attributes: impl FnOnce() -> Vec<KeyValue>,
    ) -> Option<Span> {
        let on = self.0.as_ref()?;
        if traceparent.len() > LONGEST_CONTEXT {
            return None;
        }
        let carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
        let sampled = parent.span().span_context().is_sampled();
        sampled.then(|| on.span(name, began, &parent, attributes()))
    }

    /// A span below another one of this process.
    #[must_use]
    pub fn child(
        &self,
        parent: &Span,
        name: &'static str,
        began: Instant,
        attributes: impl FnOnce() -> Vec<KeyValue>,
    ) -> Option<Span> {
        let on = self.0.as_ref()?;
        let parent = Context::new().with_remote_span_context(parent.0.span_context().clone());
        Some(on.span(name, began, &parent, attributes()))
    }
}

impl EnabledTracer {
    fn span(&self, name: &'static str, began: Instant, parent: &Context, attributes: Vec<KeyValue>) -> Span {
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Internal)
            .with_start_time(at(began))
            .with_attributes(attributes);
        Span(self.tracer.build_with_context(builder, parent))
    }
}

/// Something that takes time. It ends when it is dropped.
#[derive(Debug)]
pub struct Span(opentelemetry_sdk::trace::Span);

impl Span {
    /// The context in which others go on: W3C's `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> String {
        let context = Context::new().with_remote_span_context(self.0.span_context().clone());
        let mut carrier = HashMap::new();
        TraceContextPropagator::new().inject_context(&context, &mut carrier);
        carrier.remove(TRACEPARENT).unwrap_or_default()
    }

    /// Adds what is known by now.
    pub fn set(&mut self, key: impl Into<Key>, value: impl Into<Value>) {
        self.0.set_attribute(KeyValue::new(key, value));
    }

    /// Notes that something happened.
    pub fn event(&mut self, name: &'static str, attributes: Vec<KeyValue>) {
        self.0.add_event(name, attributes);
    }

    /// Notes that it failed, and why.
    pub fn fail(&mut self, why: impl Into<String>) {
        self.0.set_status(Status::error(why.into()));
    }
}

/// A moment of the process as a wall clock shows it.
fn at(moment: Instant) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(moment.elapsed()).unwrap_or(now)
}

#[cfg(test)]
mod tests;
