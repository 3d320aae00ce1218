//! The three services, started as their users start them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use tonic::transport::Channel;
use watchdog_client::grpc_client::Dialer;
use watchdog_client::tls::{ClientTls, PemFiles};
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::probe::v1::{GetVerdictRequest, Outcome, Verdict};

use crate::binaries;
use crate::certs::Authority;
use crate::http_exchange;
use crate::ports::free_port;
use crate::process::{ChildProcess, Command};
use crate::scratch::Scratch;
use crate::wait::{self, BOUND};

/// DNS name in every certificate of these tests, the one that the chart gives lease-probe.
pub const SERVER_NAME: &str = "watchdog-lease-probe.garden.svc";

/// All DNS names in them: the replicas of each program call each other by the name of theirs.
const SERVER_NAMES: [&str; 4] = [
    SERVER_NAME,
    "watchdog-scaling-coordinator.garden.svc",
    "watchdog-weeder.garden.svc",
    "localhost",
];

/// DNS name in the certificate of a consumer.
const CLIENT_NAME: &str = "client.test";

/// Namespace of the membership Leases.
pub const NAMESPACE: &str = "garden";

/// The message of the log line with the addresses that a service has bound.
pub const LISTENING: &str = "listening for gRPC and admin requests";

/// The services, for tests that do the same with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceKind {
    LeaseProbe,
    /// scaling-coordinator.
    Coordinator,
    Weeder,
}

impl ServiceKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::LeaseProbe, Self::Coordinator, Self::Weeder];

    /// The name of its program.
    pub const fn binary(self) -> &'static str {
        match self {
            Self::LeaseProbe => binaries::LEASE_PROBE,
            Self::Coordinator => binaries::SCALING_COORDINATOR,
            Self::Weeder => binaries::WEEDER,
        }
    }
}

/// Shared by the services of one test: a folder, certificates and configuration files.
#[derive(Clone)]
pub struct Setup {
    scratch: Arc<Scratch>,
    authority: Arc<Authority>,
    client: ClientTls,
    client_files: PemFiles,
    prober: PathBuf,
    weeder: PathBuf,
}

/// A running service. Killed when dropped.
#[derive(Debug)]
pub struct Service {
    pub process: ChildProcess,
    /// Where its gRPC API listens.
    pub grpc: String,
    /// Where its admin endpoint listens.
    pub admin: String,
    command: Command,
}

/// The command line of a service, save how it and its callers authenticate.
pub fn command(
    scratch: &Scratch,
    binary: &str,
    identity: &str,
    kubeconfig: &str,
    config: &Path,
) -> anyhow::Result<Command> {
    let kubeconfig = scratch.write(&format!("{identity}.kubeconfig"), kubeconfig)?;
    // The shoots are on this machine.
    let local = (binary == binaries::LEASE_PROBE).then_some("--allow-local-addresses");
    // As in the image.
    Ok(Command::new(identity, binaries::path(binary)?)
        .env("MIMALLOC_PURGE_DELAY", "1000")
        .args(["--identity", identity, "--namespace", NAMESPACE])
        .args(["--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0"])
        .args([Path::new("--config-file"), config])
        .args([Path::new("--kubeconfig"), &kubeconfig])
        .args(local))
}

/// The command line of the drop-in program in a role, as gardenlet writes it.
pub fn drop_in_command(
    scratch: &Scratch,
    role: &str,
    name: &str,
    kubeconfig: &str,
    config: &Path,
) -> anyhow::Result<Command> {
    let kubeconfig = scratch.write(&format!("{name}.kubeconfig"), kubeconfig)?;
    Ok(Command::new(name, binaries::path(binaries::DEPENDENCY_WATCHDOG)?)
        .arg(role)
        .arg(format!("--config-file={}", config.display()))
        .args([
            "--kube-api-qps=20.0",
            "--kube-api-burst=100",
            "--zap-log-level=INFO",
        ])
        .arg("--enable-leader-election=true")
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        // Ports that are free, and shoots on this machine.
        .args([
            "--metrics-bind-addr=127.0.0.1:0",
            "--health-bind-addr=127.0.0.1:0",
        ])
        .args(["--grpc-addr=127.0.0.1:0", "--allow-local-addresses"]))
}

