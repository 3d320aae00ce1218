//! Duration and code of every RPC, on the side of the server and of the client.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use heck::ToShoutySnakeCase as _;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use prost::Message as _;
use prost_types::{FileDescriptorSet, MethodDescriptorProto};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{BoxError, Service};

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
        // As the specification of gRPC writes it.
        add("code", &format!("{self:?}").to_shouty_snake_case());
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

/// A gRPC service or channel whose RPCs are measured.
#[derive(Debug, Clone)]
pub struct Measured<S> {
    inner: S,
    duration: &'static Histogram<(MethodName, Code)>,
    in_flight: &'static Gauge<MethodName>,
    /// The methods that have series of their own; all other paths share one, since a caller can ask for any path. None
    /// for a client, whose paths come from its generated code.
    known: Option<Arc<Methods>>,
}

impl<S> Measured<S> {
    /// A server of these methods.
    pub(crate) const fn server(inner: S, methods: Arc<Methods>) -> Self {
        Self {
            inner,
            duration: &SERVED,
            in_flight: &SERVING,
            known: Some(methods),
        }
    }

    /// A channel to a server.
    #[must_use]
    pub const fn client(inner: S) -> Self {
        Self {
            inner,
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
        let call = Arc::new(self.start(request.uri().path()));
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
