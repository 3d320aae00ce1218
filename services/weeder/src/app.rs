//! Joins the parts; the only place that knows all of them.

use std::sync::Arc;

use futures::future::try_join3;
use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::RoutesBuilder;
use watchdog_api::policy::Mode;
use watchdog_api::weeder::WeederConfig;
use watchdog_kube::events::{self, EventSink};
use watchdog_kube::membership::{Share, Timing};
use watchdog_kube::permissions::preflight;
use watchdog_kube::replica::{PermissionGrantor, Replica};
use watchdog_proto::weeder::v1 as pb;
use watchdog_proto::weeder::v1::weeder_service_server::WeederServiceServer;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::grpc_server::{Api, MAX_REQUEST_BYTES};
use watchdog_runtime::metrics::Collector;
use watchdog_runtime::process::{Bound, Process};
use watchdog_runtime::service_builder::ServiceBuilder;
use watchdog_watch_stream::item::NamePair;
use watchdog_watch_stream::merged::{MergedView, OwnItems};
use watchdog_watch_stream::replicas::ReplicaEndpoints;
use watchdog_watch_stream::server::StateStore;
use watchdog_watch_stream::stream::Streams;

use crate::cluster::discovery::discover;
use crate::cluster::pace::Pace;
use crate::cluster::permissions;
use crate::cluster::watches::{SeedUpdates, SeedWatches};
use crate::config::Config;
use crate::controller::shared::SharedState;
use crate::controller::state::WeederState;
use crate::controller::worker::{MAX_REQUESTS, RequestWorker};
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::readiness::ServiceState;
use crate::domain::weeder::Weeder;
use crate::grpc::convert;
use crate::grpc::service::WeederApi;
use crate::metrics::{self, StateCollector};

/// Name of the service in membership Leases and Kubernetes Events.
pub const SERVICE: &str = "weeder";

/// Full name of its gRPC service.
pub const GRPC_SERVICE: &str = "gardener.watchdog.weeder.v1.WeederService";

/// Binds the sockets and starts all parts.
///
/// # Errors
/// When an address cannot be bound, the TLS files cannot be used or there is no way to the seed.
pub async fn build(config: Config, process: Process) -> anyhow::Result<Bound> {
    let base = ServiceBuilder::bind(config.common.clone(), process).await?;
    let replica = Replica::<Share>::join(&base, SERVICE, Timing::PRODUCTION).await?;
    let mut routes = RoutesBuilder::default();
    let collector = start(&base, &replica, config, &mut routes);
    let api = Api {
        routes,
        service_names: &[GRPC_SERVICE],
        descriptors: watchdog_proto::FILE_DESCRIPTOR_SET,
    };
    base.serve(api, vec![collector])
}

/// Starts all parts of this replica except its servers. Adds the gRPC service to the routes and returns the collector
/// of /metrics.
pub fn start(
    base: &ServiceBuilder,
    replica: &Replica<Share>,
    config: Config,
    routes: &mut RoutesBuilder,
) -> Arc<dyn Collector> {
    metrics::register();
    watchdog_watch_stream::metrics::register();
    // The membership keeps its own client: renewals must not wait for deletions.
    let pace = Pace::new(config.request_rate);
    let seed = pace.client(replica.seed.clone());
    let events = events(base, replica, &config, seed.clone());
    let rules = base.follow(config.file);
    let membership = replica.membership.clone();
    // Also while its Lease is not renewed, so that it goes on with what it knows. Then it deletes nothing: each
    // deletion takes a permit of the membership.
    let shares = membership.clone();
    let owns = move |namespace: &str| shares.owns(namespace);
    let state = Arc::new(SharedState::new(&rules.borrow(), Clock::start(), owns));
    base.tasks.critical(
        "ownership",
        watch_ownership(membership.clone(), state.clone(), base.draining.clone()),
    );
    let worker = RequestWorker {
        state: state.clone(),
        membership,
        seed: replica.seed.clone(),
        pace,
        client: seed.clone(),
        events: events.clone(),
        mode: config.mode,
        max_requests: MAX_REQUESTS.min(config.request_rate.into()),
    };
    base.tasks.critical("requests", worker.run(base.draining.clone()));
    base.tasks.critical(
        "configuration",
        watch_configuration(rules.clone(), state.clone(), base.draining.clone()),
    );
    let watches = SeedWatches {
        client: seed,
        handler: state.clone(),
        readiness: base.readiness.clone(),
        stop: base.draining.clone(),
    };
    let annotations = config.dependants_annotation.then_some(events);
    let current = rules.borrow().clone();
    spawn_watches(base, replica, watches, current, annotations);
    let (readiness, weeders) = merge(base, replica, &state);
    let api = WeederApi {
        readiness,
        weeders,
        streams: Streams::new(base.draining.clone()),
    };
    routes.add_service(WeederServiceServer::new(api).max_decoding_message_size(MAX_REQUEST_BYTES));
    Arc::new(StateCollector { state })
}

