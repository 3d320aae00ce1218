//! The three services, started as their users start them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use tonic::transport::Channel;
use watchdog_client::grpc_client::Dialer;
use watchdog_client::tls::{ClientTls, PemFiles};
use watchdog_runtime::tls::{Tls, TlsPaths};

use crate::binaries;
use crate::certs::{Authority, TlsFiles};
use crate::ports::free_port;
use crate::process::{ChildProcess, Command};
use crate::scratch::Scratch;
use crate::wait::BOUND;

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
pub const CLIENT_NAME: &str = "client.test";

/// Namespace of the membership Leases.
pub const NAMESPACE: &str = "garden";

/// The message of the log line with the addresses that a service has bound.
pub const LISTENING: &str = "listening for gRPC and admin requests";

/// Shared by the services of one test: a folder, certificates and configuration files.
pub struct Setup {
    scratch: Arc<Scratch>,
    authority: Authority,
    client: ClientTls,
    client_files: TlsFiles,
    prober: PathBuf,
    weeder: PathBuf,
    collectors: HashMap<&'static str, String>,
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

impl Setup {
    /// Writes certificates and both configuration files.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn new(scratch: &Arc<Scratch>, prober: &str, weeder: &str) -> anyhow::Result<Self> {
        let authority = Authority::new(scratch, "watchdog")?;
        let client_files = authority.issue("client", &[CLIENT_NAME])?;
        let files = PemFiles {
            cert: client_files.cert.clone(),
            key: client_files.key.clone(),
            ca: client_files.ca.clone(),
        };
        Ok(Self {
            client: ClientTls::from_files(&files)?,
            client_files,
            authority,
            prober: scratch.write("prober.yaml", prober)?,
            weeder: scratch.write("weeder.yaml", weeder)?,
            collectors: HashMap::new(),
            scratch: scratch.clone(),
        })
    }

    /// The certificate of a caller, for grpcurl and the like.
    #[must_use]
    pub fn client_files(&self) -> &TlsFiles {
        &self.client_files
    }

    /// Has a service, by the name of its binary, send its traces to a collector at that URL from its next start on.
    pub fn trace(&mut self, binary: &'static str, collector: &str) {
        self.collectors.insert(binary, collector.to_owned());
    }

