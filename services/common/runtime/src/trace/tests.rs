#![cfg(test)]

use std::sync::Arc;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio_util::sync::CancellationToken;

use super::export::{BATCH, EXPORT_TIMEOUT, Queue, export};
use super::*;

/// Keeps what it gets, or does not answer at all.
#[derive(Debug, Clone, Default)]
struct Collector {
    got: Arc<Mutex<Vec<SpanData>>>,
    hangs: bool,
    fails: bool,
}

impl SpanExporter for Collector {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        if self.fails {
            return Err(OTelSdkError::InternalFailure("no".to_owned()));
        }
        self.got.lock().extend(batch);
        Ok(())
    }
}

/// Runs a story on a paused clock, and gives what the metrics say after it.
fn story<F: Future<Output = ()>>(tell: impl FnOnce(PrometheusHandle) -> F) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, || runtime.block_on(tell(handle)));
}

fn counted(metrics: &PrometheusHandle, result: &str) -> usize {
    let series = format!("watchdog_trace_spans_total{{result=\"{result}\"}} ");
    let text = metrics.render();
    let value = text.lines().find_map(|line| line.strip_prefix(&series));
    value.map_or(0, |value| value.parse().unwrap())
}

#[test]
fn without_an_endpoint_nothing_is_made() {
    let tracer = Tracer::off();
    let never = || panic!("attributes are made only for spans");
    assert!(!tracer.is_on());
    assert!(tracer.root("probe", Instant::now(), never).is_none());
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert!(tracer.below(parent, "operation", Instant::now(), never).is_none());
}

#[test]
fn a_trace_goes_on_in_another_process() {
    story(|metrics| async move {
        let (collector, stop) = (Collector::default(), CancellationToken::new());
        let (queue, spans) = Queue::new();
        let task = tokio::spawn(export(spans, collector.clone(), stop.clone()));
        let tracer = Tracer::on(queue);

        let began = Instant::now();
        let mut probe = tracer
            .root("probe", began, || vec![KeyValue::new("shoot", "a")])
            .unwrap();
        let carried = probe.traceparent();
        probe.set("outcome", "leases_expired");
        drop(probe);
        let mut operation = tracer.below(&carried, "operation", began, Vec::new).unwrap();
        let write = tracer.child(&operation, "write", began, Vec::new);
        operation.event("turned", Vec::new());
        operation.fail("contrary verdict");
        drop((write, operation));
        stop.cancel();
        task.await.unwrap().unwrap();

        let got = collector.got.lock();
        let [probe, write, operation] = &got[..] else {
            panic!("{got:?}");
        };
        let ids = [probe, write, operation].map(|span| span.span_context.trace_id());
        assert!(ids.iter().all(|id| *id == ids[0]));
        assert_eq!(operation.parent_span_id, probe.span_context.span_id());
        assert_eq!(write.parent_span_id, operation.span_context.span_id());
        assert_eq!(probe.attributes.len(), 2);
        assert_eq!(operation.status, Status::error("contrary verdict"));
        assert_eq!(counted(&metrics, "exported"), 3);
    });
}

#[test]
fn a_collector_that_hangs_or_fails_costs_spans_and_no_time() {
    for (hangs, fails) in [(true, false), (false, true)] {
        story(|metrics| async move {
            let (collector, stop) = (
                Collector {
                    hangs,
                    fails,
                    ..Collector::default()
                },
                CancellationToken::new(),
            );
            let (queue, spans) = Queue::new();
            let capacity = spans.max_capacity();
            let task = tokio::spawn(export(spans, collector, stop.clone()));
            let tracer = Tracer::on(queue);
            let parent = tracer.root("probe", Instant::now(), Vec::new).unwrap();
            for _ in 0..capacity + 100 {
                assert!(tracer.child(&parent, "write", Instant::now(), Vec::new).is_some());
            }
            assert_eq!(counted(&metrics, "dropped"), 100, "the queue is bounded");
            // The clock is paused: this is as long as four batches may take.
            tokio::time::sleep(5 * EXPORT_TIMEOUT).await;
            assert_eq!(counted(&metrics, "failed"), capacity);
            assert_eq!(capacity % BATCH, 0);
            stop.cancel();
            task.await.unwrap().unwrap();
        });
    }
}

#[test]
fn a_seed_that_loses_all_shoots_begins_only_so_many_traces() {
    story(|metrics| async move {
        let (queue, _spans) = Queue::new();
        let tracer = Tracer::on(queue);
        let begun = (0..10_000)
            .filter_map(|_| tracer.root("probe", Instant::now(), Vec::new))
            .count();
        assert_eq!(begun as f64, BURST);
        assert_eq!(counted(&metrics, "limited"), 10_000 - begun);
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let later = (0..100)
            .filter_map(|_| tracer.root("probe", Instant::now(), Vec::new))
            .count();
        assert_eq!(later as f64, TRACES_PER_SECOND);
    });
}

#[test]
fn a_context_that_is_none_begins_nothing() {
    let (queue, _spans) = Queue::new();
    let tracer = Tracer::on(queue);
    for bad in [
        "",
        "nonsense",
        "00-00000000000000000000000000000000-0000000000000000-01",
        // The client that began this trace does not want it recorded.
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
        &format!(
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01{}",
            "0".repeat(200)
        ),
    ] {
        assert!(
            tracer.below(bad, "operation", Instant::now(), Vec::new).is_none(),
            "{bad}"
        );
    }
}

#[test]
fn endpoints_are_checked() {
    let parse = |text: &str| text.parse::<OtlpEndpoint>();
    let good = parse("http://otel-collector.garden.svc:4317").unwrap();
    assert_eq!(
        (good.address.as_str(), good.tls),
        ("otel-collector.garden.svc:4317", false)
    );
    let good = parse("https://[::1]").unwrap();
    assert_eq!((good.address.as_str(), good.host.as_str()), ("[::1]:4317", "::1"));
    for bad in [
        "",
        "collector:4317",
        "grpc://a:1",
        "http://a:1/v1/traces",
        "http://u:p@a:1",
        "http://:4317",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}
