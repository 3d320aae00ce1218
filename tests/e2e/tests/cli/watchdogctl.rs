//! watchdogctl: what it shows of an incident is compared with what is so. Its errors and exit
//! codes are tested in process.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use watchdog_test_support::binaries;
use watchdog_test_support::certs::PemFiles;
use watchdog_test_support::log::LogRecord;
use watchdog_test_support::real::{COUNTS, RealFixture};
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::wait::{BOUND, until};
use watchdog_test_support::watchdog::Service;

const SHOOT: &str = "shoot--real--one";
const OTHER: &str = "shoot--real--two";

/// How the command line reaches the programs of a test.
pub(crate) struct Watchdogctl {
    program: PathBuf,
    connection: Vec<String>,
}

impl Watchdogctl {
    pub(crate) fn new(services: &[(&str, &Service)], files: &PemFiles) -> Self {
        let addresses = services
            .iter()
            .flat_map(|(option, service)| [(*option).to_owned(), service.grpc.clone()]);
        Self {
            program: binaries::path(binaries::WATCHDOGCTL).unwrap(),
            connection: addresses.chain(tls(files)).collect(),
        }
    }

    async fn output(&self, command: &str) -> Output {
        let mut process = tokio::process::Command::new(&self.program);
        process
            .args(&self.connection)
            .args(command.split(' '))
            .env_remove("KUBECONFIG")
            .kill_on_drop(true);
        tokio::time::timeout(Duration::from_secs(60), process.output())
            .await
            .unwrap()
            .unwrap()
    }

    /// The output of a command that succeeds.
    async fn shown(&self, command: &str) -> String {
        let output = self.output(command).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{command}: {errors}");
        assert_eq!(errors, "", "{command}");
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(!shown.contains('\x1b'), "no colour in a pipe: {shown:?}");
        shown
    }

    async fn json(&self, command: &str) -> Value {
        serde_json::from_str(&self.shown(command).await).unwrap()
    }

    /// Waits until a command shows this.
    async fn until_shown(&self, command: &str, parts: &[&str]) -> String {
        until(&format!("{command} shows {parts:?}"), BOUND, || async {
            let shown = self.shown(command).await;
            let absent = parts.iter().find(|part| !shown.contains(**part));
            match absent {
                None => Ok(Some(shown)),
                Some(part) => anyhow::bail!("{part:?} is not in {shown}"),
            }
        })
        .await
        .unwrap()
    }
}

fn tls(files: &PemFiles) -> Vec<String> {
    let paths = [
        ("--tls-ca", &files.ca),
        ("--tls-cert", &files.cert),
        ("--tls-key", &files.key),
    ];
    let paths = paths.map(|(option, path)| [option.to_owned(), path.display().to_string()]);
    let name = ["--tls-server-name", "localhost"].map(str::to_owned);
    paths.into_iter().flatten().chain(name).collect()
}

/// The line about a shoot.
fn line<'a>(text: &'a str, shoot: &str) -> &'a str {
    let found = text.lines().find(|line| line.starts_with(shoot));
    found.unwrap_or_else(|| panic!("{shoot} is not in {text}"))
}

/// Everything is restored, and the incident is on record.
pub(crate) async fn restored(watchdogctl: &Watchdogctl, coordinator: &Service) {
    let parts = ["2 shoots: 2 HEALTHY\n", "Every shoot that is probed is healthy."];
    watchdogctl.until_shown("status", &parts).await;
    let parts = ["ended", "LEASES_EXPIRED", "3 down, 3 up", "everything restored"];
    watchdogctl.until_shown("report real/one", &parts).await;
    let markdown = watchdogctl.shown("report real/one -o markdown").await;
    for part in ["```mermaid\ngantt\n", "\n      prevented: ", "\n      0s "] {
        assert!(markdown.contains(part), "{part}: {markdown}");
    }
    let incidents = watchdogctl.shown("incidents").await;
    assert!(line(&incidents, SHOOT).contains("ended"), "{incidents}");
    let scaling = watchdogctl.json("scaling -o json").await;
    assert_eq!(scaling["scalings"][0]["direction"], "DIRECTION_UP");
    assert!(scaling["scalings"][0].get("meltdownProtectionActive").is_none());
    incident_line_is_the_documented_one(coordinator).await;
}

/// The line is the durable record of an incident: log systems query its fields.
async fn incident_line_is_the_documented_one(coordinator: &Service) {
    const MESSAGE: &str = "\"message\":\"an incident has ended\"";
    let ended = |line: LogRecord<'_>| line.text.contains(MESSAGE).then(|| line.text.to_owned());
    let line = coordinator
        .process
        .wait_for_line(MESSAGE, BOUND, ended)
        .await
        .unwrap();
    let page = include_str!("../../../../docs/reference/monitoring.md");
    let documented = page.lines().find(|line| line.contains(MESSAGE)).unwrap();
    // In their order; no value is an object or a list.
    let keys = |line: &str| -> Vec<String> {
        let fields = line.trim_start_matches("{\"").split(",\"");
        let keys = fields.filter_map(|field| field.split_once("\":"));
        keys.map(|(key, _)| key.to_owned()).collect()
    };
    assert_eq!(keys(&line), keys(documented), "{line}");
    let fields: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(fields["target"], "scaling_coordinator::controller::history");
    let stages = [
        "last_renewal_to_verdict",
        "verdict_to_first_write",
        "verdict_to_last_write",
        "healthy_to_restored",
    ];
    let stage = |stage: &str| format!("watchdog_incident_stage_seconds_count{{stage=\"{stage}\"}}");
    let counted = ["watchdog_incidents_total".to_owned()]
        .into_iter()
        .chain(stages.map(stage));
    for series in counted {
        assert_eq!(coordinator.metric(&series).await.unwrap(), Some(1.0), "{series}");
    }
}

