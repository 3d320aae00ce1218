//! A shoot whose kubelets renew at given moments, and whose API server takes its time to answer.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use kube::client::Body;
use lease_probe::cluster::kubeconfig::{Kubeconfig, access};
use lease_probe::cluster::transport::{ApiRequest, Connector, Link, Suspicion};
use lease_probe::controller::prober::{ProbeContext, ProbeInputs, Prober};
use lease_probe::domain::endpoint::Endpoint;
use lease_probe::domain::outcome::{Outcome, ProbeFailure};
use lease_probe::domain::verdict::Verdict;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use watchdog_api::config::UnknownFields;
use watchdog_api::eligibility::ShootSettings;
use watchdog_api::prober;
use watchdog_runtime::clock::Clock;
use watchdog_test_support::fixtures;

/// Milliseconds since the prober was started.
pub(crate) type Millis = i64;

/// Of the default grace period of 40 s.
pub(crate) const EXPIRY_AGE: Millis = 33_000;

/// A quarter of the default lease duration.
pub(crate) const RENEW_INTERVAL: Millis = 10_000;

/// One large answer at a time. A shoot may keep 1,010 leases.
const ANSWER_MEMORY: usize = 2 << 20;

/// For how long a shoot is probed.
pub(crate) const LASTS: Millis = 420_000;

/// The renewals of the kubelets and the latency of the API server.
#[derive(Debug, Clone, Default)]
pub(crate) struct TestShoot {
    /// Per node, in order: when it renews.
    pub(crate) renewals: Vec<Vec<Millis>>,
    /// For the list of the leases.
    pub(crate) leases_take: Millis,
    /// Answers to lists of the leases that are asked for in this time are held up until its end.
    pub(crate) holds_up: Range<Millis>,
    /// For the list of the nodes and machines.
    pub(crate) nodes_take: Millis,
    /// Until then the API server answers 429 to the list of the leases, asks to be left alone for 1 s and closes the
    /// connection.
    pub(crate) throttles_until: Millis,
    /// Then its kubeconfig changes; 0 if it never does.
    pub(crate) kubeconfig_changes_at: Millis,
    /// Until then the seed answers 429 to that list, and asks to be left alone until then.
    pub(crate) seed_throttles_until: Millis,
    /// Its leases have other names in each list, and its nodes cannot be listed.
    pub(crate) renames_leases: bool,
    /// The answers of the external endpoint, after which it hangs. There is none if it has no answers.
    pub(crate) external: Vec<Result<(), ProbeFailure>>,
}

impl TestShoot {
    /// A shoot whose lists take 20 ms.
    pub(crate) fn new(renewals: Vec<Vec<Millis>>) -> Self {
        Self {
            renewals,
            leases_take: 20,
            nodes_take: 20,
            ..Self::default()
        }
    }

    /// When a node last renewed before `now`.
    pub(crate) fn last(&self, node: usize, now: Millis) -> Option<Millis> {
        let renewals = &self.renewals[node];
        renewals[..renewals.partition_point(|t| *t <= now)]
            .last()
            .copied()
    }
}

/// The probes and verdicts of a run.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// Start and end of every probe.
    pub(crate) probes: Vec<(Millis, Millis)>,
    /// The reported outcomes, with their times.
    pub(crate) reported: Vec<(Millis, Outcome)>,
    /// Why probes failed.
    pub(crate) failures: BTreeSet<&'static str>,
    /// When the nodes and machines were asked for.
    pub(crate) nodes_listed: Vec<Millis>,
    /// When the external endpoint was asked.
    pub(crate) external_asked: Vec<Millis>,
}

impl Observed {
    /// When a loss was reported first.
    pub(crate) fn first_loss(&self) -> Option<Millis> {
        let mut reported = self.reported.iter();
        reported.find(|(_, outcome)| outcome.is_loss()).map(|(at, _)| *at)
    }

    /// The probes of the half minute before and after, for people.
    pub(crate) fn around(&self, now: Millis) -> Vec<(Millis, Millis)> {
        let near = |probe: &&(Millis, Millis)| (probe.0 - now).abs() < 30_000;
        self.probes.iter().filter(near).copied().collect()
    }
}

/// Probes the shoot for [`LASTS`] with Gardener's configuration and this interval, under a clock of its own that is
/// paused.
pub(crate) fn run(shoot: TestShoot, interval: &str) -> Observed {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let text = fixtures::prober(&format!("probeInterval: {interval}"), "0s");
    let config = prober::parse(text.as_bytes(), UnknownFields::Refused);
    runtime.block_on(probe(shoot, config.unwrap().config))
}

