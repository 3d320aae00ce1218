//! Standard error that nobody reads, and what is written to it at the very end. The process under test is this program
//! again, with one of its tests as `main`.

use std::io::{PipeReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use watchdog_runtime::process::run;
use watchdog_runtime::service_builder::ServiceBuilder;

use crate::PATIENCE;
use crate::args::{ON_FREE_PORTS, parse};
use crate::process::{api, is};

/// Where the process under test writes the address of its admin endpoint.
const ADDRESS_FILE: &str = "LOG_SINK_ADDRESS_FILE";

/// Runs a service with one more task, until a signal or the end of the task; then the process exits.
fn serve<F>(task: F)
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let Ok(address_file) = std::env::var(ADDRESS_FILE) else {
        return;
    };
    let common = parse(&ON_FREE_PORTS).unwrap();
    let args = common.clone();
    let code = run(&common, |process| async move {
        let base = ServiceBuilder::bind(args, process).await?;
        base.tasks.spawn_critical("task", task);
        let bound = base.serve(api(), vec![])?;
        std::fs::write(address_file, bound.admin_addr.to_string())?;
        Ok(bound)
    });
    std::process::exit(i32::from(!is(code, 0)));
}

/// The test of this name as a process, with its output in one pipe.
fn start(test: &str, address_file: &std::path::Path) -> (Child, PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("log_sink::{test}"), "--nocapture"])
        .env(ADDRESS_FILE, address_file)
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .spawn()
        .unwrap();
    (child, reader)
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "gave up waiting until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn until_ended(child: &mut Child) -> ExitStatus {
    until("it ends", || child.try_wait().unwrap())
}

/// The answer to a request; none if it does not come.
fn get(admin: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(admin).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn log_without_a_pause() {
    serve(async {
        loop {
            for _ in 0..100 {
                // Larger than what a pipe takes as a whole or not at all, so that it is full to the last byte.
                let padding = "x".repeat(2_000);
                tracing::info!(a = padding, b = padding, c = padding, "a line that nobody reads");
            }
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn panic_after_the_start() {
    serve(async { panic!("the impossible has happened") });
}

#[test]
fn a_pipe_that_nobody_reads_stops_nothing_but_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("address");
    let (mut child, _unread) = start("log_without_a_pause", &file);
    let admin = until("it listens", || std::fs::read_to_string(&file).ok()?.parse().ok());
    until("lines are dropped and counted", || {
        let metrics = get(admin, "/metrics")?;
        let lost = metrics
            .lines()
            .find_map(|line| line.strip_prefix("watchdog_log_lines_lost_total "));
        lost.filter(|lost| *lost != "0").map(drop)
    });
    assert!(get(admin, "/healthz").unwrap().ends_with("ok\n"));
    let ready = get(admin, "/readyz").unwrap();
    assert!(ready.contains("standard error is not read"), "{ready}");
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    let ended = until_ended(&mut child);
    assert!(ended.success(), "{ended}");
}

#[test]
fn the_last_lines_are_written_before_the_process_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, mut output) = start("panic_after_the_start", &dir.path().join("address"));
    let mut log = String::new();
    output.read_to_string(&mut log).unwrap();
    let ended = until_ended(&mut child);
    assert_eq!(ended.code(), Some(1), "{log}");
    for line in [
        "the impossible has happened",
        "the process is exiting because of a failure",
    ] {
        assert!(log.contains(line), "{log}");
    }
}
