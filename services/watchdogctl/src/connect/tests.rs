//! How the programs are reached: with which certificates, and through a port-forward.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use k8s_openapi::ByteString;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::wait;

use super::ProgramDialer;
use crate::program::Program;
use crate::render::testing::verdict;
use crate::testing::pod_api::{PodApi, SECRET, Secrets, Seed, crashing_pod, deployment, pod};
use crate::testing::stub_services::{Answers, StubServer, StubServices};
use crate::testing::tls::TestAuthority;
use crate::testing::{
    BOUND, Recording, assert_parts, closed_address, fails, followed, json, parsed, run, running, shown, until,
};

const SHOOT: &str = "shoot--a--b";

/// The name in a certificate of lease-probe, as the chart calls it.
const LEASE_PROBE: &str = "watchdog-lease-probe.garden.svc";

/// The programs of a seed whose shoots are healthy.
fn healthy(shoots: &[&str]) -> StubServices {
    let verdicts = shoots.iter().map(|shoot| verdict(shoot, Outcome::Healthy));
    StubServices::new(Answers {
        verdicts: verdicts.collect(),
        ..Answers::default()
    })
}

async fn serve(authority: &TestAuthority) -> StubServer {
    let config = authority.server(&[LEASE_PROBE]);
    healthy(&[SHOOT]).serve_tls(config).await
}

#[tokio::test]
async fn certificates_of_files_are_used_and_shown_by_check() {
    let authority = TestAuthority::new();
    let server = serve(&authority).await;
    let address = format!("--lease-probe {}", server.address);
    let tls = authority.options();
    assert_parts(&shown(&format!("{address} {tls} verdicts")).await, &[SHOOT]);
    let checked = shown(&format!("{address} {tls} check")).await;
    for subject in [server.address.as_str(), "your certificate"] {
        let found = checked
            .lines()
            .any(|line| line.contains(subject) && line.contains("certificate   ends "));
        assert!(found, "{subject}: {checked}");
    }
}

/// As a port-forward does: the connection to a program that crashed or hangs is opened.
#[tokio::test]
async fn a_replica_that_refuses_hangs_or_closes_is_passed_over() {
    let authority = TestAuthority::new();
    let server = serve(&authority).await;
    let hangs = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closes = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = [&hangs, &closes].map(|listener| listener.local_addr().unwrap());
    let _closing = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            drop(closes.accept().await.unwrap());
        }
    }));
    let [hangs, closes] = addresses.map(|address| format!("--lease-probe {address}"));
    let (good, tls) = (&server.address, authority.options());
    let (_socket, away) = closed_address();
    let line = format!("--lease-probe {away} {hangs} {closes} --lease-probe {good} {tls} verdicts");
    assert_parts(&shown(&line).await, &[SHOOT]);
    fails(&format!("{closes} {hangs} {tls} verdicts"), 3, "lease-probe: ").await;
}

/// A program takes few connections of one certificate.
#[tokio::test]
async fn calls_at_the_same_time_share_a_connection() {
    let shoots = ["shoot--a--a", "shoot--a--b", "shoot--a--c"];
    let server = healthy(&shoots).serve().await;
    let relay = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = relay.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let _relaying = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let (mut near, _) = relay.accept().await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
            let mut far = TcpStream::connect(&server.address).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    }));
    // A name takes a while to resolve, as Pods take to be listed.
    let line = format!("--lease-probe localhost:{port} --insecure-plaintext verdicts");
    assert_parts(&shown(&format!("{line} {}", shoots.join(" "))).await, &shoots);
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_certificate_that_does_not_fit_is_an_error_that_says_which_option() {
    let (authority, stranger) = (TestAuthority::new(), TestAuthority::new());
    let server = serve(&authority).await;
    let address = format!("--lease-probe {}", server.address);
    let [ca, cert, key] =
        ["ca.crt", "tls.crt", "tls.key"].map(|name| authority.path(name).display().to_string());
    let foreign_key = stranger.path("tls.key").display().to_string();
    // An Ed448 key of zeros: as those of secp256k1 and of RSA with 1024 bits, of no kind that is accepted.
    let folder = TempDir::new().unwrap();
    let odd_key = folder.path().join("tls.key");
    let zeros = "A".repeat(76);
    let pem =
        format!("-----BEGIN PRIVATE KEY-----\nMEcCAQAwBQYDK2VxBDsEOQ{zeros}==\n-----END PRIVATE KEY-----\n");
    std::fs::write(&odd_key, pem).unwrap();
    let foreign_cert = stranger.path("tls.crt").display().to_string();
    for (tls, code, part) in [
        (
            format!("{} --tls-server-name other.test", authority.options()),
            3,
            "set --tls-server-name to a name in it",
        ),
        (stranger.options(), 3, "--tls-ca must have signed"),
        // The program's certificate is trusted, but not the caller's by the program.
        (
            format!("--tls-ca {ca} --tls-cert {foreign_cert} --tls-key {foreign_key}"),
            3,
            "--tls-ca must have signed",
        ),
        (
            "--insecure-plaintext".to_owned(),
            3,
            "if it serves with TLS, leave that out",
        ),
        (
            format!("--tls-ca {ca} --tls-cert {cert} --tls-key {foreign_key}"),
            2,
            "correct --tls-ca, --tls-cert and --tls-key",
        ),
        (
            format!("--tls-ca {ca} --tls-cert {cert} --tls-key {}", odd_key.display()),
            2,
            "tls.key: holds a private key of a kind that is not accepted: use RSA of 2048 to 8192 bits",
        ),
        (
            format!("--tls-ca /no/such/file --tls-cert {cert} --tls-key {key}"),
            2,
            "/no/such/file",
        ),
    ] {
        fails(&format!("{address} {tls} verdicts"), code, part).await;
    }
}

