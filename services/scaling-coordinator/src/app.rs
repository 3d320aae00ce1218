//! Joins the parts; the only place that knows all of them.

use std::sync::Arc;

use tokio::sync::watch;
use tonic::service::RoutesBuilder;
use watchdog_api::names::EXISTING_WATCHDOG_FIELD_MANAGER;
use watchdog_api::policy::Mode;
use watchdog_api::prober::ProberConfig;
use watchdog_kube::events;
use watchdog_kube::leadership::forward::ForwardToLeader;
use watchdog_kube::leadership::{ElectionTiming, Leadership};
use watchdog_kube::members::Members;
use watchdog_kube::permissions::preflight;
use watchdog_kube::replica::{PermissionGrantor, Replica};
use watchdog_kube::watch::{self as seed_watches, OnClusterChange};
use watchdog_proto::probe::v1::Verdict;
use watchdog_proto::scaling::v1 as pb;
use watchdog_proto::scaling::v1::scaling_service_server::ScalingServiceServer;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::grpc_server::Api;
use watchdog_runtime::metrics::Collector;
use watchdog_runtime::process::{Bound, Process};
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::service_builder::ServiceBuilder;
use watchdog_runtime::tasks::Tasks;
use watchdog_watch_stream::replicas::{ReplicaEndpoints, follow_replicas};
use watchdog_watch_stream::seed_view::{OwnItems, SeedView};
use watchdog_watch_stream::server::StreamStore;

use self::observers::Observers;
use crate::cluster::clusters::Clusters;
use crate::cluster::object_index::IndexSignals;
use crate::cluster::requests::ResourceRequests;
use crate::cluster::resources::Resources;
use crate::cluster::{permissions, watches};
use crate::config::Config;
use crate::controller::Controller;
use crate::controller::collector::Scrape;
use crate::controller::inputs::DecisionInputs;
use crate::controller::limiter::RequestLimiter;
use crate::controller::reconciler::Reconciler;
use crate::controller::verdicts::VerdictTable;
use crate::grpc::convert;
use crate::grpc::service::ScalingApi;
use crate::metrics;

mod observers;
pub mod release;

/// Name of the service in membership Leases, in Kubernetes Events and in its requests.
pub const SERVICE: &str = "scaling-coordinator";

/// The Lease by which the replicas elect a leader.
pub const LEADER_LEASE: &str = "scaling-coordinator-leader";

/// Name of the service that observes the shoots, in its membership Leases.
const LEASE_PROBE: &str = "lease-probe";

/// Full name of its gRPC service.
pub const GRPC_SERVICE: &str = "gardener.watchdog.scaling.v1.ScalingService";

/// Binds the sockets and starts all parts.
///
/// # Errors
/// When an address cannot be bound, the TLS files cannot be used or there is no way to the seed.
pub async fn build(config: Config, process: Process) -> anyhow::Result<Bound> {
    let base = ServiceBuilder::bind(config.args.common.clone(), process).await?;
    let granted_by = PermissionGrantor::Chart;
    let timing = ElectionTiming::default();
    let (mut replica, leadership) = Replica::elect(&base, SERVICE, LEADER_LEASE, timing, granted_by).await?;
    let addresses = if config.args.lease_probe.is_empty() {
        replica.find_members(&base, LEASE_PROBE)
    } else {
        named(&config.args.lease_probe)
    };
    let dialer = base.peer_dialer(LEASE_PROBE);
    let lease_probes = VerdictSource::Replicas(ReplicaEndpoints { addresses, dialer });
    let mut routes = RoutesBuilder::default();
    let (collector, on_cluster_change) =
        start(&base, &replica, leadership, config, lease_probes, &mut routes);
    let (readiness, stop) = (base.readiness.clone(), base.draining.clone());
    let clusters = seed_watches::clusters(replica.seed, readiness, stop, vec![on_cluster_change]);
    base.tasks.critical("clusters", clusters);
    let api = Api {
        routes,
        service_names: &[GRPC_SERVICE],
        descriptors: watchdog_proto::FILE_DESCRIPTOR_SET,
    };
    base.serve(api, vec![collector])
}

