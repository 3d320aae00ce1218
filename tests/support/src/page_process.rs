//! The page of `watchdogctl ui`, served by the program.

use std::sync::Arc;

use crate::binaries;
use crate::process::{ChildProcess, Command};
use crate::scratch::Scratch;
use crate::wait::BOUND;
use crate::watchdog::{SERVER_NAME, Service, Setup};

/// Serves until it is dropped.
pub struct PageProcess {
    /// Its address.
    pub url: String,
    _process: ChildProcess,
}

impl PageProcess {
    /// Starts it, and waits until it is served.
    pub async fn start(
        setup: &Setup,
        scratch: &Arc<Scratch>,
        lease_probe: &Service,
        coordinator: &Service,
    ) -> anyhow::Result<Self> {
        let files = setup.client_files();
        let process = Command::new("page", binaries::path(binaries::WATCHDOGCTL)?)
            .args([
                "--lease-probe",
                &lease_probe.grpc,
                "--scaling-coordinator",
                &coordinator.grpc,
            ])
            .args(["--tls-server-name", SERVER_NAME, "--tls-ca"])
            .arg(&files.ca)
            .arg("--tls-cert")
            .arg(&files.cert)
            .arg("--tls-key")
            .arg(&files.key)
            .arg("ui")
            .spawn(scratch)?;
        let is_address = |line: crate::log::LogRecord<'_>| {
            let is_url = line.text.starts_with("http://127.0.0.1:");
            is_url.then(|| line.text.trim().to_owned())
        };
        let url = process
            .wait_for_line("address of the page", BOUND, is_address)
            .await?;
        Ok(Self {
            url,
            _process: process,
        })
    }
}
