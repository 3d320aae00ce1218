//! A seed's API server: the sandbox for speed, a real kube-apiserver for truth.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;
use watchdog_test_support::binaries;
use watchdog_test_support::process::{ChildProcess, Command};
use watchdog_test_support::real::{KubeApiserver, RealControlPlane};
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::wait;

use super::admin;

/// The sandbox starts within milliseconds; a busy machine may need longer.
const START_BOUND: Duration = Duration::from_secs(30);

/// A running seed.
pub struct BenchSeed {
    /// An administrator's kubeconfig.
    pub kubeconfig: String,
    kind: SeedKind,
}

enum SeedKind {
    Sandbox {
        control: String,
        _process: ChildProcess,
    },
    Real {
        _server: Box<KubeApiserver>,
        _plane: Box<RealControlPlane>,
    },
}

/// A request that the sandbox noted.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Audited {
    /// Number, from 1.
    pub id: u64,
    /// `get`, `list`, `watch`, `create`, …
    pub verb: String,
    /// Path without the query.
    pub path: String,
    /// `User-Agent` header.
    pub user_agent: String,
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
                kind: SeedKind::Real {
                    _server: Box::new(server),
                    _plane: Box::new(plane),
                },
            });
        }
        let process = Command::new("seed", binaries::path(binaries::SANDBOX)?)
            .args(["--shoots", "0", "--dir"])
            .arg(scratch.path())
            .spawn(scratch)?;
        let addresses = scratch.join("addresses.json");
        let text = wait::until("the sandbox has started", START_BOUND, || async {
            Ok(std::fs::read_to_string(&addresses).ok())
        })
        .await?;
        let addresses: Value = serde_json::from_str(&text)?;
        let control = addresses.get("control").and_then(Value::as_str);
        let control = control.and_then(|url| url.strip_prefix("http://"));
        Ok(Self {
            kubeconfig: std::fs::read_to_string(scratch.join("seed.kubeconfig"))?,
            kind: SeedKind::Sandbox {
                control: control
                    .context("the sandbox names no control endpoint")?
                    .to_owned(),
                _process: process,
            },
        })
    }

    /// Number of the newest request; none where it is not counted.
    ///
    /// # Errors
    /// When the seed does not answer.
    pub async fn last_request(&self) -> anyhow::Result<Option<u64>> {
        let SeedKind::Sandbox { control, .. } = &self.kind else {
            return Ok(None);
        };
        let all: Vec<Audited> = admin::get(control, "/audit").await?;
        Ok(Some(all.last().map_or(0, |request| request.id)))
    }

    /// Requests since one, by verb and resource; none where they are not counted.
    ///
    /// # Errors
    /// When the seed does not answer.
    pub async fn requests_since(&self, since: Option<u64>) -> anyhow::Result<Option<BTreeMap<String, u64>>> {
        let (SeedKind::Sandbox { control, .. }, Some(since)) = (&self.kind, since) else {
            return Ok(None);
        };
        let all: Vec<Audited> = admin::get(control, &format!("/audit?since={since}")).await?;
        let mut counts = BTreeMap::new();
        for request in all {
            *counts.entry(what(&request)).or_default() += 1;
        }
        Ok(Some(counts))
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
            user_agent: String::new(),
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