async fn probe(shoot: TestShoot, config: prober::ProberConfig) -> Observed {
    const KUBECONFIG: &str = "{clusters: [{name: c, cluster: {server: 'https://shoot'}}], users: [{name: u, user: \
                              {token: TOKEN}}], contexts: [{name: x, context: {cluster: c, user: u}}]}";
    let clock = Clock::start();
    let with = |token| access(Ok(Some(KUBECONFIG.replace("TOKEN", token).as_bytes())));
    let reachable = || with("t");
    let inputs = ProbeInputs {
        settings: Arc::new(ShootSettings::default()),
        config: Arc::new(config),
        internal: reachable(),
        external: (!shoot.external.is_empty()).then(reachable),
    };
    let changes_at = shoot.kubeconfig_changes_at;
    let internal = ScriptedServer {
        began: clock.now_micros(),
        clock,
        answers: Arc::new(Mutex::new(shoot.external.clone().into_iter())),
        shoot: Arc::new(shoot),
        observed: Arc::default(),
        is_external: false,
        is_closed: false,
    };
    let external = ScriptedServer {
        is_external: true,
        ..internal.clone()
    };
    let seed = internal.seed();
    let shared = ProbeContext::new(
        seed,
        clock,
        "lease-probe-0".into(),
        ANSWER_MEMORY,
        rand::random::<f64>,
    );
    let (changes, inputs) = watch::channel(inputs);
    let observer = internal.clone();
    let prober = Prober::new(
        shared,
        inputs,
        move |verdict| observer.observe(verdict),
        "shoot".into(),
        [internal.clone(), external],
    );
    let lasts = Duration::from_millis(LASTS.unsigned_abs());
    let change = async {
        if changes_at > 0 {
            tokio::time::sleep(Duration::from_millis(changes_at.unsigned_abs())).await;
            changes.send_modify(|inputs| inputs.internal = with("another"));
        }
        std::future::pending::<()>().await;
    };
    let run = async {
        tokio::select! {
            () = prober.run(1) => {}
            () = change => {}
        }
    };
    let ended = tokio::time::timeout(lasts, run).await;
    assert!(ended.is_err(), "the prober ended");
    std::mem::take(&mut *internal.observed.lock())
}

/// The API server through one of its endpoints, which is also a connection to it.
#[derive(Clone)]
struct ScriptedServer {
    shoot: Arc<TestShoot>,
    clock: Clock,
    began: i64,
    observed: Arc<Mutex<Observed>>,
    answers: Arc<Mutex<std::vec::IntoIter<Result<(), ProbeFailure>>>>,
    is_external: bool,
    is_closed: bool,
}

fn response(status: StatusCode, retry_after: Option<Duration>, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::builder().status(status);
    if let Some(wait) = retry_after {
        response = response.header(header::RETRY_AFTER, wait.as_secs());
    }
    response.body(Full::new(body.to_string().into())).unwrap()
}

fn list(revision: u64, items: impl Iterator<Item = Value>) -> Response<Full<Bytes>> {
    let list = json!({
        "kind": "List",
        "metadata": { "resourceVersion": revision.to_string() },
        "items": items.collect::<Vec<_>>(),
    });
    response(StatusCode::OK, None, &list)
}

impl ScriptedServer {
    fn now(&self) -> Millis {
        (self.clock.now_micros() - self.began) / 1_000
    }

    async fn leases(&mut self) -> Response<Full<Bytes>> {
        let started = self.now();
        self.observed.lock().probes.push((started, Millis::MAX));
        if started < self.shoot.throttles_until {
            self.is_closed = true;
            let wait = Some(Duration::from_secs(1));
            return response(StatusCode::TOO_MANY_REQUESTS, wait, &json!({}));
        }
        let half = Duration::from_millis(self.shoot.leases_take.unsigned_abs()) / 2;
        tokio::time::sleep(half).await;
        let now = self.now();
        // A control plane writes all the time.
        let revision = |at: Millis| (at + 1_000_000_000).unsigned_abs();
        let name = |node| match self.shoot.renames_leases {
            true => format!("node-{node}-at-{now}"),
            false => format!("node-{node}"),
        };
        let lease = |node| {
            let last = self.shoot.last(node, now);
            let time =
                |millis: Millis| jiff::Timestamp::from_microsecond(self.began + millis * 1_000).unwrap();
            json!({
                "metadata": {
                    "name": name(node),
                    "resourceVersion": last.map_or(0, revision).to_string(),
                },
                "spec": { "leaseDurationSeconds": 40, "renewTime": last.map(|at| format!("{:.6}", time(at))) },
            })
        };
        let leases = list(revision(now), (0..self.shoot.renewals.len()).map(lease));
        tokio::time::sleep(half).await;
        if self.shoot.holds_up.contains(&started) {
            let left = self.shoot.holds_up.end - self.now();
            tokio::time::sleep(Duration::from_millis(left.max(0).unsigned_abs())).await;
        }
        leases
    }

