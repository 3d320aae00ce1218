//! A real kube-controller-manager: the node lifecycle that causes meltdowns.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::pki::Pki;
use super::{Assets, KubeApiserver, is_well, kubeconfig};
use crate::ports::{free_port, start_on_free_ports};
use crate::process::{ChildProcess, Command};
use crate::sandboxed;
use crate::scratch::Scratch;

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
    pub async fn start(&self) -> anyhow::Result<()> {
        let _turn = self.turn.lock().await;
        if self.is_running() {
            return Ok(());
        }
        let process = start_on_free_ports(|| self.start_on(free_port())).await?;
        *self.process.lock() = Some(process);
        Ok(())
    }

    async fn start_on(&self, port: anyhow::Result<u16>) -> anyhow::Result<ChildProcess> {
        let port = port?;
        let command = self.command.clone().arg(format!("--secure-port={port}"));
        let process = command.spawn(&self.scratch)?;
        // Its health needs no credentials, so any token does.
        let url = format!("https://127.0.0.1:{port}");
        let client = sandboxed::client(&kubeconfig(&url, &self.ca_pem, "nobody", "none")).await?;
        process
            .wait_until("it is healthy", || is_well(&client, "/healthz"))
            .await?;
        Ok(process)
    }

    /// Kills it, as scaling its Deployment to zero does in the end. Does nothing when it is stopped.
    pub async fn stop(&self) -> anyhow::Result<()> {
        let _turn = self.turn.lock().await;
        let process = self.process.lock().take();
        match process {
            Some(process) => process.kill_9().await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// Starts or stops it, as its Deployment does.
    pub async fn scale(&self, replicas: i64) -> anyhow::Result<()> {
        match replicas {
            0 => self.stop().await,
            _ => self.start().await,
        }
    }

    /// True if it runs.
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
