//! Joins the services of a role in one process.

use std::sync::Arc;

use lease_probe::app::Sharing;
use scaling_coordinator::app::VerdictSource;
use tokio::net::TcpListener;
use tonic::service::RoutesBuilder;
use watchdog_kube::leadership::Leadership;
use watchdog_kube::replica::{PermissionGrantor, Replica};
use watchdog_kube::watch;
use watchdog_runtime::admin::{self, Admin};
use watchdog_runtime::grpc_server::Api;
use watchdog_runtime::listeners::bind;
use watchdog_runtime::process::{Bound, Process};
use watchdog_runtime::service_builder::ServiceBuilder;

use crate::args::{DropInOptions, Services};

/// The Lease of the Go program's prober, which gardenlet grants by this name.
const PROBER_LEASE: &str = "dwd-prober-leader-election";

/// The Lease of the Go program's weeder.
const WEEDER_LEASE: &str = "dwd-weeder-leader-election";

/// Binds the sockets and starts the services of the role.
///
/// # Errors
/// When an address cannot be bound or there is no way to the seed.
pub async fn build(options: DropInOptions, process: Process) -> anyhow::Result<Bound> {
    let DropInOptions {
        services,
        health_addr,
        timing,
        ignored,
    } = options;
    if !ignored.is_empty() {
        tracing::info!(
            flags = ignored.join(", "),
            "flags of the command line have no effect"
        );
    }
    let base = ServiceBuilder::bind(services.common().clone(), process).await?;
    let health = bind("--health-bind-addr", health_addr).await?;
    tracing::info!(health_addr = %health.local_addr()?, "listening for health probes");
    let mut routes = RoutesBuilder::default();
    let granted_by = PermissionGrantor::Gardenlet;
    let (service_names, collectors): (&[&str], _) = match services {
        Services::Prober(configs) => {
            let (replica, leadership) =
                Replica::elect(&base, "prober", PROBER_LEASE, timing, granted_by).await?;
            let collectors = start_prober(&base, &replica, leadership, *configs, &mut routes);
            let names = &[
                lease_probe::app::GRPC_SERVICE,
                scaling_coordinator::app::GRPC_SERVICE,
            ];
            (names, collectors)
        }
        Services::Weeder(config) => {
            let (replica, leadership) =
                Replica::elect(&base, "weeder", WEEDER_LEASE, timing, granted_by).await?;
            let collector = weeder::app::start(&base, &replica, leadership, *config, &mut routes);
            (&[weeder::app::GRPC_SERVICE], vec![collector])
        }
    };
    let api = Api {
        routes,
        service_names,
        descriptors: watchdog_proto::FILE_DESCRIPTOR_SET,
    };
    // Only now: the election blocks readiness, so /readyz does not say ready too soon.
    serve_health(&base, health);
    base.serve(api, collectors)
}

type Collectors = Vec<Arc<dyn watchdog_runtime::metrics::Collector>>;

/// lease-probe, scaling-coordinator with its verdicts, and one watch of the Clusters for both.
fn start_prober(
    base: &ServiceBuilder,
    replica: &Replica,
    leadership: Leadership,
    configs: (lease_probe::config::Config, scaling_coordinator::config::Config),
    routes: &mut RoutesBuilder,
) -> Collectors {
    let (lease_probe, coordinator) = configs;
    let sharing = Sharing::Leader(leadership.clone());
    let (verdicts, view, probe) = lease_probe::app::start(base, replica, &sharing, lease_probe, routes);
    let source = VerdictSource::InProcess(view);
    let (scaling, coordinator) =
        scaling_coordinator::app::start(base, replica, leadership, coordinator, source, routes);
    let (seed, readiness, stop) = (
        replica.seed.clone(),
        base.readiness.clone(),
        base.draining.clone(),
    );
    let clusters = watch::clusters(seed, readiness, stop, vec![coordinator, probe]);
    base.tasks.critical("clusters", clusters);
    vec![verdicts, scaling]
}

/// Serves /healthz and /readyz on the Go program's port.
fn serve_health(base: &ServiceBuilder, listener: TcpListener) {
    let admin = Admin {
        readiness: base.readiness.clone(),
        process: Process::default(),
        collectors: Vec::new(),
    };
    base.tasks
        .spawn_critical("health", admin::serve(listener, None, admin));
}