    /// A certificate for a server of the test, of the authority that the services trust.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn server_tls(&self, name: &str) -> anyhow::Result<Tls> {
        let files = self.authority.issue(name, &["localhost"])?;
        let paths = TlsPaths {
            cert: files.cert,
            key: files.key,
            ca: files.ca,
        };
        Tls::load(&paths).map_err(anyhow::Error::msg)
    }

    /// The prober configuration file, for tests that change it.
    #[must_use]
    pub fn prober_file(&self) -> &PathBuf {
        &self.prober
    }

    /// The weeder configuration file.
    #[must_use]
    pub fn weeder_file(&self) -> &PathBuf {
        &self.weeder
    }

    /// Starts lease-probe.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn lease_probe(&self, identity: &str, kubeconfig: &str) -> anyhow::Result<Service> {
        self.start(self.command(binaries::LEASE_PROBE, identity, kubeconfig, &self.prober)?)
            .await
    }

    /// Starts lease-probe with these variables in its environment.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn lease_probe_with(
        &self,
        identity: &str,
        kubeconfig: &str,
        variables: &[(&str, OsString)],
    ) -> anyhow::Result<Service> {
        let command = self.command(binaries::LEASE_PROBE, identity, kubeconfig, &self.prober)?;
        let add = |command: Command, (name, value): &(&str, OsString)| command.env(name, value);
        self.start(variables.iter().fold(command, add)).await
    }

    /// Starts scaling-coordinator. With `lease_probes` it subscribes to these addresses, else to the replicas that it
    /// discovers.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn coordinator(
        &self,
        identity: &str,
        kubeconfig: &str,
        lease_probes: &[String],
    ) -> anyhow::Result<Service> {
        let mut command = self.coordinator_command(identity, kubeconfig)?;
        for address in lease_probes {
            command = command.arg("--lease-probe").arg(address);
        }
        self.start(command).await
    }

    /// The command line of a coordinator, for [`Self::custom`].
    ///
    /// # Errors
    /// When the kubeconfig cannot be written.
    pub fn coordinator_command(&self, identity: &str, kubeconfig: &str) -> anyhow::Result<Command> {
        self.command(binaries::SCALING_COORDINATOR, identity, kubeconfig, &self.prober)
    }

    /// Starts weeder.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn weeder(&self, identity: &str, kubeconfig: &str) -> anyhow::Result<Service> {
        self.start(self.weeder_command(identity, kubeconfig)?).await
    }

    /// The command line of a weeder, for [`Self::custom`].
    ///
    /// # Errors
    /// When the kubeconfig cannot be written.
    pub fn weeder_command(&self, identity: &str, kubeconfig: &str) -> anyhow::Result<Command> {
        self.command(binaries::WEEDER, identity, kubeconfig, &self.weeder)
    }

    /// Starts a weeder that also takes the dependants of a Service from its annotation.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn weeder_with_annotations(&self, identity: &str, kubeconfig: &str) -> anyhow::Result<Service> {
        let command = self.command(binaries::WEEDER, identity, kubeconfig, &self.weeder)?;
        self.start(command.arg("--dependants-annotation")).await
    }

    /// Starts a service with a command line of the test's own.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn custom(&self, command: Command) -> anyhow::Result<Service> {
        self.start(command).await
    }

    /// Starts a service again, with the same command line, after its process has ended.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn again(&self, service: &Service) -> anyhow::Result<Service> {
        self.start(service.command.clone()).await
    }

    /// Starts a service again with its log on a disk that is full. Nobody can read there where it listens, so that is
    /// chosen for it.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn again_without_log(&self, service: &Service) -> anyhow::Result<Service> {
        let [grpc, admin] = [free_port()?, free_port()?].map(|port| format!("127.0.0.1:{port}"));
        let command = service
            .command
            .clone()
            .option("--grpc-addr", &grpc)
            .option("--admin-addr", &admin)
            .onto_full_disk();
        let service = Service {
            process: command.spawn(&self.scratch)?,
            grpc,
            admin,
            command,
        };
        service.wait_ready().await?;
        Ok(service)
    }

    /// A channel to a service, authenticated as a consumer.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub fn channel(&self, service: &Service) -> anyhow::Result<Channel> {
        let dialer = Dialer {
            tls: Some(self.client.clone()),
            server_name: SERVER_NAME.to_owned(),
        };
        dialer.channel(&service.grpc).map_err(anyhow::Error::msg)
    }

    fn command(
        &self,
        binary: &str,
        identity: &str,
        kubeconfig: &str,
        config: &PathBuf,
    ) -> anyhow::Result<Command> {
        let tls = self.authority.issue(identity, &SERVER_NAMES)?;
        let kubeconfig = self
            .scratch
            .write(&format!("{identity}.kubeconfig"), kubeconfig)?;
        let common = [("--config-file", config), ("--kubeconfig", &kubeconfig)];
        let tls = [
            ("--tls-cert", &tls.cert),
            ("--tls-key", &tls.key),
            ("--tls-client-ca", &tls.ca),
        ];
        // As in the image.
        let mut command = Command::new(identity, binaries::path(binary)?).env("MIMALLOC_PURGE_DELAY", "1000");
        for (flag, path) in common.into_iter().chain(tls) {
            command = command.arg(flag).arg(path.as_os_str());
        }
        command = command.args(["--tls-allowed-client", CLIENT_NAME]);
        if binary == binaries::LEASE_PROBE {
            // The shoots are on this machine.
            command = command.arg("--allow-local-addresses");
        }
        if let Some(collector) = self.collectors.get(binary) {
            command = command.args(["--otlp-endpoint", collector]);
        }
        Ok(command
            .args(["--identity", identity, "--namespace", NAMESPACE])
            .args(["--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0"]))
    }

    async fn start(&self, command: Command) -> anyhow::Result<Service> {
        let process = command.spawn(&self.scratch)?;
        let grpc = process.wait_for_field(LISTENING, "grpc_addr", BOUND).await?;
        let admin = process.wait_for_field(LISTENING, "admin_addr", BOUND).await?;
        Ok(Service {
            process,
            grpc,
            admin,
            command,
        })
    }
}

impl Service {
    /// Its start options.
    #[must_use]
    pub const fn command(&self) -> &Command {
        &self.command
    }

    /// GET on the admin endpoint: the status code and the body.
    ///
    /// # Errors
    /// When it does not answer within 10 s.
    pub async fn admin_get(&self, path: &str) -> anyhow::Result<(u16, String)> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let exchange = async {
            let mut tcp = tokio::net::TcpStream::connect(&self.admin).await?;
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
                self.admin
            );
            tcp.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            tcp.read_to_string(&mut answer).await?;
            let code = answer
                .split_whitespace()
                .nth(1)
                .and_then(|code| code.parse().ok())
                .context("no HTTP answer")?;
            let body = answer
                .split_once("\r\n\r\n")
                .map(|(_, body)| body.to_owned())
                .unwrap_or_default();
            Ok((code, body))
        };
        tokio::time::timeout(BOUND, exchange)
            .await
            .context("the admin endpoint hangs")?
    }

    /// The value of one series of /metrics, by its name with its labels as they stand there; none when it is not
    /// there.
    ///
    /// # Errors
    /// When the admin endpoint does not answer.
    pub async fn metric(&self, series: &str) -> anyhow::Result<Option<f64>> {
        let (_, text) = self.admin_get("/metrics").await?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
        Ok(value)
    }

    /// True if /readyz says ready.
    ///
    /// # Errors
    /// When the admin endpoint does not answer.
    pub async fn is_ready(&self) -> anyhow::Result<bool> {
        Ok(self.admin_get("/readyz").await?.0 == 200)
    }

    /// Waits until the service is ready.
    ///
    /// # Errors
    /// When it is not within [`BOUND`]; says what blocks it.
    pub async fn wait_ready(&self) -> anyhow::Result<()> {
        crate::wait::until(&format!("{} is ready", self.process.name()), BOUND, || async {
            let (code, body) = self.admin_get("/readyz").await?;
            anyhow::ensure!(code == 200, "{body}");
            Ok(Some(()))
        })
        .await
    }
}
