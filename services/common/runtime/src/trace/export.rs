//! The way of spans from where they end to the collector.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::WithTonicConfig as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{OtlpEndpoint, SPANS, SpanResult, Tracer};
use crate::grpc_client::Dialer;
use crate::tasks::Tasks;
use crate::tls::Tls;

/// Spans that wait at most: some hundred traces, below 4 MB.
const QUEUE: usize = 2048;

/// Spans that are sent together at most.
pub(super) const BATCH: usize = 512;

/// How long to wait for more spans to send together.
const LINGER: Duration = Duration::from_millis(500);

/// A collector that takes longer for a batch has not taken it.
pub(super) const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// When the process stops, what waits gets this time.
const LAST_EXPORT: Duration = Duration::from_secs(2);

/// Starts to export spans as those of this service and replica.
///
/// # Errors
/// When the endpoint cannot be called: https without certificates, or a host that is no name.
pub(crate) fn start(
    endpoint: &OtlpEndpoint,
    tls: Option<Tls>,
    service: &'static str,
    replica: &str,
    tasks: &Tasks,
) -> anyhow::Result<Tracer> {
    ensure!(
        !endpoint.tls || tls.is_some(),
        "--otlp-endpoint: https needs --tls-cert, --tls-key and --tls-client-ca, or --tls-authority"
    );
    let dialer = Dialer {
        tls: tls.filter(|_| endpoint.tls).map(|tls| tls.client()),
        server_name: endpoint.host.clone(),
    };
    let channel = dialer.channel(&endpoint.address).context("--otlp-endpoint")?;
    let mut exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_channel(channel)
        .build()
        .context("--otlp-endpoint")?;
    exporter.set_resource(
        &Resource::builder_empty()
            .with_attributes([
                KeyValue::new("service.namespace", "dependency-watchdog"),
                KeyValue::new("service.name", service),
                KeyValue::new("service.instance.id", replica.to_owned()),
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            ])
            .build(),
    );
    let (queue, spans) = Queue::new();
    tasks.critical("traces", export(spans, exporter, tasks.draining()));
    SPANS.register();
    tracing::info!(endpoint = endpoint.address, "exporting traces");
    Ok(Tracer::on(queue))
}

/// Takes spans that have ended. Never waits.
#[derive(Debug)]
pub(super) struct Queue(mpsc::Sender<SpanData>);

impl Queue {
    pub(super) fn new() -> (Self, mpsc::Receiver<SpanData>) {
        let (sender, spans) = mpsc::channel(QUEUE);
        (Self(sender), spans)
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.0.try_send(span).is_err() {
            SPANS.inc(SpanResult::Dropped);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Exports what has ended until `stop` is cancelled, and then what is left.
pub(super) async fn export(
    mut spans: mpsc::Receiver<SpanData>,
    exporter: impl SpanExporter,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut failing = false;
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = spans.recv_many(&mut batch, BATCH) => {}
        }
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(LINGER) => {}
        }
        while batch.len() < BATCH
            && let Ok(span) = spans.try_recv()
        {
            batch.push(span);
        }
        send(
            &exporter,
            std::mem::take(&mut batch),
            EXPORT_TIMEOUT,
            &mut failing,
        )
        .await;
    }
    spans.close();
    while let Ok(span) = spans.try_recv() {
        batch.push(span);
    }
    send(&exporter, batch, LAST_EXPORT, &mut failing).await;
    Ok(())
}

async fn send(exporter: &impl SpanExporter, batch: Vec<SpanData>, limit: Duration, failing: &mut bool) {
    let spans = batch.len();
    if spans == 0 {
        return;
    }
    let error = match tokio::time::timeout(limit, exporter.export(batch)).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no answer within {limit:?}")),
    };
    let result = if error.is_some() {
        SpanResult::Failed
    } else {
        SpanResult::Exported
    };
    SPANS.add(result, spans as u64);
    match (&error, *failing) {
        (Some(error), false) => tracing::warn!(
            error,
            spans,
            "cannot export traces to the collector; dropping them"
        ),
        (Some(error), true) => tracing::debug!(
            error,
            spans,
            "cannot export traces to the collector; dropping them"
        ),
        (None, true) => tracing::info!("the collector accepts traces again"),
        (None, false) => {}
    }
    *failing = error.is_some();
}
