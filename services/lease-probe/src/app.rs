//! Joins the parts; the only place that knows all of them.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::sync::watch;
use tonic::service::RoutesBuilder;
use watchdog_api::prober::ProberConfig;
use watchdog_api::unix_time::UnixTime;
use watchdog_kube::leadership::forward::ForwardToLeader;
use watchdog_kube::leadership::{Leader, Leadership};
use watchdog_kube::members::Members;
use watchdog_kube::permissions::preflight;
use watchdog_kube::replica::Replica;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_server::LeaseProbeServiceServer;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::grpc_server::{Api, MAX_REQUEST_BYTES};
use watchdog_runtime::metrics::Collector;
use watchdog_runtime::process::{Bound, Process};
use watchdog_runtime::publish::publish_if_changed;
use watchdog_runtime::service_builder::ServiceBuilder;
use watchdog_watch_stream::replicas::ReplicaEndpoints;
use watchdog_watch_stream::seed_view::{OwnItems, SeedView};
use watchdog_watch_stream::server::StreamStore;
use watchdog_watch_stream::stream::Streams;

use crate::cluster::http::HttpConnector;
use crate::cluster::permissions;
use crate::cluster::watches::Watches;
use crate::config::Config;
use crate::controller::prober::ProbeContext;
use crate::controller::prober_manager::{ProberManager, VerdictStore};
use crate::domain::endpoint::Endpoint;
use crate::domain::renewals::{DEFAULT_RENEW_INTERVAL, shortest_grace};
use crate::domain::witnesses::LiveMembers;
use crate::grpc::convert;
use crate::grpc::service::LeaseProbeApi;
use crate::metrics::{self, VerdictCollector};

/// Name of the service in membership Leases and in its requests.
pub const SERVICE: &str = "lease-probe";

/// Full name of its gRPC service.
pub const GRPC_SERVICE: &str = "gardener.watchdog.probe.v1.LeaseProbeService";

/// Binds the sockets and starts all parts.
///
/// # Errors
/// When an address cannot be bound, the TLS files cannot be used or there is no way to the seed.
pub async fn build(config: Config, process: Process) -> anyhow::Result<Bound> {
    let base = ServiceBuilder::bind(config.common.clone(), process).await?;
    let replica = if config.standalone {
        Replica::standalone(&base, SERVICE).await?
    } else {
        Replica::join_members(&base, SERVICE).await?
    };
    let mut routes = RoutesBuilder::default();
    let (collector, _) = start(&base, &replica.map(Sharing::Members), config, &mut routes);
    let api = Api {
        routes,
        service_names: &[GRPC_SERVICE],
        descriptors: watchdog_proto::FILE_DESCRIPTOR_SET,
    };
    base.serve(api, vec![collector])
}

/// How the replicas share the shoots of the seed.
#[derive(Clone)]
pub enum Sharing {
    /// Each shoot has two witnesses among the live members.
    Members(watch::Receiver<Members>),
    /// In the place of the Go program, which has one Lease: the leader probes all of them.
    Leader(Leadership),
}

/// Starts all parts of this replica except its servers. Adds the gRPC service to the routes and returns the collector
/// of /metrics, and the verdicts.
pub fn start(
    base: &ServiceBuilder,
    replica: &Replica<Sharing>,
    config: Config,
    routes: &mut RoutesBuilder,
) -> (Arc<dyn Collector>, SeedView<pb::Verdict>) {
    metrics::register();
    watchdog_watch_stream::metrics::register();
    let rules = base.follow(config.file);
    let grace = rules.borrow().kcm_node_monitor_grace_duration;
    if grace < shortest_grace(DEFAULT_RENEW_INTERVAL) {
        tracing::warn!(
            ?grace,
            "kcmNodeMonitorGraceDuration is too short: kube-controller-manager acts before a loss can be proven"
        );
    }
    let shared = Arc::new(ProbeContext {
        seed: replica.seed.clone(),
        clock: Clock::start(),
        identity: base.identity.clone(),
        random: Box::new(rand::random),
        probing: AtomicUsize::new(0),
        close: AtomicUsize::new(0),
    });
    let verdicts = StreamStore::new();
    let me = base.identity.clone();
    let (view, members) = match &replica.membership {
        Sharing::Members(members) => {
            let view = SeedView::shared(me);
            let live = follow_members(base, members.clone(), &view);
            (view, live)
        }
        Sharing::Leader(leadership) => (SeedView::new(me), follow_leader(base, leadership.leader())),
    };
    let is_witness = {
        let (members, me) = (members.clone(), base.identity.clone());
        Arc::new(move |shoot: &str| members.borrow().is_witness(&me, shoot))
    };
    let manager = ProberManager::new(
        shared.clone(),
        verdicts.clone(),
        rules.borrow().clone(),
        is_witness,
        HttpConnector {
            allow_local_addresses: config.allow_local_addresses,
        },
        config.answer_memory,
    );
    let probing = manager
        .clone()
        .run(rules.clone(), members.clone(), base.draining.clone());
    base.tasks.critical("reconfigure", endless(probing));
    spawn_watches(base, replica, &manager, rules);
    merge(
        base,
        replica,
        &view,
        members.clone(),
        &verdicts,
        &manager,
        shared.clock,
    );
    let service = LeaseProbeApi {
        verdicts: view.clone(),
        is_unknown: {
            let manager = manager.clone();
            Box::new(move |shoot: &str| manager.is_unknown(shoot))
        },
        streams: Streams::new(base.draining.clone()),
    };
    let service = LeaseProbeServiceServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES);
    match &replica.membership {
        Sharing::Members(_) => routes.add_service(service),
        Sharing::Leader(leadership) => routes.add_service(ForwardToLeader::new(
            service,
            leadership.clone(),
            base.peer_dialer(SERVICE),
        )),
    };
    let collector = VerdictCollector {
        manager,
        verdicts,
        shared,
        members,
    };
    (Arc::new(collector), view)
}

