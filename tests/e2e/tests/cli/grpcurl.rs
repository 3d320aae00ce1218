//! Every RPC exercised with the real grpcurl, over mutual TLS and by reflection, as people do.

use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::tools;
use watchdog_test_support::wait::{BOUND, until};
use watchdog_test_support::watchdog::{SERVER_NAME, Service};

const SHOOT: &str = "shoot--sandbox--one";

struct Grpcurl<'a> {
    fixture: &'a SandboxFixture,
    service: &'a Service,
}

impl Grpcurl<'_> {
    async fn run(&self, arguments: &[&str]) -> Output {
        let files = self.fixture.setup.client_files();
        let mut command = tokio::process::Command::new(tools::path(tools::GRPCURL).unwrap());
        command
            .arg("-cacert")
            .arg(&files.ca)
            .arg("-cert")
            .arg(&files.cert)
            .arg("-key")
            .arg(&files.key);
        command.args([
            "-servername",
            SERVER_NAME,
            "-connect-timeout",
            "10",
            "-max-time",
            "20",
        ]);
        // Flags come before the address, verbs and symbols behind it.
        let (flags, rest) = match arguments {
            ["-d", data, rest @ ..] => (vec!["-d", data], rest),
            rest => (vec![], rest),
        };
        command
            .args(flags)
            .arg(&self.service.grpc)
            .args(rest)
            .kill_on_drop(true);
        tokio::time::timeout(Duration::from_secs(30), command.output())
            .await
            .unwrap()
            .unwrap()
    }

    /// The text of a listing or description.
    async fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// A unary call.
    async fn call(&self, method: &str, request: Value) -> Value {
        let text = self.text(&["-d", &request.to_string(), method]).await;
        serde_json::from_str(&text).unwrap()
    }

    /// A call that is refused: its code and message.
    async fn refused(&self, method: &str, request: Value) -> String {
        let output = self.run(&["-d", &request.to_string(), method]).await;
        assert!(!output.status.success(), "{method} accepted {request}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// The messages of a stream until one that `last` accepts.
    async fn stream(&self, method: &str, request: Value, last: impl Fn(&Value) -> bool) -> Vec<Value> {
        use tokio::io::{AsyncBufReadExt, BufReader};
        let files = self.fixture.setup.client_files();
        let mut child = tokio::process::Command::new(tools::path(tools::GRPCURL).unwrap())
            .arg("-cacert")
            .arg(&files.ca)
            .arg("-cert")
            .arg(&files.cert)
            .arg("-key")
            .arg(&files.key)
            .args([
                "-servername",
                SERVER_NAME,
                "-max-time",
                "25",
                "-d",
                &request.to_string(),
            ])
            .args([self.service.grpc.as_str(), method])
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true)
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
}

fn has(key: &'static str) -> impl Fn(&Value) -> bool {
    move |message| message.get(key).is_some()
}

async fn described(grpcurl: &Grpcurl<'_>, service: &str, methods: &[&str]) {
    let listed = grpcurl.text(&["list"]).await;
    let mut served = [
        service,
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ];
    served.sort_unstable();
    let mut names: Vec<_> = listed.lines().collect();
    names.sort_unstable();
    assert_eq!(names, served, "what this program serves, and nothing else");
    let described = grpcurl.text(&["describe", service]).await;
    for method in methods {
        assert!(
            described.contains(&format!("rpc {method} ")),
            "{method} is not in {described}"
        );
    }
    let health = grpcurl
        .call("grpc.health.v1.Health/Check", json!({"service": service}))
        .await;
    assert_eq!(health["status"], "SERVING");
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_probe() {
    let fixture = SandboxFixture::start("grpcurl-probe", &["one"]).await.unwrap();
    let service = fixture.lease_probe().await.unwrap();
    let grpcurl = Grpcurl {
        fixture: &fixture,
        service: &service,
    };
    let api = "gardener.watchdog.probe.v1.LeaseProbeService";
    let method = |name: &str| format!("{api}/{name}");
    described(&grpcurl, api, &["WatchVerdicts", "GetVerdict", "ListVerdicts"]).await;
    until("the shoot is healthy", BOUND, || async {
        let answer = grpcurl.call(&method("GetVerdict"), json!({"shoot": SHOOT})).await;
        Ok((answer["verdict"]["outcome"] == "OUTCOME_HEALTHY").then_some(()))
    })
    .await
    .unwrap();
    let all = grpcurl
        .call(&method("ListVerdicts"), json!({"pageSize": 1}))
        .await;
    assert_eq!(
        (&all["totalSize"], &all["verdicts"][0]["shoot"]),
        (&json!(1), &json!(SHOOT))
    );
    assert_eq!(all["completeness"], json!({"complete": true}));
    assert!(all["position"]["uptime"].is_string(), "{all}");
    for scope in ["SCOPE_LOCAL", "SCOPE_UNSPECIFIED"] {
        let request = json!({"shoots": [SHOOT], "scope": scope});
        let messages = grpcurl
            .stream(&method("WatchVerdicts"), request, has("snapshotComplete"))
            .await;
        assert_eq!(messages[0]["upsert"]["shoot"], SHOOT);
    }
    let nobody = json!({"shoots": ["shoot--no--such"]});
    let messages = grpcurl
        .stream(&method("WatchVerdicts"), nobody, has("heartbeat"))
        .await;
    assert_eq!(
        messages.len(),
        2,
        "an empty snapshot, then a sign of life: {messages:?}"
    );

    let bad = grpcurl
        .refused(&method("WatchVerdicts"), json!({"shoots": ["Not A Name"]}))
        .await;
    assert!(
        bad.contains("InvalidArgument") && bad.contains("shoots[0]"),
        "{bad}"
    );
    // The details are decoded, which takes their descriptors from reflection.
    for part in [
        "google.rpc.BadRequest",
        "google.rpc.ErrorInfo",
        "INVALID_FIELD",
        "fieldViolations",
    ] {
        assert!(bad.contains(part), "{part} is not in {bad}");
    }
    let bad = grpcurl.refused(&method("GetVerdict"), json!({})).await;
    assert!(
        bad.contains("InvalidArgument") && bad.contains("shoot: "),
        "{bad}"
    );
    let absent = grpcurl
        .refused(&method("GetVerdict"), json!({"shoot": "shoot--no--such"}))
        .await;
    assert!(
        absent.contains("NotFound") && absent.contains("SHOOT_NOT_FOUND"),
        "{absent}"
    );
    let bad = grpcurl
        .refused(&method("ListVerdicts"), json!({"pageToken": "made up"}))
        .await;
    assert!(
        bad.contains("InvalidArgument") && bad.contains("page_token"),
        "{bad}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn scaling_coordinator() {
    let fixture = SandboxFixture::start("grpcurl-scaling", &["one"]).await.unwrap();
    let _lease_probe = fixture.lease_probe().await.unwrap();
    let service = fixture.coordinator().await.unwrap();
    service.wait_ready().await.unwrap();
    let grpcurl = Grpcurl {
        fixture: &fixture,
        service: &service,
    };
    let api = "gardener.watchdog.scaling.v1.ScalingService";
    let method = |name: &str| format!("{api}/{name}");
    described(
        &grpcurl,
        api,
        &[
            "WatchScaling",
            "GetScaling",
            "ListScaling",
            "PlanScaling",
            "ListShootEvents",
            "WatchShootEvents",
        ],
    )
    .await;
    until("the direction is up", BOUND, || async {
        let answer = grpcurl.call(&method("GetScaling"), json!({"shoot": SHOOT})).await;
        Ok((answer["scaling"]["direction"] == "DIRECTION_UP").then_some(()))
    })
    .await
    .unwrap();
    let all = grpcurl.call(&method("ListScaling"), json!({})).await;
    assert_eq!(all["scalings"][0]["resources"].as_array().unwrap().len(), 3);
    let plan = grpcurl
        .call(
            &method("PlanScaling"),
            json!({"shoot": SHOOT, "direction": "DIRECTION_DOWN"}),
        )
        .await;
    let names = |level: &Value| {
        let resources = level["resources"].as_array().unwrap();
        resources
            .iter()
            .map(|r| r["resource"]["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let levels: Vec<_> = plan["levels"].as_array().unwrap().iter().map(names).collect();
    assert_eq!(
        levels,
        [
            vec!["machine-controller-manager", "cluster-autoscaler"],
            vec!["kube-controller-manager"]
        ]
    );
    assert!(
        fixture.scale_writes(&fixture.shoot("one").unwrap()).is_empty(),
        "a plan touches nothing"
    );
    let messages = grpcurl
        .stream(
            &method("WatchScaling"),
            json!({"shoots": [SHOOT]}),
            has("snapshotComplete"),
        )
        .await;
    assert_eq!(messages[0]["upsert"]["shoot"], SHOOT);

    let healthy = grpcurl
        .call(&method("ListShootEvents"), json!({"shoot": SHOOT}))
        .await;
    assert_eq!(
        healthy["events"],
        Value::Null,
        "a healthy shoot has no history: {healthy}"
    );
    fixture.shoot("one").unwrap().cut(watchdog_sandbox::Cut::All);
    let written = |message: &Value| message["upsert"]["writeEnded"]["result"] == "WRITE_RESULT_APPLIED";
    let messages = grpcurl
        .stream(&method("WatchShootEvents"), json!({"shoots": [SHOOT]}), written)
        .await;
    let verdict = messages
        .iter()
        .find_map(|message| message["upsert"].get("verdictChanged"))
        .unwrap();
    assert_eq!(verdict["outcome"], "OUTCOME_LEASES_EXPIRED");
    // The threshold is 0.6.
    assert!(verdict["evidence"]["expired"].as_u64() >= Some(3), "{verdict}");
    let events = grpcurl
        .call(&method("ListShootEvents"), json!({"shoot": SHOOT, "pageSize": 1}))
        .await;
    assert!(
        events["events"][0]["verdictChanged"].is_object(),
        "oldest first: {events}"
    );
    fixture.shoot("one").unwrap().heal();

    let bad = grpcurl
        .refused(
            &method("PlanScaling"),
            json!({"shoot": SHOOT, "direction": "DIRECTION_HOLD"}),
        )
        .await;
    assert!(
        bad.contains("InvalidArgument") && bad.contains("direction"),
        "{bad}"
    );
    let bad = grpcurl
        .refused(&method("WatchScaling"), json!({"shoots": ["-"]}))
        .await;
    assert!(
        bad.contains("InvalidArgument") && bad.contains("shoots[0]"),
        "{bad}"
    );
    let absent = grpcurl
        .refused(&method("GetScaling"), json!({"shoot": "shoot--no--such"}))
        .await;
    assert!(absent.contains("NotFound"), "{absent}");
    let bad = grpcurl
        .refused(&method("ListScaling"), json!({"pageToken": "made up"}))
        .await;
    assert!(
        bad.contains("InvalidArgument") && bad.contains("page_token"),
        "{bad}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn weeder() {
    let fixture = SandboxFixture::start("grpcurl-weeder", &["one"]).await.unwrap();
    let service = fixture.weeder().await.unwrap();
    service.wait_ready().await.unwrap();
    let grpcurl = Grpcurl {
        fixture: &fixture,
        service: &service,
    };
    let api = "gardener.watchdog.weeder.v1.WeederService";
    let method = |name: &str| format!("{api}/{name}");
    described(
        &grpcurl,
        api,
        &[
            "WatchEndpointReadiness",
            "ListEndpointReadiness",
            "WatchWeeders",
            "GetWeeder",
            "ListWeeders",
        ],
    )
    .await;
    until("the services seen ready are weeded", BOUND, || async {
        let answer = grpcurl
            .call(&method("ListWeeders"), json!({"namespace": SHOOT}))
            .await;
        Ok((answer["totalSize"] == 2).then_some(()))
    })
    .await
    .unwrap();
    let request = json!({"namespace": SHOOT, "service": "kube-apiserver"});
    let messages = grpcurl
        .stream(
            &method("WatchEndpointReadiness"),
            request.clone(),
            has("snapshotComplete"),
        )
        .await;
    assert_eq!(messages[0]["upsert"]["readiness"], "READINESS_READY");
    let messages = grpcurl
        .stream(&method("WatchWeeders"), request, has("snapshotComplete"))
        .await;
    assert_eq!(messages[0]["upsert"]["key"]["service"], "kube-apiserver");

    let services = grpcurl
        .call(&method("ListEndpointReadiness"), json!({"namespace": SHOOT}))
        .await;
    assert_eq!(services["totalSize"], 2, "{services}");
    let key = json!({"namespace": SHOOT, "service": "kube-apiserver"});
    let answer = grpcurl.call(&method("GetWeeder"), json!({"key": key})).await;
    assert_eq!(answer["weeder"]["key"], key);
    let absent = json!({"key": {"namespace": SHOOT, "service": "no-such"}});
    let absent = grpcurl.refused(&method("GetWeeder"), absent).await;
    assert!(absent.contains("WEEDER_NOT_FOUND"), "{absent}");

    for name in [
        "WatchEndpointReadiness",
        "ListEndpointReadiness",
        "WatchWeeders",
        "ListWeeders",
    ] {
        let bad = grpcurl
            .refused(&method(name), json!({"namespace": "Not A Name"}))
            .await;
        assert!(
            bad.contains("InvalidArgument") && bad.contains("namespace"),
            "{bad}"
        );
    }
}
