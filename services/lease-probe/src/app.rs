//! Joins the parts; the only place that knows all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::OptionFuture;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tonic::service::RoutesBuilder;
use watchdog_api::cluster::Cluster;
use watchdog_api::prober::ProberConfig;
use watchdog_kube::Identity;
use watchdog_kube::leadership::Leadership;
use watchdog_kube::leadership::forward::ForwardToLeader;
use watchdog_kube::members::Members;
use watchdog_kube::permissions::preflight;
use watchdog_kube::replica::Replica;
use watchdog_kube::watch::{self as seed_watches, Change, OnClusterChange};
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_server::LeaseProbeServiceServer;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::grpc_server::Api;
use watchdog_runtime::metrics::Collector;
use watchdog_runtime::process::{Bound, Process};
use watchdog_runtime::publish::publish_if_changed;
use watchdog_runtime::service_builder::ServiceBuilder;
use watchdog_watch_stream::replicas::ReplicaEndpoints;
use watchdog_watch_stream::seed_view::{OwnItems, SeedView};

use crate::cluster::http::HttpConnector;
use crate::cluster::machines;
use crate::cluster::{permissions, watches};
use crate::config::Config;
use crate::controller::collector::VerdictCollector;
use crate::controller::prober::ProbeContext;
use crate::controller::prober_manager::ProberManager;
use crate::domain::endpoint::Endpoint;
use crate::domain::renewals::{DEFAULT_RENEW_INTERVAL, shortest_grace};
use crate::domain::verdict::Verdict;
use crate::domain::witnesses::{INFORMED_AFTER, LiveMembers, MemberState};
use crate::grpc::convert;
use crate::grpc::service::LeaseProbeApi;
use crate::metrics;

/// Name of the service in membership Leases and in its requests.
pub const SERVICE: &str = "lease-probe";

/// Full name of its gRPC service.
pub const GRPC_SERVICE: &str = "gardener.watchdog.probe.v1.LeaseProbeService";