/// Parts of a certificate as a Secret.
fn secret(authority: &TestAuthority, keys: &[&str]) -> Arc<Mutex<Secrets>> {
    let data = keys.iter().map(|key| {
        (
            (*key).to_owned(),
            ByteString(std::fs::read(authority.path(key)).unwrap()),
        )
    });
    Arc::new(Mutex::new(Secrets::from([(SECRET.to_owned(), data.collect())])))
}

const WHOLE: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

#[tokio::test]
async fn release_certificate_and_pods_are_found_without_an_option() {
    let authority = TestAuthority::new();
    let server = serve(&authority).await;
    let (_socket, closed) = closed_address();
    let seed = Seed::start(PodApi {
        secrets: secret(&authority, &WHOLE),
        ..PodApi::release(&[(Program::LeaseProbe, &server.address), (Program::Weeder, &closed)])
    })
    .await;
    let options = seed.options();
    for secret in [
        "",
        &format!(" --tls-secret {SECRET}"),
        &format!(" --tls-secret garden/{SECRET}"),
    ] {
        assert_parts(&shown(&format!("{options}{secret} verdicts")).await, &[SHOOT]);
    }
    // With an address, only the Secret comes from the seed.
    let direct = format!("{options} --tls-secret {SECRET} --lease-probe {}", server.address);
    assert_parts(&shown(&format!("{direct} verdicts")).await, &[SHOOT]);
    let checked = run(&format!("{options} check")).await;
    assert_eq!(checked.code, ExitCode::from(1), "{}", checked.text);
    assert_parts(
        &checked.text,
        &[
            "lease-probe lease-probe-0",
            "0 of 1 are ready: no shoot is protected",
            "connection refused in the pod",
        ],
    );
    assert!(!checked.text.contains("Nothing is wrong"), "{}", checked.text);

    let folder = seed.folder.path().display();
    let written = shown(&format!("{options} certificate {folder}")).await;
    assert_parts(
        &written,
        &["ca.crt, tls.crt and tls.key are in ", ", valid until 4096-01-01"],
    );
    let written = json(&format!("{options} certificate {folder}")).await;
    assert_eq!(written["folder"], folder.to_string());
    assert!(
        written["notAfter"]
            .as_str()
            .is_some_and(|end| end.starts_with("4096-01-01")),
        "{written}"
    );
    let tls = format!("--tls-ca {folder}/ca.crt --tls-cert {folder}/tls.crt --tls-key {folder}/tls.key");
    let verdicts = shown(&format!("--lease-probe {} {tls} verdicts", server.address)).await;
    assert_parts(&verdicts, &[SHOOT]);
    fails(
        &format!("{options} certificate /no/such/folder"),
        2,
        "name another folder",
    )
    .await;
}

