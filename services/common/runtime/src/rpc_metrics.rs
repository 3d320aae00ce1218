//! Duration and code of every RPC, on the side of the server and of the client.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use prost::Message as _;
use prost_types::{FileDescriptorSet, MethodDescriptorProto};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{BoxError, Layer, Service};

use crate::metrics::{Gauge, GaugeGuard, Histogram, Labels};

pub(crate) const SERVED: Histogram<(MethodName, Code)> = Histogram::new(
    "watchdog_grpc_server_handling_seconds",
    "Duration of the RPCs that this program served, by service, method and code; a stream counts when it ends.",
);

pub(crate) const SERVING: Gauge<MethodName> = Gauge::new(
    "watchdog_grpc_server_in_flight",
    "RPCs that this program is serving, open streams included, by service and method.",
);

pub(crate) const CALLED: Histogram<(MethodName, Code)> = Histogram::new(
    "watchdog_grpc_client_handling_seconds",
    "Duration of the RPCs that this program made, by service, method and code; a stream counts when it ends.",
);

pub(crate) const CALLING: Gauge<MethodName> = Gauge::new(
    "watchdog_grpc_client_in_flight",
    "RPCs that this program is making, open streams included, by service and method.",
);

/// The service and the method of an RPC, with a slash between them.
#[derive(Debug, Clone)]
pub(crate) struct MethodName(String);

impl Labels for MethodName {
    fn each(&self, add: &mut dyn FnMut(&'static str, &str)) {
        let (service, method) = self.0.split_once('/').unwrap_or(("unknown", "unknown"));
        add("service", service);
        add("method", method);
    }
}

impl Labels for Code {
    fn each(&self, add: &mut dyn FnMut(&'static str, &str)) {
        add("code", code_label(*self));
    }
}

/// Registers the help texts.
pub(crate) fn register() {
    SERVED.register();
    SERVING.register();
    CALLED.register();
    CALLING.register();
}

/// The methods of a server by their paths.
pub(crate) type Methods = BTreeMap<String, MethodDescriptorProto>;

/// Reads the methods in these encoded descriptor sets.
///
/// # Errors
/// When one of them cannot be decoded.
pub(crate) fn methods(descriptors: &[&[u8]]) -> Result<Methods, prost::DecodeError> {
    let mut methods = Methods::new();
    for set in descriptors {
        for file in FileDescriptorSet::decode(*set)?.file {
            for service in &file.service {
                let path = |method: &MethodDescriptorProto| {
                    format!("/{}.{}/{}", file.package(), service.name(), method.name())
                };
                methods.extend(service.method.iter().map(|method| (path(method), method.clone())));
            }
        }
    }
    Ok(methods)
}

/// A layer that measures RPCs.
#[derive(Debug, Clone)]
pub struct RpcMetrics {
    duration: &'static Histogram<(MethodName, Code)>,
    in_flight: &'static Gauge<MethodName>,
    /// The methods that have series of their own; all other paths share one, since a caller can ask for any path. None
    /// for a client, whose paths come from its generated code.
    known: Option<Arc<Methods>>,
}

impl RpcMetrics {
    /// Counts the calls that a server of these methods gets.
    pub(crate) const fn server(methods: Arc<Methods>) -> Self {
        Self {
            duration: &SERVED,
            in_flight: &SERVING,
            known: Some(methods),
        }
    }

    /// Counts the calls that a client makes.
    #[must_use]
    pub const fn client() -> Self {
        Self {
            duration: &CALLED,
            in_flight: &CALLING,
            known: None,
        }
    }

    fn start(&self, path: &str) -> RunningRpc {
        let is_known = self.known.as_ref().is_none_or(|known| known.contains_key(path));
        let name = path.strip_prefix('/').filter(|_| is_known).unwrap_or_default();
        let method = MethodName(name.to_owned());
        RunningRpc {
            duration: self.duration,
            _in_flight: self.in_flight.track(method.clone()),
            method,
            started: Instant::now(),
            code: OnceLock::new(),
        }
    }
}

impl<S> Layer<S> for RpcMetrics {
    type Service = Measured<S>;

    fn layer(&self, inner: S) -> Measured<S> {
        Measured {
            inner,
            metrics: self.clone(),
        }
    }
}

/// A gRPC service or channel whose RPCs are measured.
#[derive(Debug, Clone)]
pub struct Measured<S> {
    inner: S,
    metrics: RpcMetrics,
}

impl<S, B> Service<Request<Body>> for Measured<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.inner
            .poll_ready(context)
            .map_err(|error| Status::from_error(error.into()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let call = Arc::new(self.metrics.start(request.uri().path()));
        let response = self.inner.call(request);
        Box::pin(async move {
            let failed = call.clone();
            let failed = move |status: &Status| failed.ended(status.code());
            let response = response.await.map_err(|error| Status::from_error(error.into()));
            let response = response.inspect_err(&failed)?;
            call.ended_with(response.headers());
            // The code of an answer with a body is in its trailers.
            let ended = move |frame: &Frame<Bytes>| {
                if let Some(trailers) = frame.trailers_ref() {
                    call.ended_with(trailers);
                }
            };
            Ok(response.map(|body| Body::new(Body::new(body).inspect_frame(ended).inspect_err(failed))))
        })
    }
}

/// A call under way. It is counted when it is dropped; one without a result was cancelled.
#[derive(Debug)]
struct RunningRpc {
    duration: &'static Histogram<(MethodName, Code)>,
    _in_flight: GaugeGuard,
    method: MethodName,
    started: Instant,
    code: OnceLock<Code>,
}

impl RunningRpc {
    fn ended(&self, code: Code) {
        self.code.get_or_init(|| code);
    }

