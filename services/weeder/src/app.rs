//! Joins the parts; the only place that knows all of them.

use std::sync::Arc;

use futures::future::try_join;
use tokio_util::sync::CancellationToken;
use tonic::service::RoutesBuilder;
use watchdog_feed::stream::Streams;
use watchdog_kube::events;
use watchdog_kube::membership::{Membership, Ownership, Timing};
use watchdog_kube::permissions::{self, preflight};
use watchdog_kube::replica::Replica;
use watchdog_proto::weeder::v1::weeder_service_server::WeederServiceServer;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::foundation::Foundation;
use watchdog_runtime::grpc_server::{Api, MAX_REQUEST_BYTES};
use watchdog_runtime::process::{Bound, Process};

use crate::cluster::discovery::discover;
use crate::cluster::worker::Worker;
use crate::cluster::{annotations, namespaces, needs, pod_watches, services};
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
    let Config {
        common,
        file,
        dependants_annotation,
    } = config;
    let base = Foundation::lay(common, process).await?;
    let (tasks, readiness, draining) = (base.tasks.clone(), base.readiness.clone(), base.draining.clone());
    let rules = base.follow(file);
    let current = rules.borrow().clone();
    let Replica { seed, membership } =
        Replica::join(&base, SERVICE, Ownership::Overlapping, Timing::PRODUCTION).await?;
    let owns = {
        let membership = membership.clone();
        move |namespace: &str| membership.owns(namespace)
    };
    let state = Arc::new(State::new(&current, Clock::start(), owns));
    let shares = follow_shares(membership, state.clone(), draining.clone());
    tasks.critical("shares", shares);

    let (notices, publish) = events::recorder(
        seed.clone(),
        SERVICE,
        &base.identity,
        base.readiness.clone(),
        draining.clone(),
    );
    tasks.critical("events", publish);
    let worker = Worker {
        state: state.clone(),
        client: seed.clone(),
        events: notices.clone(),
    };
    tasks.critical("requests", worker.run(draining.clone()));
    tasks.critical(
        "pods",
        pod_watches::follow(seed.clone(), state.clone(), readiness.clone(), draining.clone()),
    );
    let follow = namespaces::follow(seed.clone(), state.clone(), readiness.clone(), draining.clone());
    tasks.critical("namespaces", follow);
    if dependants_annotation {
        let (seed, state) = (seed.clone(), state.clone());
        let follow = annotations::follow(seed, state, notices.clone(), readiness.clone(), draining.clone());
        tasks.critical("annotations", follow);
    }
    readiness.block("discovery", "not asked yet");
    tasks.critical("services", {
        let (state, readiness, stop) = (state.clone(), readiness.clone(), draining.clone());
        let namespace = base.common.namespace.clone();
        async move {
            let Some(source) = discover(&seed, &readiness, &stop).await else {
                return Ok(());
            };
            let mut needed = needs::permissions(source, &current, dependants_annotation);
            needed.extend(permissions::membership(&namespace));
            // In the same task, whose end is heard of, also by a panic.
            let preflight = preflight(seed.clone(), needed, readiness.clone(), stop.clone());
            let follow = services::follow(seed, source, state, rules, readiness, stop);
            try_join(preflight, follow).await.map(drop)
        }
    });

    let service = Service {
        state: state.clone(),
        streams: Streams::new(draining),
        identity: base.identity.clone(),
    };
    let mut routes = RoutesBuilder::default();
    routes.add_service(WeederServiceServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES));
    let api = Api {
        routes,
        service_names: &["gardener.watchdog.weeder.v1.WeederService"],
        descriptors: watchdog_proto::FILE_DESCRIPTOR_SET,
    };
    base.serve(api, vec![Arc::new(Scrape { state })])
}

/// Tells the model whenever the replicas share the namespaces in another way.
async fn follow_shares(
    membership: Membership,
    state: Arc<State>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut changes = membership.subscribe();
    loop {
        changes.mark_unchanged();
        state.update(|model, owns, now| model.shares_changed(owns, now));
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = changes.changed() => changed?,
        }
    }
}