/// The options by which a server authenticates, and its callers.
pub fn tls_options(files: &PemFiles) -> impl Iterator<Item = PathBuf> {
    let options = [
        ("--tls-cert", &files.cert),
        ("--tls-key", &files.key),
        ("--tls-client-ca", &files.ca),
    ];
    options
        .map(|(option, path)| [option.into(), path.clone()])
        .into_iter()
        .flatten()
}

/// The verdict on a shoot.
pub async fn verdict(lease_probe: Channel, shoot: &str) -> anyhow::Result<Verdict> {
    let request = GetVerdictRequest {
        shoot: shoot.to_owned(),
    };
    let answer = LeaseProbeServiceClient::new(lease_probe)
        .get_verdict(request)
        .await?;
    answer.into_inner().verdict.context("an answer without a verdict")
}

impl Setup {
    /// Writes certificates and both configuration files.
    pub fn new(scratch: &Arc<Scratch>, prober: &str, weeder: &str) -> anyhow::Result<Self> {
        let authority = Arc::new(Authority::new(scratch, "watchdog")?);
        let client_files = authority.issue("client", &[CLIENT_NAME])?;
        Ok(Self {
            client: ClientTls::from_files(&client_files)?,
            client_files,
            authority,
            prober: scratch.write("prober.yaml", prober)?,
            weeder: scratch.write("weeder.yaml", weeder)?,
            scratch: scratch.clone(),
        })
    }

    /// The same, but calls as a service of the watchdog, which may open more connections than other callers.
    pub fn calling_as_own_service(&self) -> anyhow::Result<Self> {
        let client_files = self.authority.issue("own-service", &SERVER_NAMES)?;
        Ok(Self {
            client: ClientTls::from_files(&client_files)?,
            client_files,
            ..self.clone()
        })
    }

    /// The certificate of a caller, for grpcurl and the like.
    pub fn client_files(&self) -> &PemFiles {
        &self.client_files
    }

    /// The prober configuration file, for tests that change it.
    pub fn prober_file(&self) -> &PathBuf {
        &self.prober
    }

    /// Starts lease-probe.
    pub async fn lease_probe(&self, identity: &str, kubeconfig: &str) -> anyhow::Result<Service> {
        self.service(binaries::LEASE_PROBE, identity, kubeconfig).await
    }

    /// Starts scaling-coordinator. With `lease_probes` it subscribes to these addresses, else to the replicas that it
    /// discovers.
    pub async fn coordinator(
        &self,
        identity: &str,
        kubeconfig: &str,
        lease_probes: &[String],
    ) -> anyhow::Result<Service> {
        let mut command = self.command(binaries::SCALING_COORDINATOR, identity, kubeconfig)?;
        for address in lease_probes {
            command = command.arg("--lease-probe").arg(address);
        }
        self.custom(command).await
    }

    /// Starts weeder.
    pub async fn weeder(&self, identity: &str, kubeconfig: &str) -> anyhow::Result<Service> {
        self.service(binaries::WEEDER, identity, kubeconfig).await
    }

    /// Starts a service by the name of its binary.
    pub async fn service(&self, binary: &str, identity: &str, kubeconfig: &str) -> anyhow::Result<Service> {
        self.custom(self.command(binary, identity, kubeconfig)?).await
    }

    /// Starts a service with a command line of the test's own.
    pub async fn custom(&self, command: Command) -> anyhow::Result<Service> {
        Service::start(command, &self.scratch).await
    }

    /// A channel to a service, authenticated as a consumer.
    pub fn channel(&self, service: &Service) -> anyhow::Result<Channel> {
        let dialer = Dialer {
            tls: Some(self.client.clone()),
            server_name: SERVER_NAME.to_owned(),
        };
        dialer.channel(&service.grpc).map_err(anyhow::Error::msg)
    }

