//! Joins the parts; the only place that knows all of them.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tonic::service::RoutesBuilder;
use watchdog_kube::membership::{Discovery, Ownership, Timing};
use watchdog_kube::replica::Replica;
use watchdog_proto::probe::v1::lease_probe_service_server::LeaseProbeServiceServer;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::grpc_client::Dialer;
use watchdog_runtime::grpc_server::{Api, MAX_REQUEST_BYTES};
use watchdog_runtime::process::{Bound, Process};
use watchdog_runtime::service_builder::ServiceBuilder;
use watchdog_watch_stream::server::StateStore;
use watchdog_watch_stream::stream::Streams;
use watchdog_watch_stream::verdicts::follow_replicas;

use crate::cluster::watches;
use crate::collector::VerdictCollector;
use crate::config::Config;
use crate::controller::prober::{Endpoint, Shared};
use crate::controller::prober_manager::ProberManager;
use crate::domain::moment::Moment;
use crate::grpc::service::Service;
use crate::grpc::view::{Peers, View};
use crate::{host_clock, metrics};

/// Name of the service in membership Leases and in its requests.
pub const SERVICE: &str = "lease-probe";

/// Binds the sockets and starts all parts.
///
/// # Errors
/// When an address cannot be bound, the TLS files cannot be used or there is no way to the seed.
pub async fn build(config: Config, process: Process) -> anyhow::Result<Bound> {
    metrics::register();
    watchdog_watch_stream::metrics::register();
    let Config {
        common,
        server_name,
        otlp_endpoint,
        file,
    } = config;
    let base = ServiceBuilder::bind(common, process).await?;
    let (tasks, readiness, draining) = (base.tasks.clone(), base.readiness.clone(), base.draining.clone());
    let rules = base.follow(file);
    let current = rules.borrow().clone();
    let Replica { seed, membership } =
        Replica::join(&base, SERVICE, Ownership::Overlapping, Timing::PRODUCTION).await?;
    let namespace = base.common.namespace.as_str();
    let (replicas, discovery) = Discovery::follow(
        seed.clone(),
        namespace,
        SERVICE,
        Timing::PRODUCTION,
        readiness.clone(),
        draining.clone(),
    );
    tasks.critical("discovery", async move {
        discovery.run().await;
        Ok(())
    });

    let shared = Arc::new(Shared {
        seed: seed.clone(),
        clock: Clock::start(),
        identity: base.identity.clone(),
        tracer: base.tracer(otlp_endpoint.as_ref(), SERVICE)?,
        random: Box::new(rand::random),
        probing: AtomicUsize::new(0),
        close: AtomicUsize::new(0),
    });
    let verdicts = StateStore::new();
    let owns = {
        let membership = membership.clone();
        Arc::new(move |shoot: &str| membership.owns(shoot))
    };
    let manager = ProberManager::new(shared.clone(), verdicts.clone(), current, owns);
    let clusters = watches::clusters(seed.clone(), manager.clone(), readiness.clone(), draining.clone());
    tasks.critical("clusters", clusters);
    for (name, endpoint) in [
        ("kubeconfigs", Endpoint::Internal),
        ("external-kubeconfigs", Endpoint::External),
    ] {
        let follow = watches::kubeconfigs(
            seed.clone(),
            manager.clone(),
            endpoint,
            rules.clone(),
            readiness.clone(),
            draining.clone(),
        );
        tasks.critical(name, follow);
    }
    tasks.critical("reconfigure", {
        let (manager, stop, mut rules, mut owned) = (
            manager.clone(),
            draining.clone(),
            rules.clone(),
            membership.subscribe(),
        );
        async move {
            loop {
                tokio::select! {
                    () = stop.cancelled() => break,
                    Ok(()) = rules.changed() => manager.configured(rules.borrow_and_update().clone()),
                    Ok(()) = owned.changed() => {
                        owned.mark_unchanged();
                        manager.ownership_changed();
                    }
                }
            }
            manager.stop();
            Ok(())
        }
    });
    tasks.critical("host-clock", {
        let (verdicts, replica, stop) = (verdicts.clone(), base.identity.clone(), draining.clone());
        async move {
            host_clock::watch(verdicts, replica, stop).await;
            Ok(())
        }
    });
    let preflight = watches::preflight(seed, namespace.to_owned(), rules, readiness, draining.clone());
    tasks.critical("permissions", preflight);

    let view = View::default();
    let clock = shared.clock;
    let now = move || Moment(clock.now_micros());
    let local = view
        .clone()
        .follow_local(base.identity.clone(), verdicts.clone(), now, draining.clone());
    tasks.critical("local-verdicts", local);
    let exists = {
        let manager = manager.clone();
        move |shoot: &str| manager.exists(shoot)
    };
    tasks.critical("tidy-verdicts", view.clone().tidy(exists, now, draining.clone()));
    let dialer = Dialer {
        tls: base.tls.clone(),
        server_name,
    };
    let handler = Peers {
        view: view.clone(),
        now,
    };
    let me = Some(base.identity.clone());
    let peers = follow_replicas(
        me,
        replicas,
        dialer,
        handler,
        base.readiness.clone(),
        draining.clone(),
    );
    tasks.critical("peer-verdicts", peers);

    let is_unknown = {
        let manager = manager.clone();
        Box::new(move |shoot: &str| manager.is_unknown(shoot))
    };
    let service = Service {
        local: verdicts.clone(),
        view,
        is_unknown,
        streams: Streams::new(draining),
        clock,
    };
    let mut routes = RoutesBuilder::default();
    routes.add_service(LeaseProbeServiceServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES));
    let api = Api {
        routes,
        service_names: &["gardener.watchdog.probe.v1.LeaseProbeService"],
        descriptors: watchdog_proto::FILE_DESCRIPTOR_SET,
    };
    base.serve(
        api,
        vec![Arc::new(VerdictCollector {
            manager,
            verdicts,
            shared,
        })],
    )
}
