//! Programs that give credentials, as client-go runs them.

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, anyhow};
use kube::config::{Cluster, ExecAuthCluster, ExecConfig, ExecInteractiveMode};
use serde_json::json;
use watchdog_api::kubeconfig::{PluginCredentials, credentials_of_plugin};
use watchdog_api::text::printable_name;

use super::fields::of_field;

/// A program of `exec` in a kubeconfig.
#[derive(Debug)]
pub(super) struct ExecPlugin {
    exec: ExecConfig,
    command: String,
    cluster: Option<ExecAuthCluster>,
}

impl ExecPlugin {
    pub(super) fn new(exec: ExecConfig, cluster: &Cluster) -> anyhow::Result<Self> {
        let command = exec.command.clone().filter(|command| !command.is_empty());
        let command = command.context("exec of the kubeconfig names no command")?;
        let shown = exec.provide_cluster_info.then_some(cluster);
        let cluster = shown.map(ExecAuthCluster::try_from).transpose();
        let cluster = cluster.context("the cluster cannot be shown to a plugin")?;
        Ok(Self {
            exec,
            command,
            cluster,
        })
    }

    /// Runs it and waits for it. What it writes to standard error goes there, so that a person can read it.
    ///
    /// # Errors
    /// When it cannot be run, fails, or answers something else; never shows its answer.
    pub(super) fn run(&self) -> anyhow::Result<PluginCredentials> {
        let name = self.name();
        let is_terminal = io::stdin().is_terminal();
        let is_interactive = match self.exec.interactive_mode {
            Some(ExecInteractiveMode::Never) => false,
            Some(ExecInteractiveMode::Always) if !is_terminal => {
                return Err(anyhow!(
                    "the exec plugin {name} needs a terminal, but standard input is not a terminal"
                ));
            }
            _ => is_terminal,
        };
        let mut command = Command::new(&self.command);
        command.args(self.exec.args.iter().flatten());
        for variable in self.exec.env.iter().flatten() {
            if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
                command.env(name, value);
            }
        }
        let mut spec = json!({ "interactive": is_interactive });
        if let (Some(cluster), Some(fields)) = (&self.cluster, spec.as_object_mut()) {
            fields.insert("cluster".to_owned(), serde_json::to_value(cluster)?);
        }
        let info = json!({"apiVersion": self.exec.api_version, "kind": "ExecCredential", "spec": spec});
        command.env("KUBERNETES_EXEC_INFO", info.to_string());
        command.stderr(Stdio::inherit());
        command.stdin(if is_interactive {
            Stdio::inherit()
        } else {
            Stdio::null()
        });
        let output = command.output().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                anyhow!("the exec plugin {name} was not found: install it, or put it on the PATH")
            }
            _ => anyhow!("the exec plugin {name} cannot be started: {error}"),
        })?;
        if !output.status.success() {
            let status = output.status;
            return Err(anyhow!(
                "the exec plugin {name} failed ({status}); it says why on standard error"
            ));
        }
        let credentials = credentials_of_plugin(&output.stdout).map_err(of_field);
        credentials.with_context(|| format!("the answer of the exec plugin {name} cannot be used"))
    }

    /// The name of its file.
    fn name(&self) -> String {
        let file = Path::new(&self.command).file_name().unwrap_or_default();
        printable_name(&file.to_string_lossy())
    }
}
