//! Joins the parts; the only place that knows all of them.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tonic::service::RoutesBuilder;
use watchdog_feed::stream::Streams;
use watchdog_kube::events;
use watchdog_kube::membership::{self, Membership, MembershipConfig, Ownership, Timing};
use watchdog_kube::permissions::{self, preflight};
use watchdog_proto::weeder::v1::weeder_service_server::WeederServiceServer;
use watchdog_runtime::admin::{self, Admin};
use watchdog_runtime::clock::Clock;
use watchdog_runtime::grpc_server::{self, Api, MAX_REQUEST_BYTES};
use watchdog_runtime::listeners::Listeners;
use watchdog_runtime::process::{Bound, Process};
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::tasks::Tasks;
use watchdog_runtime::tls::Tls;

use crate::cluster::discovery::discover;
use crate::cluster::worker::Worker;
use crate::cluster::{namespaces, needs, pod_watches, services};
use crate::config::Config;
use crate::grpc::service::Service;
use crate::metrics;
use crate::scrape::Scrape;
use crate::state::State;

/// Name of the service in membership Leases and Kubernetes Events.
pub const SERVICE: &str = "weeder";

/// Binds the sockets and starts all parts.
///
/// # Errors
/// When an address cannot be bound, the TLS files cannot be used or there is no way to the seed.
pub async fn build(config: Config, process: Process) -> anyhow::Result<Bound> {
    metrics::register();
    watchdog_feed::metrics::register();
    watchdog_kube::metrics::register();
    membership::metrics::register();
    let Config { common, file } = config;
    let identity: Arc<str> = common.identity_or_random().into();
    let listeners = Listeners::bind(&common).await?;
    let (grpc_addr, admin_addr) = (listeners.grpc.local_addr()?, listeners.admin.local_addr()?);
    let tls = common
        .tls_paths()
        .map(Tls::load)
        .transpose()
        .map_err(anyhow::Error::msg)?;
    let agent = concat!("weeder/", env!("CARGO_PKG_VERSION"));
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
        identity: identity.to_string(),
        address: common.advertised(grpc_addr),
        ownership: Ownership::Overlapping,
        timing: Timing::PRODUCTION,
    };
    let (membership, join) = Membership::join(membership_config, draining.clone());
    tasks.critical("membership", async move {
        join.run().await;
        Ok(())
    });
    readiness.block(
        "membership",
        "this replica has not joined yet: it needs its own Lease, and a list of the others'",
    );
    let owns = {
        let membership = membership.clone();
        move |namespace: &str| membership.owns(namespace)
    };
    let state = Arc::new(State::new(&current, Clock::start(), owns));
    let shares = follow_shares(membership, state.clone(), readiness.clone(), draining.clone());
    tasks.critical("shares", shares);

    let (notices, publish) = events::recorder(seed.clone(), SERVICE, &identity, draining.clone());
    tasks.critical("events", publish);
    let worker = Worker {
        state: state.clone(),
        client: seed.clone(),
        events: notices,
    };
    tasks.critical("requests", worker.run(draining.clone()));
    tasks.critical(
        "pods",
        pod_watches::follow(seed.clone(), state.clone(), draining.clone()),
    );
    let follow = namespaces::follow(seed.clone(), state.clone(), readiness.clone(), draining.clone());
    tasks.critical("namespaces", follow);
    readiness.block("discovery", "not asked yet");
    tasks.critical("services", {
        let (state, readiness, stop) = (state.clone(), readiness.clone(), draining.clone());
        let namespace = common.namespace.clone();
        async move {
            let Some(source) = discover(&seed, &readiness, &stop).await else {
                return Ok(());
            };
            let mut needed = needs::permissions(source, &current);
            needed.extend(permissions::membership(&namespace));
            tokio::spawn(preflight(seed.clone(), needed, readiness.clone(), stop.clone()));
            services::follow(seed, source, state, rules, readiness, stop).await
        }
    });

    let service = Service {
        state: state.clone(),
        streams: Streams::new(draining.clone()),
        identity,
    };
    let mut routes = RoutesBuilder::default();
    routes.add_service(WeederServiceServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES));
    let api = Api {
        routes,
        service_names: &["gardener.watchdog.weeder.v1.WeederService"],
        descriptors: watchdog_proto::FILE_DESCRIPTOR_SET,
    };
    let serve = grpc_server::serve(listeners.grpc, tls, api, readiness.clone(), draining.clone());
    tasks.critical("grpc", serve);
    let admin = Admin {
        readiness: readiness.clone(),
        metrics: process.metrics,
        collectors: vec![Arc::new(Scrape { state })],
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

/// Tells the model whenever the replicas share the namespaces in another way; readiness waits for the first time.
async fn follow_shares(
    membership: Membership,
    state: Arc<State>,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut changes = membership.subscribe();
    loop {
        changes.mark_unchanged();
        state.update(|model, owns, now| model.shares_changed(owns, now));
        if membership.has_joined() {
            readiness.clear("membership");
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = changes.changed() => changed?,
        }
    }
}
