//! A client for the admin endpoint of the fleet and the control endpoint of the sandbox.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fleet::admin::{EffectiveAt, Loss, OutageBegin, OutageEnd, ScaleChange};
use crate::fleet::{OutageMode, Report, ShootReport};

/// A report on a million nodes takes a moment.
const DEADLINE: Duration = Duration::from_secs(60);

/// The admin endpoint of a fleet.
#[derive(Debug, Clone)]
pub struct FleetAdmin {
    address: String,
}

impl FleetAdmin {
    /// At `host:port`.
    #[must_use]
    pub const fn new(address: String) -> Self {
        Self { address }
    }

    /// `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The fleet's observations so far.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn report(&self) -> anyhow::Result<Report> {
        get(&self.address, "/report").await
    }

    /// Its record of every shoot.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn shoots(&self) -> anyhow::Result<Vec<ShootReport>> {
        get(&self.address, "/shoots").await
    }

    /// When dependants were scaled.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn scales(&self) -> anyhow::Result<Vec<ScaleChange>> {
        get(&self.address, "/scales").await
    }

    /// Cuts nodes off.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn lose(&self, loss: Loss) -> anyhow::Result<()> {
        self.post("/lose", &serde_json::to_string(&loss)?).await
    }

    /// All API servers fail; says since when.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn begin_outage(&self, mode: OutageMode) -> anyhow::Result<i64> {
        self.effective("/outage/begin", &OutageBegin { mode }).await
    }

    /// All API servers answer again; says since when.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn end_outage(&self, end: OutageEnd) -> anyhow::Result<i64> {
        self.effective("/outage/end", &end).await
    }

    /// Reconnects all nodes.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn recover(&self) -> anyhow::Result<()> {
        self.post("/recover", "").await
    }

    /// Forgets maxima.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn mark(&self) -> anyhow::Result<()> {
        self.post("/mark", "").await
    }

    async fn effective<T: Serialize + Sync>(&self, path: &str, body: &T) -> anyhow::Result<i64> {
        let answer = exchange(&self.address, "POST", path, &serde_json::to_string(body)?).await?;
        let EffectiveAt { at } =
            serde_json::from_slice(&answer).with_context(|| format!("the answer to {path}"))?;
        Ok(at)
    }

    async fn post(&self, path: &str, body: &str) -> anyhow::Result<()> {
        exchange(&self.address, "POST", path, body).await.map(drop)
    }
}

/// GET of JSON from `host:port`.
///
/// # Errors
/// When there is no answer, or none with success, or not the JSON asked for.
pub async fn get<T: DeserializeOwned>(address: &str, path: &str) -> anyhow::Result<T> {
    let body = exchange(address, "GET", path, "").await?;
    serde_json::from_slice(&body).with_context(|| format!("the answer to {path}"))
}

async fn exchange(address: &str, method: &str, path: &str, body: &str) -> anyhow::Result<Vec<u8>> {
    let talk = async {
        let mut tcp = TcpStream::connect(address).await?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        tcp.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        tcp.read_to_end(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = tokio::time::timeout(DEADLINE, talk)
        .await
        .with_context(|| format!("{method} {path} at {address} takes too long"))??;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.context("no HTTP answer")? + 4);
    let head = String::from_utf8_lossy(head);
    let code: u16 = head.split_whitespace().nth(1).unwrap_or_default().parse()?;
    ensure!(
        (200..300).contains(&code),
        "{method} {path} at {address} answered {code}: {}",
        String::from_utf8_lossy(body)
    );
    Ok(body.to_vec())
}
