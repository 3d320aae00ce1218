//! The base of every service: sockets, TLS, tasks, readiness; and its gRPC and admin servers at the end.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Admin};
use crate::allowed_clients::AllowedClients;
use crate::args::CommonArgs;
use crate::config_file::ConfigFile;
use crate::grpc_client::Dialer;
use crate::grpc_server::{self, Api};
use crate::listeners;
use crate::metrics::Collector;
use crate::process::{Bound, Process};
use crate::readiness::Readiness;
use crate::self_check;
use crate::tasks::Tasks;
use crate::tls::Tls;

/// A service that is bound but does not serve yet.
#[derive(Debug)]
pub struct ServiceBuilder {
    /// The command line.
    pub common: CommonArgs,
    /// Name of this replica.
    pub identity: Arc<str>,
    /// Where the gRPC API will be served.
    pub grpc_addr: SocketAddr,
    /// TLS of the process; none with `--insecure-plaintext`. With `--tls-authority` it has a certificate once the
    /// authority was read.
    pub tls: Option<Tls>,
    /// The tasks of the process.
    pub tasks: Tasks,
    /// Cancelled when the drain starts.
    pub draining: CancellationToken,
    /// The blockers that keep the process from being ready.
    pub readiness: Readiness,
    grpc: TcpListener,
    admin: TcpListener,
    process: Process,
}

impl ServiceBuilder {
    /// Binds the sockets, and reads the TLS files, if there are any, and follows them.
    ///
    /// # Errors
    /// When an address cannot be bound or the TLS files cannot be used.
    pub async fn bind(common: CommonArgs, process: Process) -> anyhow::Result<Self> {
        // Before anything else starts: a port in use is noticed, and port 0 is known before it is announced.
        let grpc = listeners::bind("--grpc-addr", common.grpc_addr).await?;
        let admin = listeners::bind("--admin-addr", common.admin_addr).await?;
        let grpc_addr = grpc.local_addr()?;
        tracing::info!(
            %grpc_addr,
            admin_addr = %admin.local_addr()?,
            "listening for gRPC and admin requests"
        );
        let tasks = Tasks::default();
        let draining = tasks.draining();
        let mut others = common.tls_allowed_client.clone();
        others.extend(common.observer_name());
        let allowed = AllowedClients::named(&common.own_server_names(), &others);
        let tls = match (common.tls_files(), &common.tls_authority) {
            (Some(files), _) => {
                let tls = Tls::load(&files)?.allowing(allowed);
                tasks.critical("tls-files", tls.clone().follow_files(files, draining.clone()));
                Some(tls)
            }
            (None, Some(_)) => Some(Tls::without_certificate().allowing(allowed)),
            (None, None) => None,
        };
        Ok(Self {
            identity: common.identity_or_random().into(),
            grpc_addr,
            tls,
            tasks,
            draining,
            readiness: Readiness::default(),
            grpc,
            admin,
            process,
            common,
        })
    }

    /// Follows the configuration file.
    pub fn follow<C>(&self, file: ConfigFile<C>) -> watch::Receiver<Arc<C>>
    where
        C: PartialEq + Send + Sync + 'static,
    {
        let rules = file.subscribe();
        self.tasks
            .critical("config-file", file.follow(self.draining.clone()));
        rules
    }

    /// Calls the replicas of `service`.
    #[must_use]
    pub fn peer_dialer(&self, service: &str) -> Dialer {
        Dialer {
            tls: self.tls.as_ref().map(Tls::client),
            server_name: self.common.server_name(service),
        }
    }

    /// Serves the gRPC API and the admin endpoint.
    ///
    /// # Errors
    /// When the sockets are gone already.
    pub fn serve(self, api: Api, collectors: Vec<Arc<dyn Collector>>) -> anyhow::Result<Bound> {
        let admin_addr = self.admin.local_addr()?;
        let admin_tls = self.tls.clone().filter(|_| self.common.admin_tls);
        let grpc = grpc_server::serve(
            self.grpc,
            self.tls,
            api,
            self.identity,
            self.readiness.clone(),
            self.draining,
        );
        let shown = Admin {
            readiness: self.readiness.clone(),
            process: self.process,
            collectors,
        };
        self.tasks.critical("grpc", grpc);
        self.tasks
            .spawn_critical("self-check", self_check::run(self.readiness.clone()));
        self.tasks
            .spawn_critical("admin", admin::serve(self.admin, admin_tls, shown));
        Ok(Bound {
            grpc_addr: self.grpc_addr,
            admin_addr,
            tasks: self.tasks,
            readiness: self.readiness,
        })
    }
}
