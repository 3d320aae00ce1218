//! The command line in process, against programs whose answers a test sets.

pub(crate) mod pod_api;
pub(crate) mod stub_services;
pub(crate) mod tls;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpSocket;
use tokio::sync::watch;

use crate::args::Cli;
use crate::connect::seeds::SeedConnection;
use crate::output::{Output, TerminalSize};
use crate::seed::FollowedSeed;
use crate::{app, args};

/// Longer than any command that is answered takes.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// The text that a command has written so far.
pub(crate) struct Recording(watch::Receiver<String>);

impl Recording {
    /// An output whose text is recorded: of a terminal of that size, in colour, or of a pipe.
    pub(crate) fn new(size: Option<TerminalSize>) -> (Output, Self) {
        Self::resized(Arc::new(Mutex::new(size)))
    }

    /// Of a terminal whose size changes.
    pub(crate) fn resized(size: Arc<Mutex<Option<TerminalSize>>>) -> (Output, Self) {
        let (sender, text) = watch::channel(String::new());
        let is_terminal = size.lock().unwrap().is_some();
        let output = Output::new(
            move || *size.lock().unwrap(),
            is_terminal,
            RecordingWriter(sender),
        );
        (output, Self(text))
    }

    pub(crate) fn text(&self) -> String {
        self.0.borrow().clone()
    }

    /// Waits until all that was written has this in it.
    pub(crate) async fn until(&mut self, part: &str) -> String {
        let found = self.0.wait_for(|text| text.contains(part));
        let found = tokio::time::timeout(BOUND, found).await;
        found.unwrap().unwrap().clone()
    }
}

struct RecordingWriter(watch::Sender<String>);

impl Write for RecordingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        self.0.send_modify(|all| all.push_str(text));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How a command ended, and its standard output or its error.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: ExitCode,
    pub(crate) text: String,
}

/// The options of programs without TLS that all have this address.
pub(crate) fn options(address: &str) -> String {
    format!("--insecure-plaintext --lease-probe {address} --scaling-coordinator {address} --weeder {address}")
}

/// Runs a command in a pipe.
pub(crate) async fn run(line: &str) -> Ended {
    let cli = match parsed(line) {
        Ok(cli) => cli,
        Err(error) => {
            return Ended {
                code: ExitCode::from(u8::try_from(error.exit_code()).unwrap()),
                text: error.to_string(),
            };
        }
    };
    let (output, recording) = Recording::new(None);
    let ended = tokio::time::timeout(BOUND, app::dispatch(cli, &output)).await;
    match ended.unwrap() {
        Ok(code) => Ended {
            code,
            text: recording.text(),
        },
        Err(error) => Ended {
            code: ExitCode::from(error.code),
            text: error.to_string(),
        },
    }
}

/// The output of a command that succeeds.
pub(crate) async fn shown(line: &str) -> String {
    let ended = run(line).await;
    assert_eq!(ended.code, ExitCode::SUCCESS, "{line}: {}", ended.text);
    ended.text
}

/// The output of a command for programs, whatever its exit code.
pub(crate) async fn json(line: &str) -> serde_json::Value {
    let ended = run(&format!("{line} -o json")).await;
    serde_json::from_str(&ended.text).unwrap_or_else(|_| panic!("{line}: {}", ended.text))
}

/// The arguments of a command, which are separated by spaces.
pub(crate) fn parsed(line: &str) -> Result<Cli, clap::Error> {
    let words = ["watchdogctl"].into_iter().chain(line.split(' '));
    args::parse(words.map(OsString::from))
}

/// The seeds that a command goes on about.
pub(crate) async fn followed(line: &str) -> Vec<FollowedSeed> {
    let connect = parsed(line).unwrap().connect;
    let seeds = SeedConnection::each_to_follow(&connect)
        .await
        .unwrap()
        .into_iter();
    seeds.map(FollowedSeed::start).collect()
}

/// Runs a command that does not end until something has come about.
pub(crate) async fn running<T>(line: &str, output: &Output, until: impl Future<Output = T>) -> T {
    tokio::select! {
        ended = app::dispatch(parsed(line).unwrap(), output) => panic!("{ended:?}"),
        found = until => found,
    }
}

/// Runs a command that does not end until it has written this.
pub(crate) async fn until(line: &str, recording: &mut Recording, output: &Output, part: &str) -> String {
    running(line, output, recording.until(part)).await
}

/// An address where nothing listens as long as the socket is kept.
pub(crate) fn closed_address() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

/// Runs a command that fails with this exit code, and with this in its text.
pub(crate) async fn fails(line: &str, code: u8, part: &str) {
    let ended = run(line).await;
    assert_eq!(ended.code, ExitCode::from(code), "{line}: {}", ended.text);
    assert!(
        ended.text.contains(part),
        "{line}: {part:?} is not in {}",
        ended.text
    );
}

/// Asserts that a text has all parts in it.
pub(crate) fn assert_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}
