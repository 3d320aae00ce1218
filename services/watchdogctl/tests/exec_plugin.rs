//! The program itself, with a kubeconfig whose exec plugin hangs.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use tempfile::TempDir;

#[test]
fn a_plugin_that_hangs_is_named_while_it_does() {
    let folder = TempDir::new().unwrap();
    let (kubeconfig, gate) = (folder.path().join("kubeconfig"), folder.path().join("gate"));
    fs::write(&gate, "").unwrap();
    // It ends with the gate, so that no process is left behind.
    let wait = format!("while [ -e {} ]; do sleep 0.1; done; exit 1", gate.display());
    let api_version = "client.authentication.k8s.io/v1";
    let exec = serde_json::json!({
        "apiVersion": api_version, "command": "/bin/sh", "args": ["-c", wait], "interactiveMode": "Never",
    });
    let document = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: seed\n\
         clusters: [{{name: seed, cluster: {{server: \"https://127.0.0.1:1\"}}}}]\n\
         users: [{{name: me, user: {{exec: {exec}}}}}]\n\
         contexts: [{{name: seed, context: {{cluster: seed, user: me}}}}]\n"
    );
    fs::write(&kubeconfig, document).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_watchdogctl"));
    program
        .args(["--context", "seed", "--kubeconfig"])
        .arg(&kubeconfig)
        .arg("verdicts");
    let mut process = program.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let waiting = lines.next().unwrap().unwrap();
    fs::remove_file(&gate).unwrap();
    let error = lines.next().unwrap().unwrap();
    let code = process.wait().unwrap().code();
    assert_eq!(
        waiting,
        "waiting for the credentials of the kubeconfig, context seed: its exec plugin or identity provider has not \
         answered for 2 s"
    );
    assert!(
        error.contains("the exec plugin sh failed (exit status: 1)"),
        "{error}"
    );
    assert_eq!(code, Some(2));
}
