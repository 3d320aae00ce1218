//! A real kube-controller-manager: the node lifecycle that causes meltdowns.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use parking_lot::Mutex;

use super::pki::Pki;
use super::{Assets, KubeApiserver, bounded, kubeconfig};
use crate::ports::free_port;
use crate::process::{ChildProcess, Command};
use crate::sandboxed;
use crate::scratch::Scratch;
use crate::wait::{self, BOUND};

/// Tries with another port each.
const ATTEMPTS: usize = 3;

/// The first minor version without the insecure port and its flag.
const WITHOUT_PORT_FLAG: u32 = 24;

/// How to run a kube-controller-manager's node lifecycle. The defaults are Kubernetes' own.
#[derive(Clone, Debug)]
pub struct ControllerManagerOptions {
    /// `--node-monitor-period`: how often it looks at the nodes.
    pub node_monitor_period: Duration,
    /// `--node-monitor-grace-period`: after this time without a renewed Lease a node turns Unknown.
    pub node_monitor_grace_period: Duration,
    /// More flags.
    pub flags: Vec<String>,
}

impl Default for ControllerManagerOptions {
    fn default() -> Self {
        Self {
            node_monitor_period: Duration::from_secs(5),
            node_monitor_grace_period: Duration::from_secs(40),
            flags: Vec::new(),
        }
    }
}

/// A kube-controller-manager for one API server. Killed when dropped.
#[derive(Debug)]
pub struct ControllerManager {
    command: Command,
    ca_pem: String,
    scratch: Arc<Scratch>,
    process: Mutex<Option<ChildProcess>>,
    /// Only one start or stop at a time.
    turn: tokio::sync::Mutex<()>,
}

// === impl ControllerManager ===

impl ControllerManager {
    pub(super) fn new(
        assets: &Assets,
        pki: &Pki,
        scratch: &Arc<Scratch>,
        api_server: &KubeApiserver,
        options: &ControllerManagerOptions,
    ) -> anyhow::Result<Self> {
        let name = format!("kube-controller-manager-{}", api_server.name());
        let kubeconfig = scratch.write(&format!("{name}.kubeconfig"), api_server.kubeconfig_for("admin")?)?;
        let mut command = Command::new(name, &assets.kube_controller_manager)
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg("--controllers=nodelifecycle")
            .arg(format!(
                "--node-monitor-period={}",
                go_duration(options.node_monitor_period)
            ))
            .arg(format!(
                "--node-monitor-grace-period={}",
                go_duration(options.node_monitor_grace_period)
            ))
            .arg(format!("--tls-cert-file={}", pki.serving_cert.display()))
            .arg(format!("--tls-private-key-file={}", pki.serving_key.display()))
            // Only one runs; waiting for a dead one's lock would only slow the tests down.
            .args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
        if assets.controller_manager_minor()? < WITHOUT_PORT_FLAG {
            command = command.arg("--port=0");
        }
        Ok(Self {
            command: command.args(options.flags.iter().cloned()),
            ca_pem: pki.ca_pem.clone(),
            scratch: Arc::clone(scratch),
            process: Mutex::new(None),
            turn: tokio::sync::Mutex::new(()),
        })
    }

    /// Starts it (again) and waits until it is healthy. Does nothing when it runs. As in a cluster it knows nothing
    /// of before: every node gets a new grace period.
    ///
    /// # Errors
    /// When it does not get healthy; shows the end of its log.
    pub async fn start(&self) -> anyhow::Result<()> {
        let _turn = self.turn.lock().await;
        if self.is_running() {
            return Ok(());
        }
        let mut attempt = 1;
        loop {
            let port = free_port()?;
            let process = self
                .command
                .clone()
                .arg(format!("--secure-port={port}"))
                .spawn(&self.scratch)?;
            match self.wait_healthy(&process, port).await {
                Ok(()) => {
                    *self.process.lock() = Some(process);
                    return Ok(());
                }
                // Somebody may have taken the port between the choice and the start.
                Err(_) if attempt < ATTEMPTS && process.exit_status()?.is_some() => attempt += 1,
                Err(error) => bail!("{error:#}; its log ends:\n{}", process.log_tail()),
            }
        }
    }

    async fn wait_healthy(&self, process: &ChildProcess, port: u16) -> anyhow::Result<()> {
        // Its health needs no credentials, so any token does.
        let url = format!("https://127.0.0.1:{port}");
        let client = sandboxed::client(&kubeconfig(&url, &self.ca_pem, "nobody", "none")).await?;
        let ended = wait::until("kube-controller-manager is healthy", BOUND, || async {
            if let Some(status) = process.exit_status()? {
                return Ok(Some(Err(status)));
            }
            let answer = bounded("GET /healthz", client.request_text(kubeconfig::get("/healthz")?)).await?;
            Ok((answer == "ok").then_some(Ok(())))
        });
        match ended.await? {
            Ok(()) => Ok(()),
            Err(status) => bail!("kube-controller-manager ended ({status})"),
        }
    }

    /// Kills it, as scaling its Deployment to zero does in the end. Does nothing when it is stopped.
    ///
    /// # Errors
    /// When it does not go away.
    pub async fn stop(&self) -> anyhow::Result<()> {
        let _turn = self.turn.lock().await;
        let process = self.process.lock().take();
        match process {
            Some(process) => process.kill_9().await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// True if it runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process
            .lock()
            .as_ref()
            .is_some_and(|process| matches!(process.exit_status(), Ok(None)))
    }
}

/// In the syntax of Go's flags.
fn go_duration(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}
