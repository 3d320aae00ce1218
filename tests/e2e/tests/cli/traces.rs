//! OpenTelemetry traces: one verdict from the probe to the scale writes, across two services, as a collector sees it.

use std::collections::HashMap;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::service::RoutesBuilder;
use tonic::{Request, Response, Status};
use watchdog_proto::probe::v1::Outcome;
use watchdog_runtime::allowed_clients::AllowedClients;
use watchdog_runtime::grpc_server::{self, Api};
use watchdog_runtime::readiness::Readiness;
use watchdog_sandbox::Cut;
use watchdog_test_support::binaries::{LEASE_PROBE, SCALING_COORDINATOR};
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{BOUND, until};
use watchdog_test_support::watchdog::{SERVER_NAME, Setup};

/// A span, and the service that made it.
#[derive(Debug, Clone)]
struct ServiceSpan {
    service: String,
    span: Span,
}

impl ServiceSpan {
    fn attribute(&self, key: &str) -> String {
        attribute(&self.span.attributes, key)
    }

    fn is(&self, service: &str, name: &str) -> bool {
        self.service == service && self.span.name == name
    }

    fn is_below(&self, parent: &Self) -> bool {
        self.span.trace_id == parent.span.trace_id && self.span.parent_span_id == parent.span.span_id
    }
}

fn attribute(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|found| found.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        _ => String::new(),
    }
}

/// Takes what it is sent.
#[derive(Debug, Clone, Default)]
struct Collector {
    seen: Arc<Mutex<Vec<ServiceSpan>>>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource in request.into_inner().resource_spans {
            let of = resource.resource.unwrap_or_default();
            let service = attribute(&of.attributes, "service.name");
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let seen = spans.map(|span| ServiceSpan {
                service: service.clone(),
                span,
            });
            self.seen.lock().extend(seen);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Serves with TLS until the guard is dropped; gives the URL.
    async fn serve(&self, setup: &Setup) -> (String, DropGuard) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let stop = CancellationToken::new();
        let mut routes = RoutesBuilder::default();
        routes.add_service(TraceServiceServer::new(self.clone()));
        let api = Api {
            routes,
            service_names: &[],
            descriptors: &[],
        };
        tokio::spawn(grpc_server::serve(
            listener,
            Some(setup.server_tls("collector").unwrap()),
            AllowedClients::named(&[SERVER_NAME.to_owned()], &[]),
            api,
            "collector".into(),
            Readiness::default(),
            stop.clone(),
        ));
        (url, stop.drop_guard())
    }

    /// The spans of what followed from a probe with this outcome: the probe, the operation below it, the writes below
    /// that; none until all are there.
    fn story(
        &self,
        outcome: &str,
        operation: &str,
        writes: usize,
    ) -> Option<(ServiceSpan, ServiceSpan, Vec<ServiceSpan>)> {
        let seen = self.seen.lock().clone();
        let probe = seen
            .iter()
            .find(|seen| seen.is("lease-probe", "probe") && seen.attribute("outcome") == outcome)?;
        let operation = seen
            .iter()
            .find(|seen| seen.is("scaling-coordinator", operation) && seen.is_below(probe))?;
        let below: Vec<_> = seen
            .iter()
            .filter(|seen| seen.is("scaling-coordinator", "write") && seen.is_below(operation))
            .cloned()
            .collect();
        (below.len() >= writes).then(|| (probe.clone(), operation.clone(), below))
    }

    async fn wait_for_story(
        &self,
        outcome: &str,
        operation: &str,
        writes: usize,
    ) -> (ServiceSpan, ServiceSpan, Vec<ServiceSpan>) {
        let what = format!("the trace of {outcome}");
        let story = until(&what, BOUND, || async {
            Ok(self.story(outcome, operation, writes))
        });
        let found = story.await;
        found.unwrap_or_else(|error| panic!("{error}: {:#?}", self.seen.lock()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_one_trace_from_the_probe_to_the_last_write() {
    let mut fixture = SandboxFixture::start("traces", &["alpha"]).await.unwrap();
    let collector = Collector::default();
    let (url, _serving) = collector.serve(&fixture.setup).await;
    fixture.setup.trace(LEASE_PROBE, &url);
    fixture.setup.trace(SCALING_COORDINATOR, &url);
    let (probe, _coordinator) = (
        fixture.lease_probe().await.unwrap(),
        fixture.coordinator().await.unwrap(),
    );
    let alpha = fixture.shoot("alpha").unwrap();
    let name = alpha.namespace().to_owned();
    fixture
        .wait_outcome(&probe, &name, Outcome::Healthy, BOUND)
        .await
        .unwrap();

    alpha.cut(Cut::All);
    fixture.wait_replicas(&alpha, 0, BOUND).await.unwrap();
    // Each of the three resources is scaled in one write.
    let (root, operation, writes) = collector.wait_for_story("leases_expired", "scale down", 3).await;
    assert!(root.span.parent_span_id.is_empty());
    assert_eq!(root.attribute("shoot"), name);
    // Three of five are enough; they come one after the other.
    let count = |name: &str| root.attribute(name).parse::<usize>().unwrap();
    assert!(
        (3..=5).contains(&count("expired")) && count("candidates") == 5,
        "{root:?}"
    );
    assert!(operation.attribute("reason").contains("LEASES_EXPIRED"));
    let traceparent = fixture.verdict(&probe, &name).await.unwrap().traceparent;
    let trace: String = root
        .span
        .trace_id
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert!(
        traceparent.starts_with(&format!("00-{trace}-")),
        "the verdict names the trace: {traceparent}"
    );
    let mut done: HashMap<String, usize> = HashMap::new();
    for write in writes
        .iter()
        .filter(|write| write.attribute("result") == "applied")
    {
        *done.entry(write.attribute("resource")).or_default() += 1;
        assert!(write.span.start_time_unix_nano <= write.span.end_time_unix_nano);
        assert!(root.span.start_time_unix_nano <= write.span.start_time_unix_nano);
        assert!(write.span.end_time_unix_nano <= operation.span.end_time_unix_nano);
    }
    assert_eq!(done.len(), 3, "{done:?}");
    assert!(done.values().all(|writes| *writes == 1), "{done:?}");

    alpha.heal();
    fixture.wait_replicas(&alpha, 1, BOUND).await.unwrap();
    let (recovered, _, _) = collector.wait_for_story("healthy", "scale up", 3).await;
    assert_ne!(recovered.span.trace_id, root.span.trace_id);
    let spans = collector.seen.lock();
    let first = spans
        .iter()
        .find(|seen| seen.attribute("outcome.before") == "pending");
    assert!(first.is_none(), "a shoot that is well from the start is no news");
}