pub(crate) async fn healthy(fixture: &RealFixture, watchdogctl: &Watchdogctl) {
    let parts = ["2 shoots: 2 HEALTHY\n", "Every shoot that is probed is healthy."];
    watchdogctl.until_shown("status", &parts).await;
    let verdicts = watchdogctl.json("verdicts -o json").await;
    assert_eq!(verdicts["verdicts"][0]["shoot"], SHOOT);
    assert_eq!(verdicts["verdicts"][1]["outcome"], "OUTCOME_HEALTHY");

    let plan = watchdogctl.shown(&format!("plan {SHOOT} --direction down")).await;
    assert!(
        plan.starts_with(&format!(
            "{SHOOT} would NOT be scaled down, because its direction is "
        )),
        "{plan}"
    );
    for (name, count) in COUNTS {
        let line = plan.lines().find(|line| line.contains(name)).unwrap();
        let scaled = format!("{count} -> 0");
        assert!(line.contains("SCALE") && line.contains(&scaled), "{line}");
    }
    let scaled = fixture.history().unwrap().scaled(SHOOT);
    assert_eq!(scaled, [""; 0], "a plan touches nothing");

    let weeders = watchdogctl.shown("weeders --shoot real/one").await;
    assert!(line(&weeders, SHOOT).contains("kube-apiserver") || weeders.contains("etcd-main-client"));
    let services = watchdogctl.shown("services --shoot real/one").await;
    let ready = services
        .lines()
        .filter(|line| line.starts_with(SHOOT) && line.contains("  READY"));
    assert_eq!(ready.count(), 2, "{services}");
    assert!(!services.contains(OTHER), "the server filters: {services}");
    let replicas = watchdogctl.shown("replicas").await;
    for (replica, owned) in [
        ("lease-probe-0", "2 shoots"),
        ("scaling-coordinator-0", "2 shoots"),
        ("weeder-0", "4 services"),
    ] {
        let line = replicas.lines().find(|line| line.contains(replica)).unwrap();
        assert!(line.contains("connected") && line.contains(owned), "{replicas}");
    }
    let checked = watchdogctl.shown("check").await;
    assert!(checked.ends_with("Nothing is wrong.\n"), "{checked}");
    for replica in ["lease-probe-0", "scaling-coordinator-0", "weeder-0"] {
        let of_replica: Vec<&str> = checked.lines().filter(|line| line.contains(replica)).collect();
        let looked_at = ["readiness", "certificate", "clock"];
        let all = looked_at
            .iter()
            .all(|what| of_replica.iter().any(|line| line.contains(what)));
        assert!(all, "{replica}: {checked}");
    }
    assert!(checked.contains("ends 4096-01-01"), "{checked}");
}

pub(crate) async fn held_down(fixture: &RealFixture, lease_probe: &Service, watchdogctl: &Watchdogctl) {
    let parts = [
        "1 LEASES_EXPIRED",
        "1 HEALTHY",
        "held down until the leases are renewed",
        // It is a loss before the last of them.
        "100 % (5/5)",
    ];
    let status = watchdogctl.until_shown("status", &parts).await;
    let row = line(&status, SHOOT);
    assert!(
        row.contains("LEASES_EXPIRED  100 % (5/5)") && row.contains("  down  "),
        "{status}"
    );
    assert!(!status.contains(OTHER), "a healthy shoot needs no line: {status}");

    let verdict = fixture.setup.verdict(lease_probe, SHOOT).await.unwrap();
    let why = watchdogctl.shown("shoot real/one").await;
    for part in [
        verdict.message.as_str(),
        "expired 100 % (5/5), threshold 60 %",
        "the nodes are cut off. Direction: down.",
        "dependants are held down",
        "WHAT WOULD HAPPEN NOW\n  is scaled down already: ",
    ] {
        assert!(why.contains(part), "{part:?} is not in {why}");
    }
    let dependants = why.lines().filter(|line| line.starts_with("  Deployment/"));
    let is_reached = |line: &&str| {
        let counts = COUNTS.iter().filter(|(name, _)| line.contains(name));
        counts
            .map(|(_, count)| format!("REACHED  0         0      {count}         0"))
            .any(|reached| line.contains(&reached))
    };
    assert_eq!(dependants.filter(is_reached).count(), 3, "{why}");

    let expired = watchdogctl
        .json("verdicts --outcome leases-expired -o json")
        .await;
    assert_eq!(expired["totalSize"], 1);
    assert_eq!(expired["verdicts"][0]["evidence"]["expired"], 5);
    let scaling = watchdogctl.json(&format!("scaling {SHOOT} -o json")).await;
    let state = &scaling["scalings"][0];
    assert_eq!(state["direction"], "DIRECTION_DOWN");
    assert_eq!(state["meltdownProtectionActive"], true);
    let mut recorded = state["resources"].as_array().unwrap().iter();
    let is_recorded = |resource: &Value| {
        let recorded = |(name, count): (&str, i32)| {
            resource["resource"]["name"] == name && resource["recordedReplicas"] == count
        };
        COUNTS.into_iter().any(recorded)
    };
    assert!(recorded.all(is_recorded), "{state}");
    let down = watchdogctl.shown("scaling --direction down").await;
    assert!(line(&down, SHOOT).contains("  down  "), "{down}");
    assert!(!down.contains(OTHER), "the server filters: {down}");
    live(watchdogctl).await;
}