    /// Notes the code of headers that end a call; others have none.
    fn ended_with(&self, headers: &HeaderMap) {
        if let Some(status) = Status::from_header_map(headers) {
            self.ended(status.code());
        }
    }
}

impl Drop for RunningRpc {
    fn drop(&mut self) {
        let labels = (self.method.clone(), *self.code.get().unwrap_or(&Code::Cancelled));
        self.duration.record(labels, self.started.elapsed());
    }
}

/// The name of a code, as the specification of gRPC has it.
pub(crate) const fn code_label(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;
    use tokio_util::sync::CancellationToken;
    use tonic::transport::{Channel, Server};
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    use super::*;

    /// Runs something against a health server; both sides are measured. Gives what the metrics say after it.
    fn measured<F>(run: impl FnOnce(Measured<Channel>, PrometheusHandle, CancellationToken) -> F) -> String
    where
        F: Future<Output = ()>,
    {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        metrics::with_local_recorder(&recorder, || {
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                let (_reporter, health) = tonic_health::server::health_reporter();
                let methods = methods(&[tonic_health::pb::FILE_DESCRIPTOR_SET]).unwrap();
                let layer = RpcMetrics::server(Arc::new(methods));
                let stop = CancellationToken::new();
                let server = Server::builder()
                    .layer(layer)
                    .add_service(health)
                    .serve_with_incoming_shutdown(
                        TcpListenerStream::new(listener),
                        stop.clone().cancelled_owned(),
                    );
                let server = tokio::spawn(server);
                let channel = Channel::from_shared(format!("http://{address}"))
                    .unwrap()
                    .connect_lazy();
                run(RpcMetrics::client().layer(channel), handle.clone(), stop.clone()).await;
                stop.cancel();
                server.await.unwrap().unwrap();
            });
        });
        handle.render()
    }

    fn request(service: &str) -> HealthCheckRequest {
        HealthCheckRequest {
            service: service.to_owned(),
        }
    }

    fn has(text: &str, series: &str) -> bool {
        text.lines().any(|line| line == series)
    }

    #[test]
    fn answers_are_counted_with_their_code_on_both_sides() {
        let text = measured(|channel, _, _| async move {
            let mut client = HealthClient::new(channel);
            client.check(request("")).await.unwrap();
            let unknown = client.check(request("no.such.Service")).await.unwrap_err();
            assert_eq!(unknown.code(), Code::NotFound);
        });
        for side in ["server", "client"] {
            for code in ["OK", "NOT_FOUND"] {
                let series = format!(
                    "watchdog_grpc_{side}_handling_seconds_count{{service=\"grpc.health.v1.Health\",method=\"Check\",\
                     code=\"{code}\"}} 1"
                );
                assert!(has(&text, &series), "{series} is not in\n{text}");
            }
        }
    }

    #[test]
    fn a_stream_is_in_flight_until_its_reader_drops_it() {
        let open = |side: &str, n: u8| {
            format!(
                "watchdog_grpc_{side}_in_flight{{service=\"grpc.health.v1.Health\",method=\"Watch\"}} {n}"
            )
        };
        let text = measured(|channel, metrics, _| async move {
            let mut stream = HealthClient::new(channel)
                .watch(request(""))
                .await
                .unwrap()
                .into_inner();
            stream.message().await.unwrap().unwrap();
            for side in ["server", "client"] {
                assert!(has(&metrics.render(), &open(side, 1)), "{side}");
            }
        });
        for side in ["server", "client"] {
            assert!(has(&text, &open(side, 0)), "{side}: {text}");
            let series = format!(
                "watchdog_grpc_{side}_handling_seconds_count{{service=\"grpc.health.v1.Health\",method=\"Watch\",\
                 code=\"CANCELLED\"}} 1"
            );
            assert!(has(&text, &series), "{series} is not in\n{text}");
        }
    }

    #[test]
    fn a_server_that_is_not_there_is_unavailable() {
        let text = measured(|_, _, _| async {
            let nobody = TcpListener::bind("127.0.0.1:0")
                .await
                .unwrap()
                .local_addr()
                .unwrap();
            let channel = Channel::from_shared(format!("http://{nobody}"))
                .unwrap()
                .connect_lazy();
            let mut client = HealthClient::new(RpcMetrics::client().layer(channel));
            let error = client.check(request("")).await.unwrap_err();
            assert_eq!(error.code(), Code::Unavailable);
            let reason = crate::failure::Reason::of_grpc_status(&error);
            assert_eq!(
                reason,
                crate::failure::Reason::ConnectionRefused,
                "the cause is kept"
            );
        });
        assert!(
            text.contains("method=\"Check\",code=\"UNAVAILABLE\"} 1"),
            "{text}"
        );
    }

    #[test]
    fn paths_that_the_server_does_not_have_share_one_series() {
        let text = measured(|mut channel, _, _| async move {
            for path in ["/a.B/C", "/d.E/F", "/x"] {
                std::future::poll_fn(|context| channel.poll_ready(context))
                    .await
                    .unwrap();
                // Past the client's own layer, whose paths are those of generated code.
                let request = Request::post(path).body(Body::empty()).unwrap();
                channel.inner.call(request).await.unwrap();
            }
        });
        let series = "watchdog_grpc_server_handling_seconds_count{service=\"unknown\",method=\"unknown\",\
                      code=\"UNIMPLEMENTED\"} 3";
        assert!(has(&text, series), "{text}");
    }
}
