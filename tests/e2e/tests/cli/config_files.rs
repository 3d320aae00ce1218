//! The exit code and the message for configuration files, good and bad, and for wrong command lines. What is read and
//! refused is tested beside the parsers.

use std::process::Output;

use watchdog_test_support::binaries::{self, LEASE_PROBE, SCALING_COORDINATOR, WEEDER};
use watchdog_test_support::scratch::Scratch;

/// The files that Gardener deploys today.
const PROBER: &str = include_str!("../../../../services/common/api/tests/fixtures/prober-gardener.yaml");
const WEEDER_FILE: &str = include_str!("../../../../services/common/api/tests/fixtures/weeder-gardener.yaml");

const ALL: [(&str, &str); 3] = [
    (LEASE_PROBE, PROBER),
    (SCALING_COORDINATOR, PROBER),
    (WEEDER, WEEDER_FILE),
];

fn run(binary: &str, arguments: &[&str]) -> Output {
    std::process::Command::new(binaries::path(binary).unwrap())
        .args(arguments)
        .output()
        .unwrap()
}

/// The exit code and the errors of a check of this file.
fn check(binary: &str, content: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let scratch = Scratch::new("config").unwrap();
    let file = scratch.write("config.yaml", content).unwrap();
    let check = ["--check-config", "--config-file", file.to_str().unwrap()];
    let output = run(binary, &[&check[..], arguments].concat());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Unknown fields are ignored on request, for a file that somebody else writes for several versions; everything else is
/// refused as ever.
#[test]
fn the_files_that_gardener_deploys_load_unchanged_and_a_bad_one_says_where() {
    for (binary, file) in ALL {
        let newer = format!("{file}\nfromTheFuture: 1\n");
        let ignore = ["--ignore-unknown-fields"];
        for (content, arguments, expected) in [
            (file, &[][..], 0),
            ("fromTheFuture: 1\n", &[], 2),
            (&newer, &[], 2),
            (&newer, &ignore, 0),
            ("fromTheFuture: 1\n", &ignore, 2),
        ] {
            let (code, errors) = check(binary, content, arguments);
            assert_eq!(code, Some(expected), "{binary}: {errors}");
        }
        let (_, errors) = check(binary, "fromTheFuture: 1\n", &[]);
        assert!(errors.contains("config.yaml:1:1: "), "{binary}: {errors}");
        let (_, warning) = check(binary, &newer, &ignore);
        assert!(
            warning.contains(": fromTheFuture: unknown field\n"),
            "{binary}: {warning}"
        );
    }
}

#[test]
fn a_wrong_command_line_is_refused_with_what_to_do() {
    for (binary, _) in ALL {
        let absent = "no-such-file.yaml";
        for (arguments, part) in [
            // Plaintext only when it is asked for by name.
            (&["--config-file", absent][..], "--tls-cert"),
            (
                &["--config-file", absent, "--insecure-plaintext"],
                "no-such-file.yaml: cannot read",
            ),
        ] {
            let refused = run(binary, arguments);
            let errors = String::from_utf8(refused.stderr).unwrap();
            assert_eq!(
                (refused.status.code(), errors.contains(part)),
                (Some(2), true),
                "{errors}"
            );
        }
    }
}