/// A task that never fails, as a critical one.
async fn endless(task: impl Future<Output = ()>) -> anyhow::Result<()> {
    task.await;
    Ok(())
}

/// Watches the seed, and checks the permissions for that.
fn spawn_watches(
    base: &ServiceBuilder,
    replica: &Replica<Sharing>,
    manager: &Arc<ProberManager>,
    rules: watch::Receiver<Arc<ProberConfig>>,
) {
    let watches = Watches {
        seed: replica.seed.clone(),
        handler: manager.clone(),
        readiness: base.readiness.clone(),
        stop: base.draining.clone(),
    };
    base.tasks.critical("clusters", watches.clone().clusters());
    for (name, endpoint) in [
        ("kubeconfigs", Endpoint::Internal),
        ("external-kubeconfigs", Endpoint::External),
    ] {
        let watch = watches.clone().kubeconfigs(endpoint, rules.clone());
        base.tasks.critical(name, watch);
    }
    let Watches {
        seed,
        readiness,
        stop,
        ..
    } = watches;
    let (of_replica, config) = (replica.permissions.clone(), rules.clone());
    let needed = move || permissions::permissions(&config.borrow(), &of_replica);
    base.tasks
        .critical("permissions", preflight(seed, readiness, needed, rules, stop));
}

/// Follows the live members, and which of them answer.
fn follow_members(
    base: &ServiceBuilder,
    mut members: watch::Receiver<Members>,
    view: &SeedView<pb::Verdict>,
) -> watch::Receiver<LiveMembers> {
    let (live, receiver) = watch::channel(LiveMembers::default());
    let mut replicas = view.replicas();
    let (me, stop) = (base.identity.clone(), base.draining.clone());
    let follow = async move {
        loop {
            let current = {
                let (members, replicas) = (members.borrow_and_update(), replicas.borrow_and_update());
                let answers = |name: &Arc<str>| *name == me || replicas.answers(name);
                LiveMembers::new(members.keys().map(|name| (name.clone(), answers(name))))
            };
            publish_if_changed(&live, &current);
            tokio::select! {
                Ok(()) = members.changed() => {}
                Ok(()) = replicas.changed() => {}
                else => return std::future::pending().await,
            }
        }
    };
    base.tasks.critical("witnesses", async move {
        stop.run_until_cancelled(follow).await;
        Ok(())
    });
    receiver
}

/// Follows who leads: this replica alone, or nobody here.
fn follow_leader(
    base: &ServiceBuilder,
    mut leader: watch::Receiver<Option<Leader>>,
) -> watch::Receiver<LiveMembers> {
    let (live, receiver) = watch::channel(LiveMembers::default());
    let (me, stop) = (base.identity.clone(), base.draining.clone());
    let follow = async move {
        loop {
            let leads = leader
                .borrow_and_update()
                .as_ref()
                .is_some_and(|leader| leader.name == me);
            let current = LiveMembers::new(leads.then(|| (me.clone(), true)));
            publish_if_changed(&live, &current);
            // The election ends with the process.
            if leader.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    };
    base.tasks.critical("witnesses", async move {
        stop.run_until_cancelled(follow).await;
        Ok(())
    });
    receiver
}

/// Merges the verdicts of this replica with those of the others, where there are any to ask.
fn merge(
    base: &ServiceBuilder,
    replica: &Replica<Sharing>,
    view: &SeedView<pb::Verdict>,
    members: watch::Receiver<LiveMembers>,
    verdicts: &VerdictStore,
    manager: &Arc<ProberManager>,
    clock: Clock,
) {
    let all = manager.clone();
    let own = OwnItems {
        store: verdicts.clone(),
        key: String::clone,
        encode: Box::new(move |shoot, verdict| {
            convert::verdict(shoot, verdict, UnixTime(clock.now_micros()))
        }),
        is_filled: Box::new(move |has| !members.borrow().is_empty() && all.all_witnessed(has)),
    };
    match &replica.membership {
        Sharing::Members(members) => {
            let peers = ReplicaEndpoints {
                addresses: members.clone(),
                dialer: base.peer_dialer(SERVICE),
            };
            let manager = manager.clone();
            view.spawn_shared(base, own, move |shoot| !manager.is_unknown(shoot), peers);
        }
        Sharing::Leader(leadership) => view.spawn_led(base, own, leadership.subscribe()),
    }
}