/// `status --watch` appends plain lines in a pipe, and draws in place on a terminal, in colour unless NO_COLOR is set.
async fn live(watchdogctl: &Watchdogctl) {
    let command = |environment: &str| {
        let words = [watchdogctl.program.display().to_string()];
        let words = words.iter().chain(&watchdogctl.connection);
        let words: Vec<_> = words.map(|word| format!("'{word}'")).collect();
        format!("{environment} exec {} status --watch", words.join(" "))
    };
    // script(1) gives what it runs a terminal.
    let on_terminal = |environment: &str| format!("exec script -qefc \"{}\" /dev/null", command(environment));
    for (shell, drawn, coloured) in [
        (command(""), false, false),
        (on_terminal("TERM=xterm NO_COLOR=1"), true, false),
        (on_terminal("TERM=xterm NO_COLOR="), true, true),
    ] {
        let text = two_updates(&shell).await;
        assert_eq!(text.contains("\x1b[?1049h"), drawn, "{shell}: {text:?}");
        assert_eq!(text.contains("\x1b[31;1m"), coloured, "{shell}: {text:?}");
        assert!(
            text.contains(SHOOT) && text.contains("LEASES_EXPIRED"),
            "{shell}: {text:?}"
        );
        if !drawn {
            assert!(!text.contains('\x1b'), "{text:?}");
        }
    }
}

/// The output of a shell command until it has shown the status twice.
async fn two_updates(shell: &str) -> String {
    let mut child = tokio::process::Command::new("sh")
        .args(["-c", shell])
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    let updates = async {
        loop {
            let text = String::from_utf8_lossy(&bytes);
            if text.matches("2 shoots: ").count() >= 2 {
                return text.into_owned();
            }
            let read = stdout.read(&mut part).await.unwrap();
            assert!(read > 0, "{shell} has ended: {text:?}");
            bytes.extend_from_slice(&part[..read]);
        }
    };
    let text = tokio::time::timeout(BOUND, updates).await.unwrap();
    child.kill().await.unwrap();
    text
}

/// The shoot's API server is away while its dependants are held down: nothing restores them until it is back.
pub(crate) async fn held_without_verdict(watchdogctl: &Watchdogctl) {
    let status = watchdogctl
        .until_shown("status", &["1 API_SERVER_UNREACHABLE", "  hold  "])
        .await;
    let row = line(&status, SHOOT);
    for part in ["API_SERVER_UNREACHABLE", "  hold  ", "lease-probe-0 reports"] {
        assert!(row.contains(part), "{part:?} is not in {status}");
    }
    let why = watchdogctl.shown("shoot real/one").await;
    for part in ["  hold (VERDICT) since ", "dependants are held down"] {
        assert!(why.contains(part), "{part:?} is not in {why}");
    }
    let scaling = watchdogctl.json(&format!("scaling {SHOOT} -o json")).await;
    let state = &scaling["scalings"][0];
    assert_eq!(state["direction"], "DIRECTION_HOLD");
    assert_eq!(state["meltdownProtectionActive"], true);
}

#[tokio::test]
async fn kubectl_finds_it_and_a_shell_and_man_read_what_it_prints() {
    let scratch = Scratch::new("kubectl-plugin").unwrap();
    let plugin = scratch.join("kubectl-watchdog");
    std::os::unix::fs::symlink(binaries::path(binaries::WATCHDOGCTL).unwrap(), &plugin).unwrap();
    let plugin = Watchdogctl {
        program: plugin,
        connection: Vec::new(),
    };
    let help = plugin.shown("--help").await;
    assert!(help.contains("Usage: kubectl watchdog "), "{help}");
    assert!(
        help.contains("Exit codes:") && help.contains("Examples:"),
        "{help}"
    );
    let script = plugin.shown("completion bash").await;
    assert!(script.contains("complete -F"), "{script}");
    let page = plugin.shown("man").await;
    assert!(page.contains(".TH watchdogctl 1"), "{page}");
}
