//! Joins the parts; the only place that knows all of them.

pub mod release;

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::RoutesBuilder;
use watchdog_kube::membership::{Discovery, Ownership, Timing};
use watchdog_kube::replica::Replica;
use watchdog_proto::scaling::v1::scaling_service_server::ScalingServiceServer;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::grpc_client::Dialer;
use watchdog_runtime::grpc_server::{Api, MAX_REQUEST_BYTES};
use watchdog_runtime::process::{Bound, Process};
use watchdog_runtime::service_builder::ServiceBuilder;
use watchdog_watch_stream::server::StateStore;
use watchdog_watch_stream::stream::Streams;
use watchdog_watch_stream::verdicts::{Addresses, follow_replicas};

use crate::cluster::clusters::Clusters;
use crate::cluster::resources::Resources;
use crate::cluster::writer::Writer;
use crate::cluster::{permissions, watches};
use crate::config::Config;
use crate::controller::Controller;
use crate::controller::inputs::Inputs;
use crate::controller::trace_contexts::TraceContexts;
use crate::controller::traces::Traces;
use crate::controller::verdicts::Verdicts;
use crate::controller::work_queue::WorkQueue;
use crate::controller::write_counts::WriteCounts;
use crate::grpc::observers::Observers;
use crate::grpc::service::Service;
use crate::metrics;
use crate::metrics::collector::Scrape;

/// Name of the service in membership Leases, in Kubernetes Events and in its requests.
pub const SERVICE: &str = "scaling-coordinator";

/// Name of the service that observes the shoots, in its membership Leases.
const LEASE_PROBE: &str = "lease-probe";

/// Binds the sockets and starts all parts.
///
/// # Errors
/// When an address cannot be bound, the TLS files cannot be used or there is no way to the seed.
pub async fn build(config: Config, process: Process) -> anyhow::Result<Bound> {
    metrics::register();
    watchdog_watch_stream::metrics::register();
    let Config {
        common,
        lease_probe,
        server_name,
        request_rate,
        timing,
        otlp_endpoint,
        file,
        release: _,
    } = config;
    let base = ServiceBuilder::bind(common, process).await?;
    let (tasks, readiness, draining) = (base.tasks.clone(), base.readiness.clone(), base.draining.clone());
    let rules = base.follow(file);
    let Replica { seed, membership } = Replica::join(&base, SERVICE, Ownership::Exclusive, timing).await?;
    let namespace = base.common.namespace.as_str();

    let work_queue = Arc::new(WorkQueue::default());
    tasks.critical(
        "ownership",
        wake_all_on(membership.subscribe(), work_queue.clone(), draining.clone()),
    );
    // What is in force: the file, and what was dropped from it and is still to be restored.
    let in_force = watch::Sender::new(rules.borrow().clone());
    tasks.critical(
        "configuration",
        wake_all_on(in_force.subscribe(), work_queue.clone(), draining.clone()),
    );

    let clusters = Arc::new(Clusters::new(seed.clone(), work_queue.clone()));
    let resources = Arc::new(Resources::new(work_queue.clone()));
    let follow = watches::clusters(
        seed.clone(),
        clusters.clone(),
        resources.clone(),
        readiness.clone(),
        draining.clone(),
    );
    tasks.critical("clusters", follow);
    let kinds_known = watch::Sender::new(0);
    let follow = watches::resources(
        seed.clone(),
        resources.clone(),
        rules,
        in_force.clone(),
        kinds_known.clone(),
        readiness.clone(),
        draining.clone(),
    );
    tasks.critical("resources", follow);
    let check = permissions::check(
        seed.clone(),
        resources.clone(),
        watchdog_kube::permissions::membership(namespace),
        kinds_known.subscribe(),
        readiness,
        draining.clone(),
    );
    tasks.critical("permissions", check);

    let verdicts = Arc::new(Verdicts::new(work_queue.clone()));
    let addresses = if lease_probe.is_empty() {
        discover(&base, seed.clone(), timing)
    } else {
        let named = lease_probe
            .iter()
            .map(|address| (address.as_str().into(), address.as_str().into()));
        watch::Sender::new(named.collect::<Addresses>()).subscribe()
    };
    let dialer = Dialer {
        tls: base.tls.clone(),
        server_name,
    };
    let tracer = base.tracer(otlp_endpoint.as_ref(), SERVICE)?;
    let trace_contexts = Arc::new(TraceContexts::new(tracer.is_on()));
    let handler = Observers {
        verdicts: verdicts.clone(),
        trace_contexts: trace_contexts.clone(),
    };
    tasks.critical(
        "observers",
        follow_replicas(
            None,
            addresses,
            dialer,
            handler,
            base.readiness.clone(),
            draining.clone(),
        ),
    );

    let (events, publish) = watchdog_kube::events::recorder(
        seed.clone(),
        SERVICE,
        &base.identity,
        base.readiness.clone(),
        draining.clone(),
    );
    tasks.critical("events", publish);
    let inputs = Arc::new(Inputs {
        config: in_force.subscribe(),
        verdicts: verdicts.clone(),
        clusters: clusters.clone(),
        resources: resources.clone(),
        membership,
        draining: draining.clone(),
    });
    let (shoots, write_counts) = (StateStore::new(), Arc::new(WriteCounts::default()));
    let writer = Writer::new(seed, clusters, resources);
    let engine = Controller::new(
        inputs.clone(),
        work_queue,
        writer,
        shoots.clone(),
        write_counts.clone(),
        events,
        request_rate,
    );
    let engine = engine.traced(Traces::new(tracer, trace_contexts));
    tasks.critical("engine", engine.run());

    let service = Service {
        shoots: shoots.clone(),
        overview: inputs,
        streams: Streams::new(draining),
        clock: Clock::start(),
    };
    let mut routes = RoutesBuilder::default();
    routes.add_service(ScalingServiceServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES));
    let api = Api {
        routes,
        service_names: &["gardener.watchdog.scaling.v1.ScalingService"],
        descriptors: watchdog_proto::FILE_DESCRIPTOR_SET,
    };
    base.serve(
        api,
        vec![Arc::new(Scrape {
            shoots,
            write_counts,
            verdicts,
        })],
    )
}

/// Finds the replicas of lease-probe by their membership Leases.
fn discover(base: &ServiceBuilder, seed: kube::Client, timing: Timing) -> watch::Receiver<Addresses> {
    let namespace = base.common.namespace.as_str();
    let (addresses, discovery) = Discovery::follow(
        seed,
        namespace,
        LEASE_PROBE,
        timing,
        base.readiness.clone(),
        base.draining.clone(),
    );
    base.tasks.critical("discovery", async move {
        discovery.run().await;
        Ok(())
    });
    addresses
}

/// Queues every shoot for reconciliation whenever something changes that concerns all of them.
pub(crate) async fn wake_all_on<T: Send + Sync + 'static>(
    mut changes: watch::Receiver<T>,
    work_queue: Arc<WorkQueue>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            // The sender lives as long as the process.
            Ok(()) = changes.changed() => {
                changes.mark_unchanged();
                work_queue.add_all();
            }
        }
    }
}