/// The texts about a Pod are tested in `pods`.
#[tokio::test]
async fn check_and_status_name_what_is_wrong_with_the_pods_of_one_release() {
    let authority = TestAuthority::new();
    let server = serve(&authority).await;
    let api = PodApi::release(&[(Program::LeaseProbe, &server.address)]);
    // A line with a raw control character is not JSON, and is shown as it is, with a space instead.
    let log = "{\"level\":\"ERROR\",\"message\":\"cannot start\",\"error\":\"\x1b[2J no file\"}\n";
    let crashing = crashing_pod(
        "watchdog",
        Program::ScalingCoordinator,
        "scaling-coordinator-0",
        log,
    );
    let seed = Seed::start(PodApi {
        deployments: vec![
            deployment("garden", "watchdog", Program::LeaseProbe, 1),
            deployment("garden", "watchdog", Program::ScalingCoordinator, 2),
            deployment("garden", "watchdog", Program::Weeder, 0),
            // A second release beside it, whose pods are not those of the first one.
            deployment("garden", "second", Program::LeaseProbe, 1),
        ],
        pods: api.pods.iter().cloned().chain([crashing]).collect(),
        secrets: secret(&authority, &WHOLE),
        ..api
    })
    .await;
    let options = seed.options();
    let several = "there are several releases of the watchdog: garden/second, garden/watchdog";
    fails(&format!("{options} check"), 2, several).await;
    let first = format!("{options} --name watchdog");
    let checked = run(&format!("{first} check")).await;
    assert_eq!(checked.code, ExitCode::from(1), "{}", checked.text);
    assert_parts(
        &checked.text,
        &[
            "1 of 1 are ready",
            "0 of 2 are ready: no shoot is protected, and nothing that is held down is restored",
            r#"exit code 2: {"level":"ERROR","message":"cannot start","error":" [2J no file"}"#,
            "checks found something wrong.",
        ],
    );
    let checked = json(&format!("{first} check")).await;
    let mut findings = checked["findings"].as_array().unwrap().iter();
    let found = findings.find(|finding| finding["subject"] == "weeder").unwrap();
    assert_eq!(
        (&found["result"], &found["check"]),
        (&"WRONG".into(), &"replicas".into())
    );
    // What lease-probe says is shown, and why the rest is missing; nobody is called healthy.
    let status = run(&format!("{first} status")).await;
    assert_eq!(status.code, ExitCode::from(3), "{}", status.text);
    assert_parts(
        &status.text,
        &[
            "1 verdict: 1 HEALTHY; ",
            "NO ANSWER from scaling-coordinator: no pod of scaling-coordinator runs",
            "WRONG: scaling-coordinator scaling-coordinator-0: scaling-coordinator crashes",
            "No shoot is known to be held down",
        ],
    );
    let second = run(&format!("{options} --name second check")).await;
    assert_parts(
        &second.text,
        &[
            "0 of 1 are ready: no loss is detected",
            "the Deployment garden/second-scaling-coordinator does not exist",
        ],
    );
    assert!(!second.text.contains("lease-probe-0"), "{}", second.text);
}

/// A kubelet may report any time, and jiff ends with the year 9999.
#[tokio::test]
async fn a_pod_that_cannot_be_read_hides_no_other() {
    let server = healthy(&[SHOOT]).serve().await;
    let mut api = PodApi::release(&[(Program::LeaseProbe, &server.address)]);
    let mut odd = pod("watchdog", Program::LeaseProbe, "lease-probe-1");
    odd["status"]["containerStatuses"][0]["state"] =
        serde_json::json!({"running": {"startedAt": "10000-01-01T00:00:00Z"}});
    api.pods.push(odd);
    let seed = Seed::start(api).await;
    let options = format!("{} --insecure-plaintext", seed.options());
    assert_parts(&shown(&format!("{options} verdicts")).await, &[SHOOT]);
    let checked = run(&format!("{options} check")).await;
    let found =
        "WRONG   lease-probe lease-probe-1  pod           cannot be read: status.containerStatuses[0].state";
    assert_parts(&checked.text, &["1 of 1 are ready", found]);
}

#[tokio::test]
async fn check_and_status_work_without_a_certificate() {
    let authority = TestAuthority::new();
    let server = serve(&authority).await;
    let seed = Seed::start(PodApi {
        secrets: secret(&authority, &[]),
        ..PodApi::release(&[(Program::LeaseProbe, &server.address)])
    })
    .await;
    let options = seed.options();
    let empty = "the Secret garden/my-certificate has no ca.crt";
    for (command, code) in [("check", 1), ("status", 3), ("verdicts", 2), ("certificate .", 2)] {
        fails(&format!("{options} {command}"), code, empty).await;
    }
    let checked = run(&format!("{options} check")).await.text;
    assert_parts(
        &checked,
        &[
            "0 of 1 are ready",
            "a program fills the Secret of the chart within two minutes",
        ],
    );
}

