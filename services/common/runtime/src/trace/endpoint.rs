//! Where the collector is.

use std::str::FromStr;

use anyhow::{Context as _, anyhow, bail, ensure};
use http::Uri;

/// The port of OTLP over gRPC, as its specification has it.
const DEFAULT_PORT: u16 = 4317;

/// A collector that takes OTLP over gRPC: `http://host:port`, or `https://host:port` with the certificates of this
/// process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpEndpoint {
    /// `host:port`.
    pub(super) address: String,
    /// The host alone: the name that its certificate must carry.
    pub(super) host: String,
    /// True if it is called with TLS.
    pub(super) tls: bool,
}

impl FromStr for OtlpEndpoint {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let form = "must be of the form http://host:port or https://host:port";
        let uri: Uri = text.parse().map_err(|_| anyhow!(form))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => bail!(form),
        };
        let host = uri.host().filter(|host| !host.is_empty()).context(form)?;
        let bare = uri.path() == "/" && uri.query().is_none() && !text.contains('@');
        ensure!(bare, "{form}, without anything else");
        Ok(Self {
            address: format!("{host}:{}", uri.port_u16().unwrap_or(DEFAULT_PORT)),
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            tls,
        })
    }
}
