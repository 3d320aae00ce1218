//! Every RPC exercised with the real grpcurl, over mutual TLS and by reflection, as people do. What the answers and
//! refusals say is tested in process.

use std::collections::BTreeSet;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;
use watchdog_test_support::tools;
use watchdog_test_support::wait::{BOUND, until};
use watchdog_test_support::watchdog::{SERVER_NAME, Service, Setup};

/// As a caller with a certificate.
pub(crate) struct Grpcurl<'a> {
    setup: &'a Setup,
}

/// A program, and the methods that are called.
struct Called<'a> {
    setup: &'a Setup,
    service: &'a Service,
    /// Name of its API.
    api: &'static str,
}

impl Called<'_> {
    /// Runs it until it has shown `part`, or to its end; gives what it has shown. Verbs and symbols come last.
    async fn run(&self, data: &str, rest: &[&str], part: &str) -> String {
        let files = self.setup.client_files();
        let mut child = Command::new(tools::path(tools::GRPCURL).unwrap())
            .arg("-cacert")
            .arg(&files.ca)
            .arg("-cert")
            .arg(&files.cert)
            .arg("-key")
            .arg(&files.key)
            .args(["-servername", SERVER_NAME, "-connect-timeout", "10", "-d", data])
            .arg(&self.service.grpc)
            .args(rest)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut errors = child.stderr.take().unwrap();
        let mut shown = String::new();
        let run = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                shown = format!("{shown}{}\n", line.trim());
                if !part.is_empty() && shown.contains(part) {
                    return;
                }
            }
            errors.read_to_string(&mut shown).await.unwrap();
        };
        let ended = tokio::time::timeout(BOUND, run).await.is_ok();
        assert!(ended, "{rest:?} does not show {part:?}: {shown}");
        shown
    }

    /// Calls a method until an answer, or the refusal, shows this.
    async fn until_shown(&self, (method, request, part): (&str, &str, &str)) {
        let method = format!("{}/{method}", self.api);
        until(&method, BOUND, || async {
            let shown = self.run(request, &[&method], part).await;
            anyhow::ensure!(shown.contains(part), "{part:?} is not in {shown}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }

    /// The methods that its reflection describes. It serves nothing but them, its health and reflection itself.
    async fn described(&self) -> BTreeSet<String> {
        let listed = self.run("", &["list"], "").await;
        let served = [
            self.api,
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        ];
        assert_eq!(listed.lines().collect::<BTreeSet<_>>(), served.into());
        let health = format!("{{\"service\": \"{}\"}}", self.api);
        let health = self.run(&health, &["grpc.health.v1.Health/Check"], "").await;
        assert!(health.contains("\"SERVING\""), "{health}");
        let described = self.run("", &["describe", self.api], "").await;
        let methods = described.lines().filter_map(|line| line.strip_prefix("rpc "));
        methods
            .filter_map(|method| Some(method.split_once(' ')?.0.to_owned()))
            .collect()
    }

    /// Calls every method at least once: each row is a method, a request and what an answer or the refusal shows.
    async fn shows(&self, rows: &[(&str, &str, &str)]) {
        let called = rows.iter().map(|(method, ..)| (*method).to_owned());
        assert_eq!(called.collect::<BTreeSet<_>>(), self.described().await);
        for row in rows {
            self.until_shown(*row).await;
        }
    }
}

// === impl Grpcurl ===

/// The shoot that is asked for, and that is lost when the coordinator is asked.
const ONE: &str = r#"{"shoot": "shoot--real--one"}"#;

impl<'a> Grpcurl<'a> {
    pub(crate) const fn new(setup: &'a Setup) -> Self {
        Self { setup }
    }

    const fn called(&self, service: &'a Service, api: &'static str) -> Called<'a> {
        Called {
            setup: self.setup,
            service,
            api,
        }
    }

    pub(crate) async fn calls_every_method_of_lease_probe(&self, lease_probe: &'a Service) {
        let bad = r#"{"shoots": ["Not A Name"]}"#;
        self.called(lease_probe, "gardener.watchdog.probe.v1.LeaseProbeService")
            .shows(&[
                ("GetVerdict", ONE, r#""outcome": "OUTCOME_HEALTHY""#),
                ("ListVerdicts", r#"{"pageSize": 1}"#, r#""totalSize": 2"#),
                ("GetSeedSummary", "{}", r#""outcome": "OUTCOME_HEALTHY""#),
                ("ListReplicas", "{}", "REPLICA_STATE_CONNECTED"),
                ("WatchVerdicts", "{}", r#""shoot": "shoot--real--one""#),
                // The descriptors of details come from reflection, too.
                ("WatchVerdicts", bad, r#""field":"shoots[0]""#),
                ("WatchVerdicts", bad, r#""reason":"INVALID_FIELD""#),
            ])
            .await;
    }

    pub(crate) async fn calls_every_method_of_the_coordinator(&self, coordinator: &'a Service) {
        let hold = r#"{"shoot": "shoot--real--one", "direction": "DIRECTION_HOLD"}"#;
        self.called(coordinator, "gardener.watchdog.scaling.v1.ScalingService")
            .shows(&[
                ("GetScaling", ONE, "DIRECTION_DOWN"),
                ("ListScaling", "{}", r#""name": "cluster-autoscaler""#),
                ("PlanScaling", hold, "Code: InvalidArgument"),
                ("WatchScaling", "{}", "snapshotComplete"),
                ("GetSeedSummary", "{}", r#""meltdownProtectionActive": 1"#),
            ])
            .await;
    }

    pub(crate) async fn calls_every_method_of_the_weeder(&self, weeder: &'a Service) {
        let all = r#"{"namespace": "shoot--real--one"}"#;
        let key = r#"{"key": {"namespace": "shoot--real--one", "service": "kube-apiserver"}}"#;
        self.called(weeder, "gardener.watchdog.weeder.v1.WeederService")
            .shows(&[
                ("ListWeeders", all, r#""totalSize": 2"#),
                ("ListEndpointReadiness", all, r#""totalSize": 2"#),
                ("WatchEndpointReadiness", all, "READINESS_READY"),
                ("WatchWeeders", all, r#""service": "kube-apiserver""#),
                ("GetWeeder", key, r#""service": "kube-apiserver""#),
                ("GetEndpointReadiness", key, "READINESS_READY"),
                ("GetSeedSummary", "{}", r#""services": "#),
            ])
            .await;
    }
}