/// A program fills the Secret within two minutes, and replaces what is in it every 8 h.
#[tokio::test]
async fn a_certificate_that_comes_later_is_used_by_what_goes_on() {
    let authority = TestAuthority::new();
    let server = serve(&authority).await;
    let secrets = secret(&authority, &[]);
    let seed = Seed::start(PodApi {
        secrets: secrets.clone(),
        ..PodApi::release(&[(Program::LeaseProbe, &server.address)])
    })
    .await;
    let followed = followed(&format!("{} ui", seed.options())).await.remove(0);
    let (output, mut recording) = Recording::new(None);
    let empty = "the Secret garden/my-certificate has no ca.crt";
    let line = format!("{} status --watch", seed.options());
    let is_lost = || {
        let model = followed.state.model();
        let mut programs = model.programs.values();
        !model.programs.is_empty() && programs.all(|program| program.lost.is_some())
    };
    let filled = async {
        recording.until(empty).await;
        wait::until_true("every program is lost", BOUND, async || Ok(is_lost()))
            .await
            .unwrap();
        *secrets.lock().unwrap() = secret(&authority, &WHOLE).lock().unwrap().clone();
        recording.until("1 verdict: 1 HEALTHY").await;
        let is_shown = async || Ok(!followed.state.model().shoots.is_empty());
        wait::until_true("the page has the shoot", BOUND, is_shown)
            .await
            .unwrap();
    };
    running(&line, &output, filled).await;
}

#[tokio::test]
async fn a_release_without_tls_or_in_another_namespace_is_found() {
    let server = healthy(&[SHOOT]).serve().await;
    let mut plaintext = deployment("garden", "other", Program::LeaseProbe, 1);
    plaintext["spec"]["template"]["spec"]["containers"][0]["args"] =
        serde_json::json!(["--insecure-plaintext"]);
    let seed = Seed::start(PodApi {
        deployments: vec![plaintext],
        pods: vec![pod("other", Program::LeaseProbe, "lease-probe-0")],
        addresses: BTreeMap::from([("lease-probe-0".to_owned(), server.address.clone())]),
        ..PodApi::default()
    })
    .await;
    assert_parts(&shown(&format!("{} verdicts", seed.options())).await, &[SHOOT]);

    let seed = Seed::start(PodApi {
        deployments: vec![deployment(
            "extension-watchdog",
            "watchdog",
            Program::LeaseProbe,
            1,
        )],
        ..PodApi::default()
    })
    .await;
    let options = seed.options();
    let part = "no pod of lease-probe runs in namespace extension-watchdog";
    fails(&format!("{options} --insecure-plaintext verdicts"), 3, part).await;
    let nowhere = "the watchdog is not installed: no Deployment of the chart in namespace garden";
    fails(&format!("{options} -n garden verdicts"), 3, nowhere).await;
    let unnamed = "the watchdog is not installed: no Deployment of the chart named x in any namespace";
    fails(&format!("{options} --name x verdicts"), 3, unnamed).await;
}

/// A replica that is not ready knows verdicts, and status is what people open when something is wrong.
#[tokio::test]
async fn a_pod_that_is_not_ready_is_asked_if_no_other_answers() {
    let authority = TestAuthority::new();
    let server = serve(&authority).await;
    let (_socket, closed) = closed_address();
    let programs = [(Program::LeaseProbe, server.address.as_str())];
    let mut api = PodApi::release(&programs);
    api.pods[0]["status"]["conditions"][0]["status"] = "False".into();
    api.secrets = secret(&authority, &WHOLE);
    let seed = Seed::start(api).await;
    let options = seed.options();
    let status = run(&format!("{options} status")).await;
    assert_parts(
        &status.text,
        &["1 verdict: 1 HEALTHY; ", "WRONG: lease-probe: 0 of 1 are ready"],
    );

    // It is not asked beside one that is ready.
    let mut api = PodApi::release(&programs);
    let mut other = pod("watchdog", Program::LeaseProbe, "a-is-first-by-name");
    other["status"]["conditions"][0]["status"] = "False".into();
    api.pods.push(other);
    api.addresses.insert("a-is-first-by-name".to_owned(), closed);
    api.secrets = secret(&authority, &WHOLE);
    let seed = Seed::start(api).await;
    assert_parts(&shown(&format!("{} verdicts", seed.options())).await, &[SHOOT]);
}