/// Where the verdicts come from.
pub enum VerdictSource {
    /// The replicas of lease-probe.
    Replicas(ReplicaEndpoints),
    /// lease-probe in the same process.
    InProcess(SeedView<Verdict>),
}

/// Starts all parts of this replica except its servers and the watch of the Clusters. The verdicts come from
/// `lease_probes`. Adds the gRPC service to the routes and returns the collector of /metrics, and what must receive the
/// changes of the Clusters.
pub fn start(
    base: &ServiceBuilder,
    replica: &Replica,
    leadership: Leadership,
    config: Config,
    lease_probes: VerdictSource,
    routes: &mut RoutesBuilder,
) -> (Arc<dyn Collector>, OnClusterChange) {
    metrics::register();
    watchdog_watch_stream::metrics::register();
    // With gardenlet's permissions this program stands where the existing watchdog stood.
    let predecessor = match replica.granted_by {
        PermissionGrantor::Gardenlet => Some(EXISTING_WATCHDOG_FIELD_MANAGER),
        PermissionGrantor::Chart => None,
    };
    let rules = base.follow(config.file);
    let resources = |signals| {
        let mut resources = Resources::new(signals, &rules.borrow().dependent_resource_infos);
        resources.predecessor = predecessor;
        resources
    };
    let indexes = Indexes::new(&replica.seed, &base.readiness, &base.tasks, resources);
    spawn_watches(base, replica, &indexes, rules.clone());
    let on_cluster_change = indexes.on_cluster_change();
    let inputs = indexes.inputs(leadership.clone(), config.args.mode);
    observe(base, lease_probes, Observers(inputs.verdicts.clone()));
    let reconciler = Arc::new(Reconciler {
        observe_events: config.args.observe_events,
        ..indexes.reconciler(inputs.clone(), replica.granted_by, config.args.request_rate)
    });
    let controller = Controller::new(reconciler.clone(), indexes.signals);
    base.tasks.critical("controller", controller.run());

    let (known, planned, leads) = (inputs.clone(), inputs.clone(), leadership.clone());
    let api = ScalingApi {
        scaling: scaling_view(base, &leadership, reconciler.clone()),
        is_unknown: Box::new(move |shoot| known.is_unknown(shoot)),
        plan: Box::new(move |shoot, direction| planned.plan(shoot, direction)),
        leader: Box::new(move || leads.name_if_leading().to_owned()),
    };
    let api = ScalingServiceServer::new(api);
    let (dialer, draining) = (base.peer_dialer(SERVICE), base.draining.clone());
    routes.add_service(ForwardToLeader::new(api, leadership, dialer, draining));
    let states = reconciler.states.clone();
    (Arc::new(Scrape { inputs, states }), on_cluster_change)
}

/// Replicas whose addresses the command line has; the address is the name, too.
fn named(addresses: &[String]) -> watch::Receiver<Members> {
    let named = addresses.iter().map(|address| address.as_str().into());
    watch::Sender::new(named.clone().zip(named).collect::<Members>()).subscribe()
}

/// Watches the seed except its Clusters, and checks the permissions for all of it.
fn spawn_watches(
    base: &ServiceBuilder,
    replica: &Replica,
    indexes: &Indexes,
    rules: watch::Receiver<Arc<ProberConfig>>,
) {
    let (resources, granted_by) = (indexes.resources.clone(), replica.granted_by);
    let (of_replica, served) = (replica.permissions.clone(), resources.served_changes());
    let needed = move || {
        let mut needed = permissions::permissions(&resources, granted_by);
        needed.extend(of_replica.iter().cloned());
        needed
    };
    let (seed, readiness) = (replica.seed.clone(), base.readiness.clone());
    let check = preflight(seed, readiness, needed, served, base.draining.clone());
    base.tasks.critical("permissions", check);
    indexes.follow(rules);
}

/// The scaling states of the seed. Only the leader is asked.
fn scaling_view(
    base: &ServiceBuilder,
    leadership: &Leadership,
    reconciler: Arc<Reconciler>,
) -> SeedView<pb::ShootScaling> {
    let view = SeedView::new(base.identity.clone(), base.draining.clone());
    let (clock, inputs) = (reconciler.inputs.clock, reconciler.inputs.clone());
    let own = OwnItems {
        store: reconciler.states.clone(),
        key: String::clone,
        encode: Box::new(move |shoot, scaling| convert::shoot_scaling(shoot, scaling, clock)),
        is_filled: Box::new(move |has| inputs.has_all_shoots(has)),
    };
    view.spawn_led(base, own, leadership.subscribe());
    view
}

