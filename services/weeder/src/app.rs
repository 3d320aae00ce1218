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
use watchdog_kube::leadership::forward::ForwardToLeader;
use watchdog_kube::leadership::{ElectionTiming, Leadership};
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
use watchdog_watch_stream::server::StateStore;
use watchdog_watch_stream::stream::Streams;

use crate::cluster::discovery::discover;
use crate::cluster::pace::Pace;
use crate::cluster::permissions;
use crate::cluster::watches::{SeedUpdates, SeedWatches};
use crate::config::Config;
use crate::controller::shared::SharedState;
use crate::controller::worker::{DeletionWorker, MAX_REQUESTS};
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::readiness::ServiceState;
use crate::domain::weeder::Weeder;
use crate::grpc::convert;
use crate::grpc::service::WeederApi;
use crate::metrics::{self, StateCollector};

/// Name of the service in Kubernetes Events and in the name of its Deployment.
pub const SERVICE: &str = "weeder";

/// The Lease of the leader election.
pub const LEASE: &str = "weeder-leader";

/// Full name of its gRPC service.
pub const GRPC_SERVICE: &str = "gardener.watchdog.weeder.v1.WeederService";

/// Binds the sockets and starts all parts.
///
/// # Errors
/// When an address cannot be bound, the TLS files cannot be used or there is no way to the seed.
pub async fn build(config: Config, process: Process) -> anyhow::Result<Bound> {
    let base = ServiceBuilder::bind(config.common.clone(), process).await?;
    let replica = Replica::elect(&base, SERVICE, LEASE, ElectionTiming::default()).await?;
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
    replica: &Replica<Leadership>,
    config: Config,
    routes: &mut RoutesBuilder,
) -> Arc<dyn Collector> {
    metrics::register();
    watchdog_watch_stream::metrics::register();
    // The election keeps its own client: renewals must not wait for deletions.
    let pace = Pace::new(config.request_rate);
    let seed = pace.client(replica.seed.clone());
    let events = events(base, replica, &config, seed.clone());
    let rules = base.follow(config.file);
    let leadership = replica.leadership().clone();
    let state = Arc::new(SharedState::new(&rules.borrow(), Clock::start()));
    base.tasks
        .critical("recoveries", state.clone().advance(base.draining.clone()));
    let worker = DeletionWorker {
        state: state.clone(),
        leadership: leadership.clone(),
        seed: replica.seed.clone(),
        pace,
        events,
        mode: config.mode,
        max_requests: MAX_REQUESTS.min(config.request_rate.into()),
    };
    base.tasks
        .critical("deletions", worker.run(base.draining.clone()));
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
    let current = rules.borrow().clone();
    spawn_watches(base, replica, watches, current);
    let (readiness, weeders) = views(base, &leadership, &state);
    let api = WeederApi {
        readiness,
        weeders,
        streams: Streams::new(base.draining.clone()),
    };
    let api = WeederServiceServer::new(api).max_decoding_message_size(MAX_REQUEST_BYTES);
    routes.add_service(ForwardToLeader::new(
        api,
        leadership.clone(),
        base.peer_dialer(SERVICE),
    ));
    Arc::new(StateCollector { leadership, state })
}

/// Publishes Kubernetes Events, where this replica may.
fn events(base: &ServiceBuilder, replica: &Replica<Leadership>, config: &Config, seed: Client) -> EventSink {
    let events = events::start(seed, SERVICE, &base.identity, &base.readiness, &base.tasks);
    let may_publish = config.mode == Mode::Protect || config.observe_events;
    events.open_if(may_publish && replica.granted_by == PermissionGrantor::Chart)
}

/// Watches the seed, and checks the permissions for that.
fn spawn_watches(
    base: &ServiceBuilder,
    replica: &Replica<Leadership>,
    watches: SeedWatches<impl SeedUpdates>,
    current: Arc<WeederConfig>,
) {
    let undiscovered = base.readiness.block("discovery", "not asked yet");
    let (mut needed, granted_by) = (replica.permissions.clone(), replica.granted_by);
    let tasks = &base.tasks;
    tasks.critical("pods", watches.clone().pods());
    tasks.critical("services", async move {
        let (seed, readiness, stop) = (
            watches.client.clone(),
            watches.readiness.clone(),
            watches.stop.clone(),
        );
        let Some(served) = discover(&seed, &readiness, &undiscovered, &stop).await else {
            return Ok(());
        };
        needed.extend(permissions::permissions(served, &current, granted_by));
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

/// The services and weeders of the seed. Only the leader is asked.
fn views(
    base: &ServiceBuilder,
    leadership: &Leadership,
    state: &Arc<SharedState>,
) -> (MergedView<pb::EndpointReadiness>, MergedView<pb::Weeder>) {
    let readiness = MergedView::new(base.identity.clone());
    let weeders = MergedView::new(base.identity.clone());
    let observer = base.identity.clone();
    let own = OwnItems {
        store: state.services.clone(),
        encode: move |key: &NamespacedName, state: &ServiceState| convert::readiness(key, state, &observer),
        key: convert::name_pair,
        exists: |_: &NamePair| true,
        is_filled: is_filled(base, &state.services),
    };
    readiness.spawn_led(base, own, leadership.subscribe());
    let (owner, clock) = (base.identity.clone(), state.clone());
    let own = OwnItems {
        store: state.weeders.clone(),
        encode: move |_: &NamespacedName, weeder: &Weeder| {
            convert::weeder_message(weeder, &owner, clock.now())
        },
        key: convert::name_pair,
        exists: |_: &NamePair| true,
        is_filled: is_filled(base, &state.weeders),
    };
    weeders.spawn_led(base, own, leadership.subscribe());
    (readiness, weeders)
}

/// Says of a merged view whether it has all items of a store, and the store those of the whole seed.
fn is_filled<V: Send + Sync + 'static>(
    base: &ServiceBuilder,
    store: &StateStore<NamespacedName, V>,
) -> impl Fn(&dyn Fn(&NamePair) -> bool) -> bool + Send + Sync + 'static {
    let (readiness, store) = (base.readiness.clone(), store.clone());
    move |has| {
        readiness.blockers().is_empty() && store.keys().iter().map(convert::name_pair).all(|key| has(&key))
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
