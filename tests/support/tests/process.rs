//! Child processes: logs, signals, and that none outlives its owner.

#![cfg(test)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use watchdog_test_support::process::{ChildProcess, Command};
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::wait;

const BOUND: Duration = Duration::from_secs(10);

fn shell(script: &str) -> (Arc<Scratch>, ChildProcess) {
    let scratch = Scratch::new("process").unwrap();
    let process = Command::new("shell", "/bin/sh")
        .arg("-c")
        .arg(script)
        .spawn(&scratch)
        .unwrap();
    (scratch, process)
}

fn exists(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test]
async fn a_process_that_ends_early_is_reported_at_once_with_its_log() {
    let (_scratch, process) = shell("echo no such config >&2; exit 2");
    let begin = Instant::now();
    let error = process
        .wait_for_text("listening", BOUND)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("exit status: 2") && error.contains("no such config"),
        "{error}"
    );
    assert!(begin.elapsed() < BOUND);
    assert_eq!(process.wait_exit(BOUND).await.unwrap().code(), Some(2));
    process.sigterm().unwrap();
}

#[tokio::test]
async fn one_that_ignores_sigterm_is_killed_and_that_is_an_error() {
    let (_scratch, process) = shell("trap '' TERM; echo ready; while :; do sleep 0.05; done");
    process.wait_for_text("ready", BOUND).await.unwrap();
    assert!(process.stop(Duration::from_millis(100)).await.is_err());
    assert!(process.exit_status().unwrap().is_some());
}

#[tokio::test]
async fn dropping_kills_children_of_the_child_too() {
    let (_scratch, process) = shell("sleep 60 & echo $!; wait");
    let child: i32 = process
        .wait_for_line("pid", BOUND, |line| line.text.parse().ok())
        .await
        .unwrap();
    let own = process.id();
    assert!(exists(own) && exists(child));
    process.sigstop().unwrap();
    drop(process);
    assert!(!exists(own), "killed and reaped, though it was frozen");
    // The grandchild is reaped by the process that adopted it.
    wait::until_true("the grandchild is gone", BOUND, || async {
        Ok(!exists(child) || is_zombie(child))
    })
    .await
    .unwrap();
}

fn is_zombie(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

#[tokio::test]
async fn a_panicking_test_leaves_no_process() {
    let (scratch, process) = shell("sleep 60");
    let (pid, folder) = (process.id(), scratch.path().to_owned());
    let test = tokio::spawn(async move {
        let _owned = (process, scratch);
        panic!("as a failing assertion does");
    });
    assert!(test.await.unwrap_err().is_panic());
    assert!(!exists(pid));
    assert!(folder.exists(), "the logs of a failed test are kept");
    std::fs::remove_dir_all(folder).unwrap();
}

/// The same as when a test runner kills a hung test: no destructor runs.
#[tokio::test]
async fn even_sigkill_of_the_owner_leaves_no_process() {
    let scratch = Scratch::new("process").unwrap();
    let own = std::env::current_exe().unwrap();
    let owner = Command::new("owner", own)
        .args(["--exact", "owner_that_waits", "--nocapture"])
        .env("OWNER", "1")
        // It has no time to clean up: what it leaves goes with this test's folder.
        .env("TMPDIR", scratch.path());
    let owner = owner.spawn(&scratch).unwrap();
    let child: i32 = owner
        .wait_for_line("pid", BOUND, |line| {
            line.text.split_once("child=")?.1.parse().ok()
        })
        .await
        .unwrap();
    assert!(exists(child));
    owner.kill_9().await.unwrap();
    wait::until_true("the child is gone", BOUND, || async {
        Ok(!exists(child) || is_zombie(child))
    })
    .await
    .unwrap();
}

/// The other half of the test above: does nothing unless it is started by it.
#[tokio::test]
async fn owner_that_waits() {
    if std::env::var_os("OWNER").is_some() {
        let (_scratch, process) = shell("sleep 60");
        println!("child={}", process.id());
        let _ = process.wait_exit(Duration::from_secs(60)).await;
    }
}
