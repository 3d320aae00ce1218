//! Joins the parts; the only place that knows all of them.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::RoutesBuilder;
use watchdog_feed::server::Feed;
use watchdog_feed::stream::Streams;
use watchdog_kube::membership::{Discovery, Membership, MembershipConfig, Ownership};
use watchdog_kube::permissions::Permission;
use watchdog_proto::scaling::v1::scaling_service_server::ScalingServiceServer;
use watchdog_runtime::admin::{self, Admin};
use watchdog_runtime::clock::Clock;
use watchdog_runtime::grpc_client::Dialer;
use watchdog_runtime::grpc_server::{self, Api, MAX_REQUEST_BYTES};
use watchdog_runtime::listeners::Listeners;
use watchdog_runtime::process::{Bound, Process};
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::tasks::Tasks;
use watchdog_runtime::tls::Tls;

use crate::cluster::clusters::Clusters;
use crate::cluster::resources::Resources;
use crate::cluster::writer::Writer;
use crate::cluster::{permissions, watches};
use crate::config::Config;
use crate::engine::Engine;
use crate::engine::inputs::Inputs;
use crate::engine::tally::Tally;
use crate::grpc::observers::{self, Addresses};
use crate::grpc::service::Service;
use crate::metrics;
use crate::scrape::Scrape;
use crate::verdicts::Verdicts;
use crate::wake::Wakes;

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
    watchdog_feed::metrics::register();
    watchdog_kube::metrics::register();
    let Config {
        common,
        lease_probe,
        server_name,
        write_rate,
        timing,
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
    let agent = concat!("scaling-coordinator/", env!("CARGO_PKG_VERSION"));
    let seed = watchdog_kube::client::seed(common.kubeconfig.as_deref(), agent).await?;

    let tasks = Tasks::default();
    let draining = tasks.draining();
    let readiness = Readiness::default();
    let rules = file.subscribe();
    tasks.critical("config-file", file.follow(draining.clone()));
    if let Some(tls) = tls.clone() {
        tasks.critical("tls-files", tls.follow(draining.clone()));
    }

    let wakes = Arc::new(Wakes::default());
    let config = MembershipConfig {
        client: seed.clone(),
        namespace: common.namespace.clone(),
        service: SERVICE,
        identity: identity.clone(),
        address: common.advertised(grpc_addr),
        ownership: Ownership::Exclusive,
        timing,
    };
    // It releases its Lease at the drain, but not before the writes under way have ended.
    let (membership, task) = Membership::join(config, draining.clone());
    tasks.critical("membership", async move {
        task.run().await;
        Ok(())
    });
    readiness.block(
        "membership",
        "this replica has not joined yet: it needs its own Lease, and a list of the others'",
    );
    tasks.critical(
        "joined",
        until_joined(membership.clone(), readiness.clone(), draining.clone()),
    );
    tasks.critical(
        "ownership",
        wake_all_on(membership.subscribe(), wakes.clone(), draining.clone()),
    );
    tasks.critical(
        "configuration",
        wake_all_on(rules.clone(), wakes.clone(), draining.clone()),
    );

    let clusters = Arc::new(Clusters::new(seed.clone(), wakes.clone()));
    let follow = watches::clusters(
        seed.clone(),
        clusters.clone(),
        readiness.clone(),
        draining.clone(),
    );
    tasks.critical("clusters", follow);
    let resources = Arc::new(Resources::new(wakes.clone()));
    let kinds_known = watch::Sender::new(0);
    let follow = watches::resources(
        seed.clone(),
        resources.clone(),
        rules.clone(),
        kinds_known.clone(),
        readiness.clone(),
        draining.clone(),
    );
    tasks.critical("resources", follow);
    let check = permissions::check(
        seed.clone(),
        resources.clone(),
        membership_permissions(&common.namespace),
        kinds_known.subscribe(),
        readiness.clone(),
        draining.clone(),
    );
    tasks.critical("permissions", check);

    let verdicts = Arc::new(Verdicts::new(wakes.clone()));
    let addresses = if lease_probe.is_empty() {
        let (addresses, discovery) = Discovery::follow(
            seed.clone(),
            &common.namespace,
            LEASE_PROBE,
            timing,
            draining.clone(),
        );
        tasks.critical("discovery", async move {
            discovery.run().await;
            Ok(())
        });
        addresses
    } else {
        let named = lease_probe
            .iter()
            .map(|address| (address.as_str().into(), address.as_str().into()));
        watch::Sender::new(named.collect::<Addresses>()).subscribe()
    };
    let dialer = Dialer {
        tls: tls.clone(),
        server_name,
    };
    tasks.critical(
        "observers",
        observers::observe(addresses, dialer, verdicts.clone(), draining.clone()),
    );

    let (events, publish) =
        watchdog_kube::events::recorder(seed.clone(), SERVICE, &identity, draining.clone());
    tasks.critical("events", publish);
    let inputs = Arc::new(Inputs {
        config: rules,
        verdicts: verdicts.clone(),
        clusters: clusters.clone(),
        resources: resources.clone(),
        membership,
        draining: draining.clone(),
    });
    let (shoots, tally) = (Feed::new(), Arc::new(Tally::default()));
    let writer = Writer::new(seed, clusters, resources);
    let engine = Engine::new(
        inputs.clone(),
        wakes,
        writer,
        shoots.clone(),
        tally.clone(),
        events,
        write_rate,
    );
    tasks.critical("engine", engine.run());

    let service = Service {
        shoots: shoots.clone(),
        overview: inputs,
        streams: Streams::new(draining.clone()),
        clock: Clock::start(),
    };
    let mut routes = RoutesBuilder::default();
    routes.add_service(ScalingServiceServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES));
    let api = Api {
        routes,
        service_names: &["gardener.watchdog.scaling.v1.ScalingService"],
        descriptors: watchdog_proto::FILE_DESCRIPTOR_SET,
    };
    let serve = grpc_server::serve(listeners.grpc, tls, api, readiness.clone(), draining.clone());
    tasks.critical("grpc", serve);
    let admin = Admin {
        readiness: readiness.clone(),
        metrics: process.metrics,
        collectors: vec![Arc::new(Scrape {
            shoots,
            tally,
            verdicts,
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

/// Not ready before this replica takes part in sharing the shoots.
async fn until_joined(
    membership: Membership,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    tokio::select! {
        () = membership.joined() => readiness.clear("membership"),
        () = stop.cancelled() => {}
    }
    stop.cancelled().await;
    Ok(())
}

/// Has every shoot looked at whenever something changes that concerns all of them.
async fn wake_all_on<T: Send + Sync + 'static>(
    mut changes: watch::Receiver<T>,
    wakes: Arc<Wakes>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = changes.changed() => {
                changed?;
                changes.mark_unchanged();
                wakes.all();
            }
        }
    }
}

/// What the membership must be allowed, and the discovery of lease-probe.
fn membership_permissions(namespace: &str) -> Vec<Permission> {
    let verbs = ["get", "list", "watch", "create", "update", "delete"];
    let leases = |verb| Permission::new(verb, "coordination.k8s.io", "leases").in_namespace(namespace);
    verbs.into_iter().map(leases).collect()
}