/// Follows the verdicts of lease-probe.
fn observe(base: &ServiceBuilder, lease_probes: VerdictSource, observers: Observers) {
    let (readiness, draining) = (base.readiness.clone(), base.draining.clone());
    base.tasks.critical("observers", async move {
        match lease_probes {
            VerdictSource::Replicas(endpoints) => {
                follow_replicas(None, endpoints, Arc::new(observers), readiness, draining).await
            }
            VerdictSource::InProcess(verdicts) => {
                verdicts.follow_in_process(observers).await;
                Ok(())
            }
        }
    });
}

/// The indexes of the seed.
struct Indexes {
    seed: kube::Client,
    signals: IndexSignals,
    clusters: Arc<Clusters>,
    resources: Arc<Resources>,
    readiness: Readiness,
    tasks: Tasks,
}

impl Indexes {
    fn new(
        seed: &kube::Client,
        readiness: &Readiness,
        tasks: &Tasks,
        resources: impl FnOnce(IndexSignals) -> Resources,
    ) -> Self {
        let signals = IndexSignals::default();
        Self {
            seed: seed.clone(),
            clusters: Arc::new(Clusters::new(seed.clone(), signals.clone())),
            resources: Arc::new(resources(signals.clone())),
            signals,
            readiness: readiness.clone(),
            tasks: tasks.clone(),
        }
    }

    /// Must receive the changes of the Clusters.
    fn on_cluster_change(&self) -> OnClusterChange {
        let clusters = self.clusters.clone();
        Box::new(move |change| clusters.take_in(change))
    }

    /// Starts the watches of the resources.
    fn follow(&self, rules: watch::Receiver<Arc<ProberConfig>>) {
        let follow = watches::resources(
            self.seed.clone(),
            self.resources.clone(),
            rules,
            self.readiness.clone(),
            self.tasks.draining(),
        );
        self.tasks.critical("resources", follow);
    }

    fn inputs(&self, leadership: Leadership, mode_of_seed: Mode) -> Arc<DecisionInputs> {
        self.wake_all_on_changes(&leadership);
        Arc::new(DecisionInputs {
            verdicts: Arc::new(VerdictTable::new(
                self.signals.work_queue.clone(),
                self.readiness.clone(),
            )),
            clusters: self.clusters.clone(),
            resources: self.resources.clone(),
            leadership,
            draining: self.tasks.draining(),
            mode_of_seed,
            clock: Clock::start(),
        })
    }

    fn reconciler(
        &self,
        inputs: Arc<DecisionInputs>,
        granted_by: PermissionGrantor,
        request_rate: u32,
    ) -> Reconciler {
        let limiter = RequestLimiter::new(request_rate);
        let (seed, waiting) = (self.seed.clone(), limiter.waiting.clone());
        let identity = inputs.leadership.identity();
        let (readiness, stop) = (self.readiness.clone(), self.tasks.draining());
        let (events, publish) = events::recorder(seed, SERVICE, identity, waiting, readiness, stop);
        self.tasks.critical("events", publish);
        Reconciler {
            inputs,
            requests: ResourceRequests {
                seed: self.seed.clone(),
                resources: self.resources.clone(),
            },
            limiter,
            states: StreamStore::new(),
            events: events.open_if(granted_by == PermissionGrantor::Chart),
            observe_events: false,
        }
    }

    /// Reconciles every shoot whenever the leadership changes.
    fn wake_all_on_changes(&self, leadership: &Leadership) {
        let (mut leads, mut leader) = (leadership.subscribe(), leadership.leader());
        let (work_queue, stop) = (self.signals.work_queue.clone(), self.tasks.draining());
        self.tasks.critical("changes", async move {
            loop {
                // The senders live as long as the process.
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    Ok(()) = leads.changed() => {}
                    Ok(()) = leader.changed() => {}
                }
                work_queue.add_all();
            }
        });
    }
}