#[tokio::test]
async fn several_seeds_stand_side_by_side_and_none_hides_another() {
    let authority = TestAuthority::new();
    let server = serve(&authority).await;
    let seed = Seed::start(PodApi {
        secrets: secret(&authority, &WHOLE),
        ..PodApi::release(&[
            (Program::LeaseProbe, &server.address),
            (Program::ScalingCoordinator, &server.address),
        ])
    })
    .await;
    // The context `other` has no cluster.
    let kubeconfig = format!("--kubeconfig {}", seed.kubeconfig().display());
    for contexts in ["--contexts seed,no-such,other,seed", "--all-contexts"] {
        let verdicts = run(&format!("{kubeconfig} {contexts} verdicts")).await;
        assert_eq!(verdicts.code, ExitCode::from(2), "{}", verdicts.text);
        let lines: Vec<&str> = verdicts.text.lines().collect();
        for (seed, result) in [
            ("seed ", "1 verdicts"),
            (
                "other ",
                "cannot reach the seed: the kubeconfig of --kubeconfig cannot be used",
            ),
        ] {
            let found = lines.iter().find(|line| line.starts_with(seed)).unwrap();
            assert!(found.contains(result), "{}", verdicts.text);
        }
        assert_parts(
            &verdicts.text,
            &["=== seed\nSHOOT", "=== other\nerror: cannot reach the seed"],
        );
        assert_eq!(
            verdicts.text.matches("=== seed\n").count(),
            1,
            "{}",
            verdicts.text
        );
    }
    let seeds = json(&format!("{kubeconfig} --contexts seed,no-such verdicts")).await;
    assert_eq!(seeds["seeds"][0]["answer"]["verdicts"][0]["shoot"], SHOOT);
    let error = seeds["seeds"][1]["error"].as_str().unwrap();
    assert!(
        error.contains("no entry has the name that --context refers to"),
        "{error}"
    );
    for command in ["release", "certificate"] {
        fails(
            &format!("{kubeconfig} --contexts a {command}"),
            2,
            "works on one seed at a time\n  run watchdogctl --context NAME",
        )
        .await;
    }
}

#[tokio::test]
async fn seeds_are_watched_together_and_one_that_is_away_comes_first() {
    let server = healthy(&[SHOOT]).serve().await;
    let programs = Program::ALL.map(|program| (program, server.address.as_str()));
    let seed = Seed::start(PodApi::release(&programs)).await;
    let line = format!(
        "--kubeconfig {} --insecure-plaintext --contexts seed,no-such status --watch",
        seed.kubeconfig().display()
    );
    let (output, mut recording) = Recording::new(None);
    let watched = until(&line, &mut recording, &output, "=== seed\n").await;
    let away = "SEED     RESULT\nno-such  cannot reach the seed: ";
    assert!(watched.starts_with(away), "{watched}");
    let parts = ["\nseed     1 shoot: 1 HEALTHY\n", "\n=== no-such\nerror: "];
    assert_parts(&watched, &parts);
}

#[tokio::test]
async fn the_number_of_seeds_that_are_followed_is_bounded() {
    let contexts: Vec<_> = (0..65).map(|i| format!("seed-{i}")).collect();
    let contexts = contexts.join(",");
    for command in ["status --watch", "ui"] {
        let line = format!("--contexts {contexts} {command}");
        fails(&line, 2, "65 seeds are too many to follow at once").await;
    }
}

/// A kubeconfig whose API server has this address, in a folder, and the option that names it.
fn kubeconfig_of(address: &str) -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kubeconfig");
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: a, cluster: {{server: \"http://{address}\"}}}}]\n\
         contexts: [{{name: seed, context: {{cluster: a}}}}]\n"
    );
    std::fs::write(&path, kubeconfig).unwrap();
    (folder, format!("--kubeconfig {}", path.display()))
}

/// A seed whose API server takes connections and never answers, beside one that does.
#[tokio::test(start_paused = true)]
async fn a_seed_that_never_answers_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (_folder, kubeconfig) = kubeconfig_of(&silent.local_addr().unwrap().to_string());
    let line = format!("{kubeconfig} --all-contexts check");
    fails(
        &line,
        3,
        "cannot list deployments in namespace garden: no answer within 10s",
    )
    .await;
}