    fn nodes(&self) -> Response<Full<Bytes>> {
        let node = |node| json!({ "metadata": { "name": format!("node-{node}") } });
        list(1, (0..self.shoot.renewals.len()).map(node))
    }

    /// The seed, which has the Machines of the nodes.
    fn seed(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            let shoot = &server.shoot;
            let machine = |node| {
                json!({
                    "metadata": { "name": format!("machine-{node}"), "labels": { "node": format!("node-{node}") } },
                    "status": { "currentStatus": { "phase": "Running" } },
                })
            };
            let left = shoot.seed_throttles_until - server.now();
            let wait = Duration::from_secs(left.max(0).unsigned_abs().div_ceil(1_000));
            let answer = match left > 0 {
                true => response(StatusCode::TOO_MANY_REQUESTS, Some(wait), &json!({})),
                false => list(1, (0..shoot.renewals.len()).map(machine)),
            };
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        kube::Client::new(service, "default")
    }

    /// The next answer of the external endpoint.
    async fn external(&self) -> Result<Response<Full<Bytes>>, ProbeFailure> {
        let (now, next) = (self.now(), self.answers.lock().next());
        self.observed.lock().external_asked.push(now);
        match next {
            Some(Ok(())) => Ok(response(StatusCode::OK, None, &json!({}))),
            Some(Err(ProbeFailure::Throttled(wait))) => {
                Ok(response(StatusCode::TOO_MANY_REQUESTS, wait, &json!({})))
            }
            Some(Err(failure)) => Err(failure),
            None => std::future::pending().await,
        }
    }
}

impl ScriptedServer {
    fn observe(&self, verdict: Verdict) {
        let now = self.now();
        let mut observed = self.observed.lock();
        if let Some(last) = observed.probes.last_mut() {
            last.1 = now;
        }
        observed.reported.push((now, verdict.outcome));
        for (endpoint, reason) in verdict.failures.keys() {
            let is_expected = ["throttled", "machines_throttled", "list_timeout"].contains(reason);
            assert!(
                is_expected || *endpoint == Endpoint::External || self.shoot.renames_leases,
                "{reason}"
            );
            observed.failures.insert(reason);
        }
    }
}

impl Connector for ScriptedServer {
    type Link = Self;

    async fn open(&self, _: &Arc<Kubeconfig>) -> Result<Self, ProbeFailure> {
        Ok(self.clone())
    }
}

impl Link for ScriptedServer {
    type Body = Full<Bytes>;

    async fn send(&mut self, request: &ApiRequest) -> Result<Response<Full<Bytes>>, ProbeFailure> {
        if self.is_external {
            return self.external().await;
        }
        match request.path.as_str() {
            path if path.starts_with("/apis/coordination.k8s.io") => Ok(self.leases().await),
            // To count them.
            "/api/v1/nodes?limit=1" => Ok(self.nodes()),
            path if path.starts_with("/api/v1/nodes") => {
                let now = self.now();
                self.observed.lock().nodes_listed.push(now);
                tokio::time::sleep(Duration::from_millis(self.shoot.nodes_take.unsigned_abs())).await;
                match self.shoot.renames_leases {
                    true => Ok(response(StatusCode::INTERNAL_SERVER_ERROR, None, &json!({}))),
                    false => Ok(self.nodes()),
                }
            }
            _ => Ok(response(StatusCode::OK, None, &json!({}))),
        }
    }

    /// Each request to the external endpoint is a connection of its own, and an answer of its own.
    fn end(&self) -> Option<Suspicion> {
        (self.is_external || self.is_closed).then(|| Suspicion::ended_at(Instant::now(), false))
    }

    async fn ended(&self) {
        if self.end().is_none() {
            std::future::pending().await
        }
    }
}
