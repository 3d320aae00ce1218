//! A process from its command line to its exit code. What it installs is installed once: this is one test.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tonic::service::RoutesBuilder;
use watchdog_runtime::cli;
use watchdog_runtime::grpc_server::Api;
use watchdog_runtime::metrics::{Collector, Exposition, Gauge};
use watchdog_runtime::process::{EXIT_USAGE, run};
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::service_builder::ServiceBuilder;

use crate::PATIENCE;
use crate::args::{Args, ON_FREE_PORTS, parse};
use crate::server::SERVICE;

watchdog_runtime::label!(struct FileKind: "kind");

const FILES: Gauge<FileKind<'_>> = Gauge::new("watchdog_test_files", "Files.");

struct Files;

impl Collector for Files {
    fn collect(&self, out: &mut Exposition) {
        out.family(&FILES, [(FileKind("config"), 3.0)]);
    }
}

async fn ask(admin: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    exchange(TcpStream::connect(admin).await.unwrap(), method, path, body).await
}

/// Sends a request as the only one of a connection, and reads the answer.
pub async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    method: &str,
    path: &str,
    body: &str,
) -> (u16, String) {
    let exchange = async {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    let text = tokio::time::timeout(PATIENCE, exchange).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Looks at everything that the admin endpoint shows.
async fn visit(admin: SocketAddr, readiness: &Readiness) {
    assert_eq!(ask(admin, "GET", "/healthz", "").await, (200, "ok\n".to_owned()));
    let blocker = readiness.block("clusters", "not listed yet");
    let not_ready = (503, "clusters: not listed yet\n".to_owned());
    assert_eq!(ask(admin, "GET", "/readyz", "").await, not_ready);
    let (_, metrics) = ask(admin, "GET", "/metrics", "").await;
    assert!(
        metrics.contains("watchdog_readiness_blocked{blocker=\"clusters\"} 1\n"),
        "{metrics}"
    );
    drop(blocker);
    assert_eq!(
        ask(admin, "GET", "/readyz", "").await,
        (200, "ready\n".to_owned())
    );

    let (code, metrics) = ask(admin, "GET", "/metrics", "").await;
    assert_eq!(code, 200);
    for line in ["watchdog_ready 1", "watchdog_test_files{kind=\"config\"} 3"] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} is not in {metrics}"
        );
    }
    let (code, answer) = ask(admin, "PUT", "/log-level", "warn,watchdog_runtime=debug\n").await;
    assert_eq!((code, &*answer), (200, "changed\n"));
    let (code, answer) = ask(admin, "PUT", "/log-level", "loud=very").await;
    assert!(
        code == 400 && answer.contains("bad log filter \"loud=very\""),
        "{answer}"
    );
    assert_eq!(ask(admin, "GET", "/elsewhere", "").await.0, 404);
}

/// The API of a service without any methods.
pub fn api() -> Api {
    Api {
        routes: RoutesBuilder::default(),
        service_names: &[SERVICE],
        descriptors: &[],
    }
}

pub fn is(code: ExitCode, expected: u8) -> bool {
    format!("{code:?}") == format!("{:?}", ExitCode::from(expected))
}

#[test]
fn from_the_command_line_to_the_exit_code() {
    // The command line of the test itself, which is none of a service.
    assert!(is(cli::parse_or_exit::<Args>().unwrap_err(), EXIT_USAGE));
    let mut common = parse(&ON_FREE_PORTS).unwrap();
    common.log_level = "loud=very".to_owned();
    let never = |_| async { panic!("nothing is built on a bad command line") };
    assert!(is(run(&common, never), EXIT_USAGE));

    common.log_level = "info".to_owned();
    let visited = Arc::new(AtomicBool::new(false));
    let (args, seen) = (common.clone(), visited.clone());
    let code = run(&common, |process| async move {
        // From here on a signal ends nothing but what listens to it.
        let mut own = signal(SignalKind::terminate())?;
        let base = ServiceBuilder::bind(args, process).await?;
        let (tasks, readiness, draining) =
            (base.tasks.clone(), base.readiness.clone(), base.draining.clone());
        let bound = base.serve(api(), vec![Arc::new(Files)])?;
        let admin = bound.admin_addr;
        tasks.critical("visitor", async move {
            visit(admin, &readiness).await;
            let pid = std::process::id();
            // Once the process listens to signals, one is enough.
            while !draining.is_cancelled() {
                let kill = format!("kill -TERM {pid}");
                let sent = std::process::Command::new("sh").args(["-c", &kill]).status()?;
                anyhow::ensure!(sent.success());
                own.recv().await;
                let _ = tokio::time::timeout(PATIENCE / 3, draining.cancelled()).await;
            }
            seen.store(true, SeqCst);
            Ok(())
        });
        Ok(bound)
    });
    assert!(visited.load(SeqCst), "the visitor did not come to its end");
    assert!(is(code, 0), "{code:?}");

    // There is one process in a process: logs and metrics go one way only.
    assert!(is(run(&common, never), EXIT_USAGE));
}