/// Binds the sockets and starts all parts.
///
/// # Errors
/// When an address cannot be bound, the TLS files cannot be used or there is no way to the seed.
pub async fn build(config: Config, process: Process) -> anyhow::Result<Bound> {
    let base = ServiceBuilder::bind(config.args.common.clone(), process).await?;
    let (replica, members) = if config.args.standalone {
        Replica::standalone(&base, SERVICE).await?
    } else {
        Replica::join_members(&base, SERVICE).await?
    };
    let mut routes = RoutesBuilder::default();
    let sharing = Sharing::Members(members);
    let (collector, _, on_cluster_change) = start(&base, &replica, &sharing, config, &mut routes);
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

/// How the replicas share the shoots of the seed.
#[derive(Clone)]
pub enum Sharing {
    /// Each shoot has two witnesses among the live members.
    Members(watch::Receiver<Members>),
    /// In the place of the Go program, which has one Lease: the leader probes all of them.
    Leader(Leadership),
}

/// Starts all parts of this replica except its servers and the watch of the Clusters. Adds the gRPC service to the
/// routes and returns the collector of /metrics, the verdicts, and what must receive the changes of the Clusters.
pub fn start(
    base: &ServiceBuilder,
    replica: &Replica,
    sharing: &Sharing,
    config: Config,
    routes: &mut RoutesBuilder,
) -> (Arc<dyn Collector>, SeedView<pb::Verdict>, OnClusterChange) {
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
    let shared = ProbeContext::new(
        replica.seed.clone(),
        Clock::start(),
        base.identity.clone(),
        usize::from(config.args.answer_memory) << 20,
        rand::random::<f64>,
    );
    let (me, draining) = (base.identity.clone(), base.draining.clone());
    let view = match sharing {
        Sharing::Members(_) => SeedView::shared(me, draining),
        Sharing::Leader(_) => SeedView::new(me, draining),
    };
    let manager = ProberManager::new(
        shared,
        rules.clone(),
        follow_members(base, sharing, &view),
        HttpConnector {
            allow_local_addresses: config.args.allow_local_addresses,
        },
    );
    let probing = manager.clone().run(base.draining.clone());
    base.tasks.critical("reconfigure", async {
        probing.await;
        Ok(())
    });
    spawn_watches(base, replica, &manager, &rules);
    let changed = manager.clone();
    let on_cluster_change = Box::new(move |change: &Change<Cluster>| changed.cluster_changed(change));
    let service = LeaseProbeApi {
        verdicts: view.clone(),
        is_unknown: {
            let manager = manager.clone();
            Box::new(move |shoot: &str| manager.is_unknown(shoot))
        },
    };
    let service = LeaseProbeServiceServer::new(service);
    // The verdicts of this replica are merged with those of the others, where there are any to ask.
    let (own, dialer) = (own_verdicts(&manager), base.peer_dialer(SERVICE));
    match sharing {
        Sharing::Members(members) => {
            let (known, addresses) = (manager.clone(), members.clone());
            let exists = move |shoot: &str| !known.is_unknown(shoot);
            view.spawn_shared(base, own, exists, ReplicaEndpoints { addresses, dialer });
            routes.add_service(service);
        }
        Sharing::Leader(leadership) => {
            view.spawn_led(base, own, leadership.subscribe());
            let draining = base.draining.clone();
            routes.add_service(ForwardToLeader::new(
                service,
                leadership.clone(),
                dialer,
                draining,
            ));
        }
    }
    (Arc::new(VerdictCollector(manager)), view, on_cluster_change)
}

/// Watches the Secrets of the seed, and checks the Machines and the permissions for all that is read there.
fn spawn_watches(
    base: &ServiceBuilder,
    replica: &Replica,
    manager: &Arc<ProberManager>,
    rules: &watch::Receiver<Arc<ProberConfig>>,
) {
    let (seed, readiness, stop) = (&replica.seed, &base.readiness, &base.draining);
    for endpoint in [Endpoint::Internal, Endpoint::External] {
        let manager = manager.clone();
        let on_change = move |change| manager.kubeconfig_changed(endpoint, change);
        let (seed, readiness, stop) = (seed.clone(), readiness.clone(), stop.clone());
        let watch = watches::kubeconfigs(seed, endpoint, rules.clone(), readiness, stop, on_change);
        base.tasks.critical(watches::watch_name(endpoint), watch);
    }
    let machines = machines::check(seed.clone(), readiness.clone(), stop.clone());
    base.tasks.critical("machines", machines);
    let (of_replica, config) = (replica.permissions.clone(), rules.clone());
    let needed = move || permissions::permissions(&config.borrow(), &of_replica);
    let check = preflight(
        seed.clone(),
        readiness.clone(),
        needed,
        rules.clone(),
        stop.clone(),
    );
    base.tasks.critical("permissions", check);
}

/// Follows the live members and which of them answer, or who leads: this replica alone, or nobody here.
fn follow_members(
    base: &ServiceBuilder,
    sharing: &Sharing,
    view: &SeedView<pb::Verdict>,
) -> watch::Receiver<LiveMembers> {
    let (live, receiver) = watch::channel(LiveMembers::default());
    let (me, stop, sharing) = (base.identity.clone(), base.draining.clone(), sharing.clone());
    let mut replicas = view.replicas();
    let follow = async move {
        match sharing {
            Sharing::Members(mut members) => {
                let mut since = BTreeMap::new();
                loop {
                    let now = Instant::now();
                    let current = {
                        let (members, replicas) = (members.borrow_and_update(), replicas.borrow_and_update());
                        let answers = |name: &Identity| *name == me || replicas.answers(name);
                        live_members(&members, answers, &mut since, now)
                    };
                    publish_if_changed(&live, &current);
                    let informed_at = since.values().map(|since| *since + INFORMED_AFTER);
                    let next = informed_at.filter(|at| *at > now).min();
                    tokio::select! {
                        Ok(()) = members.changed() => {}
                        Ok(()) = replicas.changed() => {}
                        Some(()) = OptionFuture::from(next.map(sleep_until)) => {}
                        else => break,
                    }
                }
            }
            Sharing::Leader(leadership) => {
                let mut leader = leadership.leader();
                loop {
                    let leads = leader
                        .borrow_and_update()
                        .as_ref()
                        .is_some_and(|leader| leader.name == me);
                    publish_if_changed(
                        &live,
                        &LiveMembers::new(leads.then(|| (me.clone(), MemberState::Informed))),
                    );
                    if leader.changed().await.is_err() {
                        break;
                    }
                }
            }
        }
        // The members are followed for as long as the process runs.
        std::future::pending::<()>().await;
    };
    base.tasks.critical("witnesses", async move {
        stop.run_until_cancelled(follow).await;
        Ok(())
    });
    receiver
}

/// The members as they are now; `since` has from when on each has answered without a pause. So a replica that has just
/// started takes none for informed, and one that was started again under its name must become informed again: until
/// then there is a third witness.
fn live_members(
    members: &Members,
    answers: impl Fn(&Identity) -> bool,
    since: &mut BTreeMap<Identity, Instant>,
    now: Instant,
) -> LiveMembers {
    since.retain(|name, _| members.contains_key(name) && answers(name));
    LiveMembers::new(members.keys().map(|name| {
        let answering = answers(name).then(|| *since.entry(name.clone()).or_insert(now));
        let state = MemberState::of(answering.map(|since| now.duration_since(since)));
        (name.clone(), state)
    }))
}

/// The verdicts of this replica.
fn own_verdicts(manager: &Arc<ProberManager>) -> OwnItems<String, Verdict, pb::Verdict> {
    let (context, all) = (manager.shared.clone(), manager.clone());
    OwnItems {
        store: manager.verdicts.clone(),
        key: String::clone,
        encode: Box::new(move |shoot, verdict| convert::verdict(shoot, verdict, context.now())),
        is_filled: Box::new(move |has| all.all_witnessed(has)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ME: &str = "me";

    /// Two containers are killed in place and have forgotten everything. The replica that stands in for them keeps what
    /// it has observed until they can prove a loss, or containers that crash again and again would leave their shoots
    /// without a witness that can.
    #[test]
    fn a_witness_that_stands_in_for_replicas_stays_until_they_are_informed_again() {
        let members: Members = [ME, "a", "b"].map(|name| (name.into(), "".into())).into();
        let (mut since, start) = (BTreeMap::new(), Instant::now());
        let mut at = |seconds, others_answer: bool| {
            let answers = |name: &Identity| **name == *ME || others_answer;
            let now = start + Duration::from_secs(seconds);
            live_members(&members, answers, &mut since, now)
        };
        let all_informed = [at(0, true), at(45, true)];
        let mut shoots = (0..).map(|i| format!("shoot-{i}"));
        let of_the_others = shoots.find(|shoot| all_informed.iter().all(|live| !live.is_witness(ME, shoot)));
        let of_the_others = of_the_others.unwrap();
        for (seconds, others_answer, stands_in) in [
            (50, false, true),
            (60, true, true),
            (70, false, true),
            (80, true, true),
            (124, true, true),
            (125, true, false),
        ] {
            let live = at(seconds, others_answer);
            assert_eq!(live.is_witness(ME, &of_the_others), stands_in, "at {seconds} s");
        }
    }
}