    /// The verdict on a shoot.
    pub async fn verdict(&self, lease_probe: &Service, shoot: &str) -> anyhow::Result<Verdict> {
        verdict(self.channel(lease_probe)?, shoot).await
    }

    /// Waits for a verdict with this outcome and returns it.
    pub async fn wait_outcome(
        &self,
        lease_probe: &Service,
        shoot: &str,
        outcome: Outcome,
    ) -> anyhow::Result<Verdict> {
        let what = format!("the verdict on {shoot} is {outcome:?}");
        wait::until(&what, BOUND, || async {
            let verdict = self.verdict(lease_probe, shoot).await?;
            let found = verdict.outcome();
            anyhow::ensure!(found == outcome, "it is {found:?}: {}", verdict.message);
            Ok(Some(verdict))
        })
        .await
    }

    /// The command line of a service without certificates, as [`command`] gives it.
    pub fn bare_command(&self, binary: &str, identity: &str, kubeconfig: &str) -> anyhow::Result<Command> {
        let config = match binary {
            binaries::WEEDER => &self.weeder,
            _ => &self.prober,
        };
        command(&self.scratch, binary, identity, kubeconfig, config)
    }

    fn command(&self, binary: &str, identity: &str, kubeconfig: &str) -> anyhow::Result<Command> {
        let tls = self.authority.issue(identity, &SERVER_NAMES)?;
        Ok(self
            .bare_command(binary, identity, kubeconfig)?
            .args(tls_options(&tls))
            .args(["--tls-allowed-client", CLIENT_NAME]))
    }
}

impl Service {
    /// Starts a service and waits until it listens.
    pub async fn start(command: Command, scratch: &Arc<Scratch>) -> anyhow::Result<Self> {
        let process = command.spawn(scratch)?;
        let grpc = process.wait_for_field(LISTENING, "grpc_addr", BOUND).await?;
        let admin = process.wait_for_field(LISTENING, "admin_addr", BOUND).await?;
        Ok(Self {
            process,
            grpc,
            admin,
            command,
        })
    }

    /// Starts it again, with the same command line, after its process has ended.
    pub async fn again(&self) -> anyhow::Result<Self> {
        Self::start(self.command.clone(), self.process.scratch()).await
    }

    /// The same on a full disk ([`Command::onto_full_disk`]), and waits until it is ready. Nobody can read there where
    /// it listens, so that is chosen for it.
    pub async fn again_on_full_disk(&self) -> anyhow::Result<Self> {
        let [grpc, admin] = [free_port()?, free_port()?].map(|port| format!("127.0.0.1:{port}"));
        let command = self.command.clone();
        let command = command
            .option("--grpc-addr", &grpc)
            .option("--admin-addr", &admin)
            .onto_full_disk();
        let service = Self {
            process: command.spawn(self.process.scratch())?,
            grpc,
            admin,
            command,
        };
        service.wait_ready().await?;
        Ok(service)
    }

    /// Its start options.
    pub const fn command(&self) -> &Command {
        &self.command
    }

    /// GET on the admin endpoint: the status code and the body.
    pub async fn admin_get(&self, path: &str) -> anyhow::Result<(u16, String)> {
        http_exchange::get(&self.admin, path).await
    }

    /// The value of one series of /metrics, by its name with its labels as they stand there; none when it is not
    /// there.
    pub async fn metric(&self, series: &str) -> anyhow::Result<Option<f64>> {
        http_exchange::metric(&self.admin, series).await
    }

    /// True if /readyz says ready.
    pub async fn is_ready(&self) -> anyhow::Result<bool> {
        Ok(self.admin_get("/readyz").await?.0 == 200)
    }

    /// Waits until the service is ready.
    pub async fn wait_ready(&self) -> anyhow::Result<()> {
        wait::until(&format!("{} is ready", self.process.name()), BOUND, || async {
            let (code, body) = self.admin_get("/readyz").await?;
            anyhow::ensure!(code == 200, "{body}");
            Ok(Some(()))
        })
        .await
    }
}
