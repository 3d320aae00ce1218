//! Joins the parts; the only place that knows all of them.

use std::sync::Arc;

use futures::future::try_join;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tonic::service::RoutesBuilder;
use watchdog_api::policy::Mode;
use watchdog_api::weeder::WeederConfig;
use watchdog_kube::events;
use watchdog_kube::leadership::forward::ForwardToLeader;
use watchdog_kube::leadership::{ElectionTiming, Leadership};
use watchdog_kube::permissions::preflight;
use watchdog_kube::replica::{PermissionGrantor, Replica};
use watchdog_proto::weeder::v1::weeder_service_server::WeederServiceServer;
use watchdog_runtime::grpc_server::Api;
use watchdog_runtime::metrics::Collector;
use watchdog_runtime::process::{Bound, Process};
use watchdog_runtime::readiness::Blocker;
use watchdog_runtime::service_builder::ServiceBuilder;
use watchdog_watch_stream::item::{NamePair, StreamItem};
use watchdog_watch_stream::seed_view::{OwnItems, SeedView};
use watchdog_watch_stream::server::StreamStore;

use crate::cluster::discovery::{EndpointsApi, discover};
use crate::cluster::pace::Pace;
use crate::cluster::permissions;
use crate::cluster::watches::SeedWatches;
use crate::config::Config;
use crate::controller::collector::StateCollector;
use crate::controller::state::SharedState;
use crate::controller::worker::DeletionWorker;
use crate::domain::namespaced_name::NamespacedName;
use crate::grpc::convert;
use crate::grpc::service::WeederApi;
use crate::metrics;

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
    let base = ServiceBuilder::bind(config.args.common.clone(), process).await?;
    let (replica, leadership) = Replica::elect(
        &base,
        SERVICE,
        LEASE,
        ElectionTiming::default(),
        PermissionGrantor::Chart,
    )
    .await?;
    let mut routes = RoutesBuilder::default();
    let collector = start(&base, &replica, leadership, config, &mut routes);
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
    replica: &Replica,
    leadership: Leadership,
    config: Config,
    routes: &mut RoutesBuilder,
) -> Arc<dyn Collector> {
    metrics::register();
    watchdog_watch_stream::metrics::register();
    // The election keeps its own client: renewals must not wait for deletions.
    let pace = Pace::new(config.args.request_rate);
    let seed = pace.client(replica.seed.clone());
    let (events, publish) = events::recorder(
        pace.for_events().client(replica.seed.clone()),
        SERVICE,
        &base.identity,
        // Their client has the lowest priority already.
        TaskTracker::new(),
        base.readiness.clone(),
        base.draining.clone(),
    );
    base.tasks.critical("events", publish);
    let may_publish = config.args.mode == Mode::Protect || config.args.observe_events;
    let events = events.open_if(may_publish && replica.granted_by == PermissionGrantor::Chart);
    let rules = base.follow(config.file);
    let state = Arc::new(SharedState::new(rules.borrow().clone()));
    let worker = DeletionWorker {
        state: state.clone(),
        leadership: leadership.clone(),
        seed: replica.seed.clone(),
        pace,
        events,
        mode: config.args.mode,
    };
    base.tasks
        .critical("deletions", worker.run(base.draining.clone()));
    let watches = SeedWatches {
        client: seed,
        readiness: base.readiness.clone(),
        stop: base.draining.clone(),
    };
    spawn_watches(base, replica, watches, rules.clone(), state.clone());
    let (services, weeders) = {
        let state = state.lock();
        (state.services.clone(), state.weeders.clone())
    };
    let (observer, replica) = (base.identity.clone(), base.identity.clone());
    let (clock, leads) = (state.clone(), leadership.clone());
    let api = WeederApi {
        readiness: view(base, &leadership, &services, move |key, state| {
            convert::readiness(key, state, &observer)
        }),
        weeders: view(base, &leadership, &weeders, move |key, weeder| {
            convert::weeder_message(key, weeder, &rules.borrow(), &replica, clock.now())
        }),
        leader: Box::new(move || leads.name_if_leading().to_owned()),
    };
    let api = WeederServiceServer::new(api);
    let (dialer, draining) = (base.peer_dialer(SERVICE), base.draining.clone());
    routes.add_service(ForwardToLeader::new(api, leadership.clone(), dialer, draining));
    Arc::new(StateCollector { leadership, state })
}

/// Watches the seed, and checks the permissions for that.
fn spawn_watches(
    base: &ServiceBuilder,
    replica: &Replica,
    watches: SeedWatches,
    rules: watch::Receiver<Arc<WeederConfig>>,
    state: Arc<SharedState>,
) {
    let undiscovered = base.readiness.block("discovery", "not asked yet");
    let (of_replica, granted_by) = (replica.permissions.clone(), replica.granted_by);
    base.tasks.critical("watches", async move {
        let SeedWatches {
            client,
            readiness,
            stop,
        } = watches.clone();
        let served = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            served = discover(&client, &readiness, &undiscovered) => served,
        };
        let config = rules.clone();
        let needed = || {
            let mut needed = permissions::permissions(served, &config.borrow(), granted_by);
            needed.extend(of_replica.iter().cloned());
            needed
        };
        let preflight = preflight(client, readiness, needed, rules.clone(), stop);
        let watching = watch_seed(watches, served, undiscovered, rules, state);
        Box::pin(try_join(preflight, watching)).await.map(drop)
    });
}

/// Watches what the configuration names. When that changes, the watches begin anew.
async fn watch_seed(
    watches: SeedWatches,
    served: EndpointsApi,
    undiscovered: Blocker,
    mut rules: watch::Receiver<Arc<WeederConfig>>,
    state: Arc<SharedState>,
) -> anyhow::Result<()> {
    let mut undiscovered = Some(undiscovered);
    loop {
        let config = rules.borrow_and_update().clone();
        state.lock().configure(config.clone());
        let watches = SeedWatches {
            stop: watches.stop.child_token(),
            ..watches.clone()
        };
        let (slices, pods) = (state.clone(), state.clone());
        let mut watching = try_join(
            watches.endpoints(served, &config, move |watched, update| {
                slices.lock().slices_updated(watched, update, slices.now());
            }),
            watches.pods(&config, move |selector, update| {
                pods.lock().pods_updated(selector, update, pods.now());
            }),
        );
        // From now on the watches block.
        drop(undiscovered.take());
        tokio::select! {
            ended = &mut watching => return ended.map(drop),
            Ok(()) = rules.changed() => {}
        }
        watches.stop.cancel();
        watching.await?;
        tracing::info!("configuration changed; restarting the watches");
    }
}

/// The items of a store for streams and lists. Only the leader is asked.
fn view<V, M>(
    base: &ServiceBuilder,
    leadership: &Leadership,
    store: &StreamStore<NamespacedName, V>,
    encode: impl Fn(&NamespacedName, &V) -> M + Send + Sync + 'static,
) -> SeedView<M>
where
    V: Send + Sync + 'static,
    M: StreamItem<Key = NamePair>,
{
    let view = SeedView::new(base.identity.clone(), base.draining.clone());
    let (names, readiness) = (store.clone(), base.readiness.clone());
    let own = OwnItems {
        store: store.clone(),
        key: convert::name_pair,
        encode: Box::new(encode),
        // The view has all items of the store, and the store those of the whole seed.
        is_filled: Box::new(move |has| {
            let names = names.keys();
            readiness.blockers().is_empty() && names.iter().map(convert::name_pair).all(|key| has(&key))
        }),
    };
    view.spawn_led(base, own, leadership.subscribe());
    view
}
