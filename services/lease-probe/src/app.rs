//! Joins the parts; the only place that knows all of them.

use std::sync::Arc;

use tonic::service::RoutesBuilder;
use watchdog_feed::server::Feed;
use watchdog_feed::stream::Streams;
use watchdog_kube::membership::{self, Discovery, Membership, MembershipConfig, Ownership, Timing};
use watchdog_kube::permissions::{self, preflight};
use watchdog_proto::probe::v1::lease_probe_service_server::LeaseProbeServiceServer;
use watchdog_runtime::admin::{self, Admin};
use watchdog_runtime::clock::Clock;
use watchdog_runtime::grpc_client::Dialer;
use watchdog_runtime::grpc_server::{self, Api, MAX_REQUEST_BYTES};
use watchdog_runtime::listeners::Listeners;
use watchdog_runtime::process::{Bound, Process};
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::tasks::Tasks;
use watchdog_runtime::tls::Tls;

use crate::cluster::prober::{Endpoint, Shared};
use crate::cluster::registry::Registry;
use crate::cluster::watches;
use crate::config::Config;
use crate::domain::moment::Moment;
use crate::grpc::service::Service;
use crate::grpc::view::View;
use crate::metrics;
use crate::scrape::Scrape;

/// Name of the service in membership Leases.
pub const SERVICE: &str = "lease-probe";

/// Binds the sockets and starts all parts.
///
/// # Errors
/// When an address cannot be bound, the TLS files cannot be used or there is no way to the seed.
pub async fn build(config: Config, process: Process) -> anyhow::Result<Bound> {
    metrics::register();
    watchdog_feed::metrics::register();
    watchdog_kube::metrics::register();
    membership::metrics::register();
    let Config {
        common,
        server_name,
        file,
    } = config;
    let identity = common.identity_or_random();
    let listeners = Listeners::bind(&common).await?;
    let (grpc_addr, admin_addr) = (listeners.grpc.local_addr()?, listeners.admin.local_addr()?);
    let tls = common
        .tls_paths()
        .map(Tls::load)
        .transpose()
        .map_err(anyhow::Error::msg)?;
    let agent = concat!("lease-probe/", env!("CARGO_PKG_VERSION"));
    let seed = watchdog_kube::client::seed(common.kubeconfig.as_deref(), agent).await?;

    let tasks = Tasks::default();
    let draining = tasks.draining();
    let readiness = Readiness::default();
    let rules = file.subscribe();
    let current = rules.borrow().clone();
    tasks.critical("config-file", file.follow(draining.clone()));
    if let Some(tls) = tls.clone() {
        tasks.critical("tls-files", tls.follow(draining.clone()));
    }

    let membership_config = MembershipConfig {
        client: seed.clone(),
        namespace: common.namespace.clone(),
        service: SERVICE,
        identity: identity.clone(),
        address: common.advertised(grpc_addr),
        ownership: Ownership::Overlapping,
        timing: Timing::PRODUCTION,
    };
    let (membership, join) = Membership::join(membership_config, draining.clone());
    tasks.critical("membership", async move {
        join.run().await;
        Ok(())
    });
    let (replicas, discovery) = Discovery::follow(
        seed.clone(),
        &common.namespace,
        SERVICE,
        Timing::PRODUCTION,
        draining.clone(),
    );
    tasks.critical("discovery", async move {
        discovery.run().await;
        Ok(())
    });

    let shared = Arc::new(Shared {
        seed: seed.clone(),
        clock: Clock::start(),
        identity: identity.as_str().into(),
    });
    let verdicts = Feed::new();
    let owns = {
        let membership = membership.clone();
        Arc::new(move |shoot: &str| membership.owns(shoot))
    };
    let registry = Registry::new(shared.clone(), verdicts.clone(), current.clone(), owns);
    let clusters = watches::clusters(
        seed.clone(),
        registry.clone(),
        readiness.clone(),
        draining.clone(),
    );
    tasks.critical("clusters", clusters);
    for (name, endpoint) in [
        ("kubeconfigs", Endpoint::Internal),
        ("external-kubeconfigs", Endpoint::External),
    ] {
        let follow = watches::kubeconfigs(
            seed.clone(),
            registry.clone(),
            endpoint,
            rules.clone(),
            readiness.clone(),
            draining.clone(),
        );
        tasks.critical(name, follow);
    }
    tasks.critical("reconfigure", {
        let (registry, stop, mut rules, mut owned) = (
            registry.clone(),
            draining.clone(),
            rules.clone(),
            membership.subscribe(),
        );
        async move {
            loop {
                tokio::select! {
                    () = stop.cancelled() => break,
                    Ok(()) = rules.changed() => registry.configured(rules.borrow_and_update().clone()),
                    Ok(()) = owned.changed() => {
                        owned.mark_unchanged();
                        registry.ownership_changed();
                    }
                }
            }
            registry.stop();
            Ok(())
        }
    });
    let mut needed = watches::permissions(&current);
    needed.extend(permissions::membership(&common.namespace));
    let check = preflight(seed.clone(), needed, readiness.clone(), draining.clone());
    tokio::spawn(check);

    let view = View::default();
    let now = {
        let clock = shared.clock;
        move || Moment(clock.now_micros())
    };
    let local = view
        .clone()
        .follow_local(shared.identity.clone(), verdicts.clone(), now, draining.clone());
    tasks.critical("local-verdicts", local);
    let dialer = Dialer {
        tls: tls.clone(),
        server_name,
    };
    let peers = view
        .clone()
        .follow_peers(shared.identity.clone(), replicas, dialer, now, draining.clone());
    tasks.critical("peer-verdicts", peers);

    let service = Service {
        local: verdicts.clone(),
        view,
        streams: Streams::new(draining.clone()),
        clock: shared.clock,
    };
    let mut routes = RoutesBuilder::default();
    routes.add_service(LeaseProbeServiceServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES));
    let api = Api {
        routes,
        service_names: &["gardener.watchdog.probe.v1.LeaseProbeService"],
        descriptors: watchdog_proto::FILE_DESCRIPTOR_SET,
    };
    let serve = grpc_server::serve(listeners.grpc, tls, api, readiness.clone(), draining.clone());
    tasks.critical("grpc", serve);
    let admin = Admin {
        readiness: readiness.clone(),
        metrics: process.metrics,
        collectors: vec![Arc::new(Scrape {
            registry,
            verdicts,
            shared,
        })],
        log_level: process.log_level,
    };
    tasks.critical("admin", admin::serve(listeners.admin, admin, draining));
    Ok(Bound {
        grpc_addr,
        admin_addr,
        tasks,
        readiness,
    })
}