/// Publishes Kubernetes Events, where this replica may.
fn events(base: &ServiceBuilder, replica: &Replica<Share>, config: &Config, seed: Client) -> EventSink {
    let events = events::start(seed, SERVICE, &base.identity, &base.readiness, &base.tasks);
    let may_publish = config.mode == Mode::Protect || config.observe_events;
    events.open_if(may_publish && replica.granted_by == PermissionGrantor::Chart)
}

/// Watches the seed, and checks the permissions for that. With `annotations` Services may declare their dependants, and
/// malformed ones are published there.
fn spawn_watches(
    base: &ServiceBuilder,
    replica: &Replica<Share>,
    watches: SeedWatches<impl SeedUpdates>,
    current: Arc<WeederConfig>,
    annotations: Option<EventSink>,
) {
    let undiscovered = base.readiness.block("discovery", "not asked yet");
    let annotated = annotations.is_some();
    let (mut needed, granted_by) = (replica.permissions.clone(), replica.granted_by);
    let tasks = &base.tasks;
    tasks.critical("pods", watches.clone().pods());
    if granted_by == PermissionGrantor::Chart {
        tasks.critical("namespaces", watches.clone().namespaces());
    }
    if let Some(events) = annotations {
        tasks.critical("annotations", watches.clone().annotations(events));
    }
    tasks.critical("services", async move {
        let (seed, readiness, stop) = (
            watches.client.clone(),
            watches.readiness.clone(),
            watches.stop.clone(),
        );
        let Some(served) = discover(&seed, &readiness, &undiscovered, &stop).await else {
            return Ok(());
        };
        needed.extend(permissions::permissions(served, &current, annotated, granted_by));
        // Both in one critical task, so that a panic of either ends the process.
        let preflight = preflight(seed, needed, readiness, stop);
        // Polled last: by then the watches block.
        let discovered = async move {
            drop(undiscovered);
            Ok(())
        };
        try_join3(preflight, watches.endpoints(served), discovered)
            .await
            .map(drop)
    });
}

/// Merges the services and weeders of this replica with those of the others.
fn merge(
    base: &ServiceBuilder,
    replica: &Replica<Share>,
    state: &Arc<SharedState>,
) -> (MergedView<pb::EndpointReadiness>, MergedView<pb::Weeder>) {
    let readiness = MergedView::new(base.identity.clone());
    let weeders = MergedView::new(base.identity.clone());
    let addresses = replica.find(base, "peers", SERVICE, Timing::PRODUCTION);
    let peers = ReplicaEndpoints::new(addresses, base.peer_dialer(SERVICE)).led_by(replica.leader.clone());
    let (observer, services, known) = (base.identity.clone(), state.clone(), base.readiness.clone());
    let own = OwnItems {
        store: state.services.clone(),
        encode: move |key: &NamespacedName, state: &ServiceState| convert::readiness(key, state, &observer),
        key: convert::name_pair,
        exists: move |NamePair(namespace, service): &NamePair| {
            !known.blockers().is_empty()
                || services
                    .read(|state| state.has_service(&NamespacedName::new(namespace.clone(), service.clone())))
        },
        is_filled: is_filled(base, state, &state.services),
    };
    readiness.spawn(base, own, peers.clone());
    let (owner, clock) = (base.identity.clone(), state.clone());
    let own = OwnItems {
        store: state.weeders.clone(),
        encode: move |_: &NamespacedName, weeder: &Weeder| {
            convert::weeder_message(weeder, &owner, clock.now())
        },
        key: convert::name_pair,
        exists: |_: &NamePair| true,
        is_filled: is_filled(base, state, &state.weeders),
    };
    weeders.spawn(base, own, peers);
    (readiness, weeders)
}

/// Says of a merged view whether it has all items of a store, and the store those of every namespace that this replica
/// owns.
fn is_filled<V: Send + Sync + 'static>(
    base: &ServiceBuilder,
    state: &Arc<SharedState>,
    store: &StateStore<NamespacedName, V>,
) -> impl Fn(&dyn Fn(&NamePair) -> bool) -> bool + Send + Sync + 'static {
    let (readiness, state, store) = (base.readiness.clone(), state.clone(), store.clone());
    move |has| {
        let is_current = readiness.blockers().is_empty() && state.read(WeederState::follows_ownership);
        is_current && store.keys().iter().map(convert::name_pair).all(|key| has(&key))
    }
}

/// Takes up the configuration whenever it changes.
async fn watch_configuration(
    mut rules: watch::Receiver<Arc<WeederConfig>>,
    state: Arc<SharedState>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    loop {
        let current = rules.borrow_and_update().clone();
        state.update(|state, now| state.reconfigure(&current, now));
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = rules.changed() => if changed.is_err() {
                // The process is stopping.
                return Ok(());
            }
        }
    }
}

/// Updates the state whenever the replicas share the namespaces in another way.
async fn watch_ownership(
    membership: Share,
    state: Arc<SharedState>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut changes = membership.subscribe();
    loop {
        changes.mark_unchanged();
        state.update(WeederState::ownership_changed);
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = changes.changed() => changed?,
        }
    }
}
