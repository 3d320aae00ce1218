//! `--check-config`, by the program itself.

#![cfg(test)]

use std::io::Write as _;
use std::process::Command;

use tempfile::NamedTempFile;
use watchdog_test_support::fixtures;

/// The exit code, and what the check prints about this file.
fn check(role: &str, content: &str) -> (Option<i32>, String) {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(content.as_bytes()).unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_dependency-watchdog"))
        .arg(role)
        .arg(format!("--config-file={}", file.path().display()))
        .arg("--check-config")
        .output()
        .unwrap();
    let path = file.path().display().to_string();
    let printed = String::from_utf8(checked.stderr).unwrap();
    (checked.status.code(), printed.replace(&path, "FILE"))
}

#[test]
fn what_the_go_program_takes_and_ignores_is_named_once() {
    for (role, content) in [
        ("prober", fixtures::prober("probeInterval: 1s", "0s")),
        ("weeder", fixtures::weeder("5m")),
    ] {
        assert_eq!(check(role, &content), (Some(0), String::new()), "{role}");
        let (code, printed) = check(role, &format!("fromTheFuture: 1\n{content}"));
        let expected = "these unknown fields are ignored:\nFILE:1:1: fromTheFuture: unknown field\n";
        assert_eq!((code, &*printed), (Some(0), expected), "{role}");
        let (code, printed) = check(role, "fromTheFuture: 1\n");
        assert_eq!(code, Some(2), "{role}: {printed}");
    }
}
