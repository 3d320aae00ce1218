//! A seed's API server: the sandbox for speed, a real kube-apiserver for truth.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;
use watchdog_test_support::binaries;
use watchdog_test_support::process::Command;
use watchdog_test_support::real::RealControlPlane;
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::wait::{self, BOUND};

use crate::fleet::admin;

/// A running seed.
pub struct BenchSeed {
    /// An administrator's kubeconfig.
    pub kubeconfig: String,
    /// Where the sandbox lists its requests; a real kube-apiserver has no such address.
    control: Option<String>,
    _processes: Box<dyn Any>,
}

/// A request that the sandbox noted.
#[derive(Debug, Deserialize)]
struct Audited {
    /// Number, from 1.
    id: u64,
    /// `get`, `list`, `watch`, `create`, …
    verb: String,
    /// Path without the query.
    path: String,
}

impl BenchSeed {
    /// Starts one.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start(scratch: &Arc<Scratch>, real: bool) -> anyhow::Result<Self> {
        if real {
            let plane = RealControlPlane::start("bench-seed").await?;
            let server = plane.api_server("seed").await?;
            return Ok(Self {
                kubeconfig: server.kubeconfig_for("admin")?,
                control: None,
                _processes: Box::new((server, plane)),
            });
        }
        let process = Command::new("seed", binaries::path(binaries::SANDBOX)?)
            .args(["--shoots", "0", "--dir"])
            .arg(scratch.path())
            .spawn(scratch)?;
        let addresses = scratch.join("addresses.json");
        let text = wait::until("the sandbox has started", BOUND, || async {
            Ok(std::fs::read_to_string(&addresses).ok())
        })
        .await?;
        let addresses: Value = serde_json::from_str(&text)?;
        let control = addresses.get("control").and_then(Value::as_str);
        let control = control.and_then(|url| url.strip_prefix("http://"));
        Ok(Self {
            kubeconfig: std::fs::read_to_string(scratch.join("seed.kubeconfig"))?,
            control: Some(
                control
                    .context("the sandbox names no control endpoint")?
                    .to_owned(),
            ),
            _processes: Box::new(process),
        })
    }

    /// Number of the newest request.
    ///
    /// # Errors
    /// When the seed does not answer, or is not the sandbox.
    pub async fn last_request(&self) -> anyhow::Result<u64> {
        Ok(self.audit(0).await?.last().map_or(0, |request| request.id))
    }

    /// Requests since one, by verb and resource.
    ///
    /// # Errors
    /// When the seed does not answer, or is not the sandbox.
    pub async fn requests_since(&self, since: u64) -> anyhow::Result<BTreeMap<String, u64>> {
        let mut counts = BTreeMap::new();
        for request in self.audit(since).await? {
            *counts.entry(what(&request)).or_default() += 1;
        }
        Ok(counts)
    }

    async fn audit(&self, since: u64) -> anyhow::Result<Vec<Audited>> {
        let control = self.control.as_deref().context("a real kube-apiserver")?;
        admin::request(control, "GET", &format!("/audit?since={since}")).await
    }
}

/// `list machines`, `patch leases` and the like.
fn what(request: &Audited) -> String {
    let parts: Vec<&str> = request.path.split('/').filter(|part| !part.is_empty()).collect();
    let namespaced = parts.iter().position(|part| *part == "namespaces");
    let resource = match namespaced {
        Some(at) => parts.get(at + 2),
        None => parts.last(),
    };
    format!("{} {}", request.verb, resource.copied().unwrap_or("namespaces"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_named_by_their_resource() {
        let request = |verb: &str, path: &str| Audited {
            id: 1,
            verb: verb.into(),
            path: path.into(),
        };
        let machines = request(
            "list",
            "/apis/machine.sapcloud.io/v1alpha1/namespaces/shoot--a/machines",
        );
        assert_eq!(what(&machines), "list machines");
        assert_eq!(what(&request("watch", "/api/v1/secrets")), "watch secrets");
        assert_eq!(
            what(&request("get", "/api/v1/namespaces/garden")),
            "get namespaces"
        );
    }
}