#[tokio::test]
async fn an_error_of_the_seed_says_what_to_do() {
    let authority = TestAuthority::new();
    let server = serve(&authority).await;
    let (_socket, closed) = closed_address();
    let seed = Seed::start(PodApi {
        secrets: secret(&authority, &WHOLE),
        ..PodApi::release(&[(Program::LeaseProbe, &server.address), (Program::Weeder, &closed)])
    })
    .await;
    let options = seed.options();
    let (_folder, nothing_there) = kubeconfig_of(&closed);
    for (line, code, part) in [
        (
            format!("{options} scaling"),
            3,
            "no pod of scaling-coordinator runs in namespace garden",
        ),
        (format!("{options} weeders"), 3, "connection refused in the pod"),
        (
            format!("{options} --tls-secret other verdicts"),
            2,
            "user me cannot get",
        ),
        (
            format!("{nothing_there} --context seed verdicts"),
            3,
            "check --kubeconfig, --context and the connection",
        ),
        (
            "--kubeconfig /no/such/kubeconfig verdicts".to_owned(),
            2,
            "set --kubeconfig and --context",
        ),
        (
            format!("--kubeconfig {} verdicts", seed.kubeconfig().display()),
            2,
            "cannot reach the seed: the kubeconfig of --kubeconfig cannot be used",
        ),
    ] {
        fails(&line, code, part).await;
    }
}

#[tokio::test]
async fn a_missing_right_to_forward_a_port_is_named() {
    let authority = TestAuthority::new();
    let server = serve(&authority).await;
    let programs = Program::ALL.map(|program| (program, server.address.as_str()));
    let seed = Seed::start(PodApi {
        secrets: secret(&authority, &WHOLE),
        forbids_forwarding: true,
        ..PodApi::release(&programs)
    })
    .await;
    for command in ["verdicts", "status", "shoot a/b"] {
        let line = format!("{} {command}", seed.options());
        let what = "use a kubeconfig with get and create on pods/portforward in namespace garden";
        fails(&line, 2, what).await;
    }
}

/// A command that watches lives longer than credentials do. Its plugin runs again after a refusal.
#[tokio::test]
async fn a_command_that_goes_on_gets_new_credentials() {
    let accepted = Arc::new(Mutex::new("first".to_owned()));
    let api = PodApi {
        token: Some(accepted.clone()),
        ..PodApi::release(&[(Program::LeaseProbe, "127.0.0.1:1")])
    };
    let seed = Seed::start(api).await;
    let issued = seed.folder.path().join("token");
    std::fs::write(&issued, "first").unwrap();
    let script = format!(
        "printf '{{\"status\": {{\"token\": \"%s\"}}}}' $(cat {})",
        issued.display()
    );
    let user = serde_json::json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh", "args": ["-c", script],
    }});
    let kubeconfig = std::fs::read_to_string(seed.kubeconfig()).unwrap();
    let kubeconfig = kubeconfig.replace("user: {}", &format!("user: {user}"));
    std::fs::write(seed.kubeconfig(), kubeconfig).unwrap();
    let cli = parsed(&format!("{} --insecure-plaintext verdicts", seed.options())).unwrap();
    let dialer = ProgramDialer::open(&cli.connect).await.unwrap();
    let pods = || async {
        dialer
            .pods()
            .await
            .map(|pods| crate::pods::name(pods.unwrap()[0].pods[0].ok().unwrap()))
    };
    assert_eq!(pods().await.unwrap(), "lease-probe-0");
    // As those of 15 minutes do, the first ones have ended.
    *accepted.lock().unwrap() = "second".to_owned();
    std::fs::write(&issued, "second").unwrap();
    let refused = pods().await.unwrap_err();
    assert!(refused.to_string().contains("cannot list pods"), "{refused}");
    assert_eq!(pods().await.unwrap(), "lease-probe-0");
    // The error of a plugin that fails is about the plugin.
    *accepted.lock().unwrap() = "third".to_owned();
    std::fs::write(&issued, "no token").unwrap();
    pods().await.unwrap_err();
    let failed = pods().await.unwrap_err().to_string();
    let about = "the answer of the exec plugin sh cannot be used: its output is not an ExecCredential";
    assert!(failed.contains(about), "{failed}");
}
