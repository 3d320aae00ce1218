//! The configuration files of today load unchanged, and bad ones say all that is wrong with them.

use std::process::Output;

use watchdog_test_support::binaries::{self, LEASE_PROBE, SCALING_COORDINATOR, WEEDER};
use watchdog_test_support::scratch::Scratch;

/// The files that Gardener deploys today.
const PROBER: &str = include_str!("../../../../services/common/api/tests/fixtures/prober-gardener.yaml");
const WEEDER_FILE: &str = include_str!("../../../../services/common/api/tests/fixtures/weeder-gardener.yaml");

fn check(binary: &str, content: &str, arguments: &[&str]) -> Output {
    let scratch = Scratch::new("config").unwrap();
    let file = scratch.write("config.yaml", content).unwrap();
    std::process::Command::new(binaries::path(binary).unwrap())
        .args(["--check-config", "--config-file"])
        .arg(file)
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn the_files_that_gardener_deploys_load_unchanged() {
    for (binary, file) in [
        (LEASE_PROBE, PROBER),
        (SCALING_COORDINATOR, PROBER),
        (WEEDER, WEEDER_FILE),
    ] {
        let output = check(binary, file, &[]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{binary}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn a_bad_file_says_everything_at_once_with_its_place() {
    let bad = "probeIntervall: 30s
probeInterval: soon
nodeLeaseFailureFraction: 1.5
dependentResourceInfos:
- ref: {kind: Deployment, name: kube-controller-manager}
  scaleUp: {level: -1}
";
    for binary in [LEASE_PROBE, SCALING_COORDINATOR] {
        let output = check(binary, bad, &[]);
        assert_eq!(output.status.code(), Some(2));
        let errors = String::from_utf8(output.stderr).unwrap();
        for (place, what) in [
            ("config.yaml:1:1: ", "probeInterval"),
            ("config.yaml:2:16: probeInterval: ", "soon"),
            ("config.yaml:3:27: nodeLeaseFailureFraction: ", "1.5"),
            ("dependentResourceInfos[0].scaleUp.level: ", "-1"),
            ("dependentResourceInfos[0].ref.apiVersion: ", "required"),
            ("kubeConfigSecretName: ", "required"),
        ] {
            let found = errors
                .lines()
                .any(|line| line.contains(place) && line.contains(what));
            assert!(found, "{place}{what} is missing in:\n{errors}");
        }
    }
    let output = check(
        WEEDER,
        "watchDuration: never\nservicesAndDependantSelectors: {}\n",
        &[],
    );
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("config.yaml:1:16: watchDuration"), "{errors}");
}

/// For a file that somebody else writes for several versions; everything else is refused as ever.
#[test]
fn unknown_fields_may_be_ignored() {
    let newer = |file: &str| format!("{file}\nfromTheFuture: 1\n");
    for (binary, file) in [
        (LEASE_PROBE, PROBER),
        (SCALING_COORDINATOR, PROBER),
        (WEEDER, WEEDER_FILE),
    ] {
        let code = |content: &str, arguments: &[&str]| check(binary, content, arguments).status.code();
        assert_eq!(code(&newer(file), &[]), Some(2), "{binary}");
        assert_eq!(
            code(&newer(file), &["--ignore-unknown-fields"]),
            Some(0),
            "{binary}"
        );
        assert_eq!(code("fromTheFuture: 1\n", &["--ignore-unknown-fields"]), Some(2));
    }
}

#[test]
fn a_wrong_command_line_is_refused_with_what_to_do() {
    for binary in [LEASE_PROBE, SCALING_COORDINATOR, WEEDER] {
        let run = |arguments: &[&str]| {
            std::process::Command::new(binaries::path(binary).unwrap())
                .args(arguments)
                .output()
                .unwrap()
        };
        let help = run(&["--help"]);
        assert_eq!(help.status.code(), Some(0));
        let text = String::from_utf8(help.stdout).unwrap();
        for flag in [
            "--config-file",
            "--kubeconfig",
            "--grpc-addr",
            "--tls-cert",
            "--insecure-plaintext",
            "--check-config",
        ] {
            assert!(text.contains(flag), "{binary} --help does not name {flag}");
        }
        let plain = run(&["--config-file", "x.yaml"]);
        assert_eq!(
            plain.status.code(),
            Some(2),
            "plaintext only when asked for by name"
        );
        assert!(String::from_utf8_lossy(&plain.stderr).contains("--tls-cert"));
        let missing = run(&["--config-file", "no-such-file.yaml", "--insecure-plaintext"]);
        assert_eq!(missing.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&missing.stderr).contains("no-such-file.yaml: cannot read"));
    }
}
