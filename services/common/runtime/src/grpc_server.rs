//! The gRPC server: the service's own API, health and reflection, with limits, over mutual TLS or plaintext.

use std::sync::Arc;

use axum::middleware;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::service::RoutesBuilder;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower::util::MapResponseLayer;

use crate::accept::{self, GrpcService};
use crate::readiness::Readiness;
use crate::replica_metadata;
use crate::rpc_limits::{self, RpcLimits};
use crate::rpc_metrics::{self, Measured};
use crate::tls::Tls;

pub use crate::rpc_limits::MAX_REQUEST_BYTES;

/// The gRPC API of a service.
pub struct Api {
    /// The service's own routes.
    pub routes: RoutesBuilder,
    /// Full gRPC names of the services, for health.
    pub service_names: &'static [&'static str],
    /// Encoded descriptor set, for reflection.
    pub descriptors: &'static [u8],
}

/// Serves until `stop` is cancelled; then refuses new connections, lets the calls end that are under way, and cuts
/// what is left after 5 s. Health says `NOT_SERVING` until `readiness` has no blocker, and from the drain on. Answers
/// name the replica: `identity`.
///
/// # Errors
/// When the descriptors cannot be decoded or the transport fails for good.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    api: Api,
    identity: Arc<str>,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let described = replica_metadata::describe(&identity, readiness.clone());
    let (reporter, health) = tonic_health::server::health_reporter();
    report(&reporter, api.service_names, false).await;
    let reflection = descriptors(&api).build_v1()?;
    // A stream of requests is not read before its handler.
    let reflection = reflection.max_decoding_message_size(MAX_REQUEST_BYTES);
    // grpcurl before 1.8.8 and many consoles still ask with the older version.
    let reflection_alpha = descriptors(&api).build_v1alpha()?;
    let reflection_alpha = reflection_alpha.max_decoding_message_size(MAX_REQUEST_BYTES);
    let all = [
        api.descriptors,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ];
    let methods = Arc::new(rpc_metrics::methods(&all)?);
    let limits = RpcLimits::new(methods.clone());
    let mut routes = api.routes;
    routes
        .add_service(health)
        .add_service(reflection)
        .add_service(reflection_alpha);

    let served = routes.routes().prepare().into_axum_router();
    let served = served
        .layer(middleware::from_fn_with_state(limits, rpc_limits::limit))
        .layer(MapResponseLayer::new(described));
    let served = GrpcService::new(Measured::server(served, methods));
    let server = accept::serve(listener, tls, served, accept::MAX_AGE, stop.clone());
    tokio::select! {
        () = server => Ok(()),
        () = follow_readiness(&reporter, api.service_names, &readiness, &stop) => Ok(()),
    }
}

/// Reflection for what this program serves. The descriptors have the services of the other programs, too; only those
/// named here are listed.
fn descriptors(api: &Api) -> tonic_reflection::server::Builder<'static> {
    let served = [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ];
    let names = api.service_names.iter().chain(&served);
    let builder = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(api.descriptors)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        // So that clients can decode the details of errors.
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET);
    names.fold(builder, |builder, name| builder.with_service_name(*name))
}

/// Reports to health what `readiness` says, and NOT_SERVING from the drain on. Never ends.
async fn follow_readiness(
    reporter: &HealthReporter,
    names: &[&str],
    readiness: &Readiness,
    stop: &CancellationToken,
) {
    let follow = async {
        let mut ready = readiness.subscribe();
        loop {
            let serving = ready.borrow_and_update().is_empty();
            report(reporter, names, serving).await;
            // Its sender is in `readiness`.
            let _ = ready.changed().await;
        }
    };
    stop.run_until_cancelled(follow).await;
    report(reporter, names, false).await;
    std::future::pending().await
}

async fn report(reporter: &HealthReporter, names: &[&str], serving: bool) {
    let status = if serving {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    };
    // The empty name stands for the whole server.
    for name in [""].iter().chain(names) {
        reporter.set_service_status(*name, status).await;
    }
}
