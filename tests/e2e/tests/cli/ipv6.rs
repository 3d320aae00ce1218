//! The default addresses on a Pod that has only IPv6, and on one that has both.

use std::path::Path;

use watchdog_test_support::binaries::{self, WEEDER};
use watchdog_test_support::scratch::Scratch;

/// Of a seed that nobody needs to reach.
const KUBECONFIG: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "seed",
"contexts": [{"name": "seed", "context": {"cluster": "seed", "user": "weeder"}}],
"clusters": [{"name": "seed", "cluster": {"server": "https://[::1]:1"}}],
"users": [{"name": "weeder", "user": {"token": "none"}}]}"#;

/// Each namespace has the default ports to itself.
fn runs_in_a_namespace_with(families: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/ipv6.py");
    let scratch = Scratch::new("ipv6").unwrap();
    let kubeconfig = scratch.write("kubeconfig", KUBECONFIG).unwrap();
    let selectors =
        "servicesAndDependantSelectors:\n  etcd: {podSelectors: [{matchLabels: {role: apiserver}}]}\n";
    let config = scratch.write("weeder.yaml", selectors).unwrap();
    let output = std::process::Command::new("unshare")
        .args(["--map-root-user", "--net", "python3"])
        .arg(script)
        .arg(families)
        .arg(binaries::path(WEEDER).unwrap())
        .args(["--insecure-plaintext", "--identity=weeder-0", "--config-file"])
        .arg(config)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
}

#[test]
fn a_pod_with_only_ipv6_is_served() {
    runs_in_a_namespace_with("v6");
}

#[test]
fn a_pod_with_both_is_served_over_both() {
    runs_in_a_namespace_with("dual");
}
