//! Every RPC exercised with the real grpcurl, over mutual TLS and by reflection, as people do. What the answers and
//! refusals say is tested in process.

use std::process::Output;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::tools;
use watchdog_test_support::wait::{BOUND, until};
use watchdog_test_support::watchdog::{SERVER_NAME, Service};

const SHOOT: &str = "shoot--sandbox--one";

struct Grpcurl<'a> {
    fixture: &'a SandboxFixture,
    service: &'a Service,
    /// Name of its API.
    api: &'static str,
}

impl Grpcurl<'_> {
    /// Flags come before the address, verbs and symbols behind it.
    fn command(&self, flags: &[&str], rest: &[&str]) -> Command {
        let files = self.fixture.setup.client_files();
        let mut command = Command::new(tools::path(tools::GRPCURL).unwrap());
        for (flag, path) in [
            ("-cacert", &files.ca),
            ("-cert", &files.cert),
            ("-key", &files.key),
        ] {
            command.arg(flag).arg(path);
        }
        command
            .args([
                "-servername",
                SERVER_NAME,
                "-connect-timeout",
                "10",
                "-max-time",
                "25",
            ])
            .args(flags)
            .arg(&self.service.grpc)
            .args(rest)
            .kill_on_drop(true);
        command
    }

    async fn run(&self, flags: &[&str], rest: &[&str]) -> Output {
        let output = self.command(flags, rest).output();
        tokio::time::timeout(BOUND, output).await.unwrap().unwrap()
    }

    /// The text of a listing, a description or an answer.
    async fn text(&self, flags: &[&str], rest: &[&str]) -> String {
        let output = self.run(flags, rest).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{rest:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A unary call.
    async fn call(&self, method: &str, request: Value) -> Value {
        let method = format!("{}/{method}", self.api);
        let text = self.text(&["-d", &request.to_string()], &[&method]).await;
        serde_json::from_str(&text).unwrap()
    }

    /// A call that is refused: its code, its message and its details, whose descriptors come from reflection.
    async fn refused(&self, method: &str, request: Value, parts: &[&str]) {
        let method = format!("{}/{method}", self.api);
        let output = self.run(&["-d", &request.to_string()], &[&method]).await;
        assert!(!output.status.success(), "{method} accepted {request}");
        let error = String::from_utf8(output.stderr).unwrap();
        for part in parts {
            assert!(error.contains(part), "{method}: {part} is not in {error}");
        }
    }

    /// The messages of a stream until one that `last` accepts.
    async fn stream(&self, method: &str, request: Value, last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let method = format!("{}/{method}", self.api);
        let mut child = self
            .command(&["-d", &request.to_string()], &[&method])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (mut text, mut messages) = (String::new(), Vec::new());
        while let Some(line) = tokio::time::timeout(BOUND, lines.next_line())
            .await
            .unwrap()
            .unwrap()
        {
            text.push_str(&line);
            // Messages are printed on several lines; one is whole when it parses.
            if let Ok(message) = serde_json::from_str::<Value>(&text) {
                text.clear();
                messages.push(message);
                if last(messages.last().unwrap()) {
                    return messages;
                }
            }
        }
        panic!("{method} ended before the message that was waited for: {messages:?}");
    }

    async fn snapshot(&self, method: &str, request: Value) -> Vec<Value> {
        self.stream(method, request, |message| {
            message.get("snapshotComplete").is_some()
        })
        .await
    }

    async fn described(&self, methods: &[&str]) {
        let listed = self.text(&[], &["list"]).await;
        let mut served = [
            self.api,
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        ];
        served.sort_unstable();
        let mut names: Vec<_> = listed.lines().collect();
        names.sort_unstable();
        assert_eq!(names, served, "what this program serves, and nothing else");
        let described = self.text(&[], &["describe", self.api]).await;
        for method in methods {
            assert!(
                described.contains(&format!("rpc {method} ")),
                "{method} is not in {described}"
            );
        }
        let request = json!({"service": self.api}).to_string();
        let health = self
            .text(&["-d", &request], &["grpc.health.v1.Health/Check"])
            .await;
        assert!(health.contains("\"SERVING\""), "{health}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_probe() {
    let fixture = SandboxFixture::start("grpcurl-probe", &["one"]).await.unwrap();
    let service = fixture.lease_probe().await.unwrap();
    let grpcurl = Grpcurl {
        fixture: &fixture,
        service: &service,
        api: "gardener.watchdog.probe.v1.LeaseProbeService",
    };
    grpcurl
        .described(&["WatchVerdicts", "GetVerdict", "ListVerdicts"])
        .await;
    until("the shoot is healthy", BOUND, || async {
        let answer = grpcurl.call("GetVerdict", json!({"shoot": SHOOT})).await;
        Ok((answer["verdict"]["outcome"] == "OUTCOME_HEALTHY").then_some(()))
    })
    .await
    .unwrap();
    let all = grpcurl.call("ListVerdicts", json!({"pageSize": 1})).await;
    assert_eq!(
        (&all["totalSize"], &all["verdicts"][0]["shoot"]),
        (&json!(1), &json!(SHOOT))
    );
    assert_eq!(all["completeness"], json!({"complete": true}));
    assert!(all["position"]["uptime"].is_string(), "{all}");
    for scope in ["SCOPE_LOCAL", "SCOPE_UNSPECIFIED"] {
        let request = json!({"shoots": [SHOOT], "scope": scope});
        let messages = grpcurl.snapshot("WatchVerdicts", request).await;
        assert_eq!(messages[0]["upsert"]["shoot"], SHOOT);
    }
    let nobody = json!({"shoots": ["shoot--no--such"]});
    let heartbeat = |message: &Value| message.get("heartbeat").is_some();
    let messages = grpcurl.stream("WatchVerdicts", nobody, heartbeat).await;
    assert_eq!(
        messages.len(),
        2,
        "an empty snapshot, then a sign of life: {messages:?}"
    );
    let parts = [
        "InvalidArgument",
        "shoots[0]",
        "google.rpc.BadRequest",
        "google.rpc.ErrorInfo",
        "INVALID_FIELD",
        "fieldViolations",
    ];
    let bad = json!({"shoots": ["Not A Name"]});
    grpcurl.refused("WatchVerdicts", bad, &parts).await;
    let absent = json!({"shoot": "shoot--no--such"});
    grpcurl
        .refused("GetVerdict", absent, &["NotFound", "SHOOT_NOT_FOUND"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scaling_coordinator() {
    let fixture = SandboxFixture::start("grpcurl-scaling", &["one"]).await.unwrap();
    let _lease_probe = fixture.lease_probe().await.unwrap();
    let service = fixture.coordinator().await.unwrap();
    let grpcurl = Grpcurl {
        fixture: &fixture,
        service: &service,
        api: "gardener.watchdog.scaling.v1.ScalingService",
    };
    grpcurl
        .described(&[
            "WatchScaling",
            "GetScaling",
            "ListScaling",
            "PlanScaling",
            "ListShootEvents",
            "WatchShootEvents",
        ])
        .await;
    until("the direction is up", BOUND, || async {
        let answer = grpcurl.call("GetScaling", json!({"shoot": SHOOT})).await;
        Ok((answer["scaling"]["direction"] == "DIRECTION_UP").then_some(()))
    })
    .await
    .unwrap();
    let all = grpcurl.call("ListScaling", json!({})).await;
    assert_eq!(all["scalings"][0]["resources"].as_array().unwrap().len(), 3);
    let plan = grpcurl
        .call(
            "PlanScaling",
            json!({"shoot": SHOOT, "direction": "DIRECTION_DOWN"}),
        )
        .await;
    assert_eq!(plan["levels"].as_array().unwrap().len(), 2, "{plan}");
    let messages = grpcurl.snapshot("WatchScaling", json!({"shoots": [SHOOT]})).await;
    assert_eq!(messages[0]["upsert"]["shoot"], SHOOT);

    let healthy = grpcurl.call("ListShootEvents", json!({"shoot": SHOOT})).await;
    assert_eq!(
        healthy["events"],
        Value::Null,
        "a healthy shoot has no history: {healthy}"
    );
    fixture.shoot("one").unwrap().cut(watchdog_sandbox::Cut::All);
    let written = |message: &Value| message["upsert"]["writeEnded"]["result"] == "WRITE_RESULT_APPLIED";
    let messages = grpcurl
        .stream("WatchShootEvents", json!({"shoots": [SHOOT]}), written)
        .await;
    let changed = |message: &Value| message["upsert"].get("verdictChanged").cloned();
    let verdict = messages.iter().find_map(changed).unwrap();
    assert_eq!(verdict["outcome"], "OUTCOME_LEASES_EXPIRED");
    // The threshold is 0.6.
    assert!(verdict["evidence"]["expired"].as_u64() >= Some(3), "{verdict}");
    let events = grpcurl
        .call("ListShootEvents", json!({"shoot": SHOOT, "pageSize": 1}))
        .await;
    assert!(
        events["events"][0]["verdictChanged"].is_object(),
        "oldest first: {events}"
    );
    let hold = json!({"shoot": SHOOT, "direction": "DIRECTION_HOLD"});
    grpcurl
        .refused("PlanScaling", hold, &["InvalidArgument", "direction"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn weeder() {
    let fixture = SandboxFixture::start("grpcurl-weeder", &["one"]).await.unwrap();
    let service = fixture.weeder().await.unwrap();
    let grpcurl = Grpcurl {
        fixture: &fixture,
        service: &service,
        api: "gardener.watchdog.weeder.v1.WeederService",
    };
    grpcurl
        .described(&[
            "WatchEndpointReadiness",
            "ListEndpointReadiness",
            "WatchWeeders",
            "GetWeeder",
            "ListWeeders",
        ])
        .await;
    until("the services seen ready are weeded", BOUND, || async {
        let answer = grpcurl.call("ListWeeders", json!({"namespace": SHOOT})).await;
        Ok((answer["totalSize"] == 2).then_some(()))
    })
    .await
    .unwrap();
    let key = json!({"namespace": SHOOT, "service": "kube-apiserver"});
    let messages = grpcurl.snapshot("WatchEndpointReadiness", key.clone()).await;
    assert_eq!(messages[0]["upsert"]["readiness"], "READINESS_READY");
    let messages = grpcurl.snapshot("WatchWeeders", key.clone()).await;
    assert_eq!(messages[0]["upsert"]["key"]["service"], "kube-apiserver");
    let services = grpcurl
        .call("ListEndpointReadiness", json!({"namespace": SHOOT}))
        .await;
    assert_eq!(services["totalSize"], 2, "{services}");
    let answer = grpcurl.call("GetWeeder", json!({"key": key})).await;
    assert_eq!(answer["weeder"]["key"], key);
    let absent = json!({"key": {"namespace": SHOOT, "service": "no-such"}});
    grpcurl.refused("GetWeeder", absent, &["WEEDER_NOT_FOUND"]).await;
}
